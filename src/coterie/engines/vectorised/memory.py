"""How much memory a sample's activations take, by counting what a forward pass keeps for its backward pass."""

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from coterie.core.parameters import torch_seeded
from coterie.engines.precision import passes_in
from coterie.engines.vectorised.step import Stepper


def activation_bytes(stepper: Stepper, dtype: torch.dtype) -> int:
    """Bytes kept for each sample: four samples against two, so that parameters, kept as well, cancel out."""
    return max(0, _kept(stepper, dtype, 4) - _kept(stepper, dtype, 2)) // 2


def _kept(stepper: Stepper, dtype: torch.dtype, samples: int) -> int:
    seen: dict[int, Tensor] = {}  # by address: a tensor kept by two operations is there once

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.data_ptr()] = tensor
        return tensor

    device = stepper.x.device
    numbers = torch.arange(samples, device=device) % len(stepper.x)
    copies = {
        name: tensor.detach()
        .to(device, dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
        .requires_grad_(tensor.requires_grad)
        for name, tensor in [*stepper.module.named_parameters(), *stepper.module.named_buffers()]
    }
    stepper.module.train()
    rewritten = (stepper.convolving(), stepper.mapping())
    with torch_seeded(0), torch.enable_grad(), rewritten[0], rewritten[1], saved_tensors_hooks(keep, lambda tensor: tensor):
        with passes_in(stepper.precision, device):  # in bfloat16 half as much is kept of most
            outputs: Tensor = functional_call(stepper.module, copies, (stepper.x[numbers],))
        stepper.loss(outputs.to(dtype), stepper.y[numbers])
    return sum(tensor.nbytes for tensor in seen.values())
