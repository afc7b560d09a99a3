"""What each slice of a model's flat vector is.

Everything that crosses the wire is such a vector: the module's trained parameters in order, then its buffers; what is frozen is not in it.
The layout keeps apart what must not be treated alike: statistics (batch norm's running moments) are averaged but never compared, and
counters (integer buffers) likewise.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, Protocol

import numpy as np

from coterie.core.arrays import Bools, Floats

TensorKind = Literal["weight", "statistic", "counter"]


@dataclass(frozen=True)
class Slice:
    """One tensor of the model inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    begin: int
    kind: TensorKind
    norm: bool = False  # whether it is part of a batch norm: its scale and shift, its statistics, its counter

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def end(self) -> int:
        return self.begin + self.size


@dataclass(frozen=True)
class Layout:
    """The slices of a model's vector, in order."""

    slices: tuple[Slice, ...]

    @property
    def size(self) -> int:
        """d, the length of a vector."""
        return self.slices[-1].end if self.slices else 0

    @property
    def weights(self) -> tuple[Slice, ...]:
        """The trained slices."""
        return tuple(s for s in self.slices if s.kind == "weight")

    @cached_property
    def compared(self) -> Bools:
        """(d,) where similarity may look: trained weights only."""
        mask = np.zeros(self.size, dtype=np.bool_)
        for s in self.weights:
            mask[s.begin : s.end] = True
        return mask

    def comparable(self, vectors: Floats) -> Floats:
        """The columns that may be compared: a view where they lie together, as a module's trained weights do; otherwise a copy."""
        last = self.weights[-1].end if self.weights else 0
        if bool(self.compared[:last].all()):
            return vectors if last == self.size else vectors[:, :last]
        return vectors[:, self.compared]


class InitialModels(Protocol):
    """A keyed factory of initial models: ``init(i)`` is the i-th of this seed (IFCA and PNI need several)."""

    def __call__(self, i: int = 0) -> Floats: ...
