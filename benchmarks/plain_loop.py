"""What clients written by hand run: batches from a DataLoader, one client after the other.

`PlainLoop` is the plain one. `TunedLoop` has what PyTorch's performance guide recommends: channels last, autocast, a compiled module,
batches that are indexed at once and pinned, a fused optimiser, and cuDNN's choice of kernels by measurement.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from coterie.core.arrays import Floats
from coterie.core.local import Local
from coterie.core.model import read_vector, write_vector
from coterie.engines.world import World

Batches = Iterable[tuple[Tensor, Tensor]]


class PlainLoop:
    """Float32 as torch has it by default (TF32 in convolutions), or `exact`; nothing captured."""

    def __init__(self, world: World, local: Local, device: str = "cuda", *, exact: bool = False) -> None:
        federation = world.federation
        self.local, self.device, self.exact, self.module = local, device, exact, world.model.module().to(device)
        x, y = torch.from_numpy(federation.x), torch.from_numpy(federation.y)
        self.sets = [TensorDataset(x[rows], y[rows]) for rows in federation.train]
        self.loaders: list[Batches] = [DataLoader(own, batch_size=local.batch_size, shuffle=True) for own in self.sets]
        self.models = np.zeros((len(federation), world.model.layout.size), np.float32)
        self.samples = len(federation.train.indices) * local.epochs  # of a round

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.module.parameters(), lr=self.local.lr, weight_decay=self.local.weight_decay)

    def compute_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.module(x.to(self.device)), y.to(self.device))

    def round(self, start: Floats) -> None:
        """Train every client from a start, and leave what it ends with in `models`."""
        cudnn: Any = torch.backends.cudnn  # its precisions are not in the stubs
        convolutions = cudnn.conv
        before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee" if self.exact else "tf32"
        for client, loader in enumerate(self.loaders):
            write_vector(self.module, torch.from_numpy(start).to(self.device))
            self.module.train()
            optimizer = self.make_optimizer()
            for _ in range(self.local.epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    self.compute_loss(x, y).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            self.models[client] = read_vector(self.module)
        convolutions.fp32_precision = before


class TunedLoop(PlainLoop):
    """The loop of a user who knows PyTorch, in bf16. The last, smaller batch is dropped: it would be compiled for itself.

    Args:
        world: What is trained.
        local: How.
        mode: Of `torch.compile`; None: not compiled.
        device: Where.
    """

    def __init__(self, world: World, local: Local, mode: str | None = "reduce-overhead", device: str = "cuda") -> None:
        super().__init__(world, local, device)
        self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.compiled = self.module if mode is None else torch.compile(self.module, mode=mode)
        size = local.batch_size or 1
        samplers = [BatchSampler(RandomSampler(own), size, drop_last=True) for own in self.sets]
        both = zip(self.sets, samplers, strict=True)
        self.loaders = [DataLoader(own, batch_size=None, sampler=sampler, pin_memory=True) for own, sampler in both]
        self.samples = sum(len(rows) // size * size for rows in world.federation.train) * local.epochs

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.module.parameters(), lr=self.local.lr, weight_decay=self.local.weight_decay, fused=True)

    def compute_loss(self, x: Tensor, y: Tensor) -> Tensor:
        there: dict[str, Any] = {"device": self.device, "non_blocking": True}
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch.autocast(self.device, torch.bfloat16):
            outputs = self.compiled(x.to(**there, memory_format=torch.channels_last))
            return nn.functional.cross_entropy(outputs, y.to(**there))

    def round(self, start: Floats) -> None:
        cudnn: Any = torch.backends.cudnn
        before, cudnn.benchmark = cudnn.benchmark, True
        super().round(start)
        cudnn.benchmark = before
