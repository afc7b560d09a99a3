"""A module's parameters as one flat float32 vector, and back; initial models by key. With `model`, all of the core that needs torch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from coterie.core.arrays import Floats
from coterie.core.layout import InitialModels, Layout, Slice, TensorKind
from coterie.core.rng import key


def layout_of(module: nn.Module) -> Layout:
    """The layout of a module's vector."""
    slices: list[Slice] = []
    begin = 0
    parameters = dict(module.named_parameters())
    for name, tensor in [*parameters.items(), *module.named_buffers()]:
        kind = _kind(tensor, trained=name in parameters and tensor.requires_grad, parameter=name in parameters)
        slices.append(Slice(name, tuple(tensor.shape), begin, kind))
        begin += tensor.numel()
    return Layout(tuple(slices))


def _kind(tensor: torch.Tensor, *, trained: bool, parameter: bool) -> TensorKind:
    if trained:
        return "weight"
    if parameter:
        return "frozen"
    return "statistic" if tensor.is_floating_point() else "counter"


def read(module: nn.Module) -> Floats:
    """The module's parameters and buffers as one flat float32 vector."""
    tensors = [*module.parameters(), *module.buffers()]
    return np.concatenate([t.detach().to(torch.float32).cpu().numpy().ravel() for t in tensors], dtype=np.float32)


@torch.no_grad()
def write(module: nn.Module, vector: torch.Tensor) -> None:
    """Set the module's parameters and buffers from a flat vector."""
    begin = 0
    for tensor in [*module.parameters(), *module.buffers()]:
        value = vector[begin : begin + tensor.numel()].view(tensor.shape)
        tensor.copy_(value if tensor.is_floating_point() else value.round())
        begin += tensor.numel()


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Torch's global generator, seeded for a block and put back afterwards: the one door through which it is ever used."""
    devices = range(torch.cuda.device_count())  # none on a machine without a GPU
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        yield


def initial_models(build: Callable[[], nn.Module], seed: int) -> InitialModels:
    """Initial models from the module's own initialisation, keyed by (seed, "init", i)."""

    def init(i: int = 0) -> Floats:
        with torch_seeded(key(seed, "init", i)):
            return read(build())

    return init
