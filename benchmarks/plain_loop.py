"""What a client written by hand runs: batches from a DataLoader, float32 as torch has it by default, nothing captured."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coterie.core.arrays import Floats
from coterie.core.local import Local
from coterie.core.model import read_vector, write_vector
from coterie.engines.world import World


class PlainLoop:
    """One client after the other."""

    def __init__(self, world: World, local: Local, device: str = "cuda") -> None:
        federation = world.federation
        self.local, self.device, self.module = local, device, world.model.module().to(device)
        x, y = torch.from_numpy(federation.x), torch.from_numpy(federation.y)
        sets = [TensorDataset(x[rows], y[rows]) for rows in federation.train]
        self.loaders = [DataLoader(own, batch_size=local.batch_size, shuffle=True) for own in sets]
        self.models = np.zeros((len(federation), world.model.layout.size), np.float32)

    def round(self, start: Floats) -> None:
        """Train every client from a start, and leave what it ends with in `models`."""
        local, device = self.local, self.device
        for client, loader in enumerate(self.loaders):
            write_vector(self.module, torch.from_numpy(start).to(device))
            self.module.train()
            optimizer = torch.optim.SGD(self.module.parameters(), lr=local.lr, weight_decay=local.weight_decay)
            for _ in range(local.epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(self.module(x.to(device)), y.to(device)).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            self.models[client] = read_vector(self.module)
