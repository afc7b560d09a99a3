"""Parameters as flat float32 vectors, and the layout that says what each slice is.

Everything that crosses the wire is such a vector: the module's parameters in order, then its buffers. The layout keeps apart what
must not be treated alike: statistics (batch norm's running moments) are averaged but never compared, counters (integer buffers)
likewise, and frozen parts are neither trained nor compared.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, Protocol

import numpy as np
import torch
from torch import nn

from coterie.core.arrays import Bools, Floats
from coterie.core.rng import key

Kind = Literal["weight", "statistic", "counter", "frozen"]


@dataclass(frozen=True)
class Slice:
    """One tensor of the model inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    begin: int
    kind: Kind

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def end(self) -> int:
        return self.begin + self.size


@dataclass(frozen=True)
class Layout:
    """What each slice of a flat vector is."""

    slices: tuple[Slice, ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        slices: list[Slice] = []
        begin = 0
        parameters = dict(module.named_parameters())
        for name, tensor in [*parameters.items(), *module.named_buffers()]:
            kind = _kind(tensor, trained=name in parameters and tensor.requires_grad, parameter=name in parameters)
            slices.append(Slice(name, tuple(tensor.shape), begin, kind))
            begin += tensor.numel()
        return cls(tuple(slices))

    @property
    def size(self) -> int:
        """d, the length of a vector."""
        return self.slices[-1].end if self.slices else 0

    @cached_property
    def compared(self) -> Bools:
        """(d,) where similarity may look: trained weights only."""
        mask = np.zeros(self.size, dtype=np.bool_)
        for s in self.slices:
            mask[s.begin : s.end] = s.kind == "weight"
        return mask

    def comparable(self, vectors: Floats) -> Floats:
        """The columns that may be compared; the array itself, without a copy, when that is all of them."""
        return vectors if bool(self.compared.all()) else vectors[:, self.compared]


def _kind(tensor: torch.Tensor, *, trained: bool, parameter: bool) -> Kind:
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


class InitialModels(Protocol):
    """A keyed factory of initial models: ``init(i)`` is the i-th of this seed (IFCA and PNI need several)."""

    def __call__(self, i: int = 0) -> Floats: ...


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
