"""Full-batch gradients, client after client, left where they are computed: fetching each would take longer than computing it.

Those of very many clients, or of very large models, do not fit a GPU beside its work: they are laid down on the host.
"""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.arrays import Doubles
from coterie.core.asks import Gradient
from coterie.core.parameters import write
from coterie.data.federation import Parts
from coterie.engines.free_memory import home_of, stacked_memory
from coterie.engines.workspace import Workspace


def probed(module: nn.Module) -> AbstractContextManager[object]:
    """cuDNN's recurrent layers have no way back where they are not trained; torch's own have."""
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    return torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()


def gradients_of(ask: Gradient, space: Workspace, parts: Parts) -> tuple[Tensor, Doubles]:
    """(n, d) float32, on the workspace's device where they fit, with noughts for what is not trained, and (n,) the mean losses."""
    shape = len(ask.clients), ask.models.shape[1]
    found = torch.zeros(shape, dtype=torch.float32, device=home_of(shape, space.device, stacked_memory))
    weights = [w for w in space.module.parameters() if w.requires_grad]
    losses, last = list[Tensor](), -1
    for row, client, start in zip(found, ask.clients, ask.start, strict=True):
        if start != last:  # a probe changes nothing: the model that is there is still the one received
            write(space.module, space.vector(ask.models[start]))
            last = start
        space.module.eval()  # a probe must not move running statistics
        space.module.zero_grad()
        with probed(space.module):
            loss = space.losses(parts[client]).mean()
            torch.autograd.backward(loss)
        losses.append(loss.detach())
        begin = 0
        for w in weights:
            if w.grad is not None:
                row[begin : begin + w.numel()] = w.grad.reshape(-1)
            begin += w.numel()
    return found, torch.stack(losses).cpu().double().numpy() if losses else np.zeros(0)
