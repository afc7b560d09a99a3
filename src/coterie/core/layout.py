"""Layouts: what each slice of a model's flat vector, and of a sample's row, is.

All that crosses the wire is a flat vector: the module's trained parameters in order, then its buffers; frozen parameters are not in it.
The layout separates what must not be treated alike: statistics (batch norm's running moments) and counters are averaged but never compared.

Samples of several inputs (tokens and numbers, an image and its text) are one row of float32 numbers; only the module splits the row again.
float32 holds token numbers up to 2^24 exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, Literal, Protocol

import numpy as np

from coterie.core.arrays import Array, Bools, Floats

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
    def head(self) -> tuple[Slice, ...]:
        """The last dense layer; empty where none is trained."""
        dense = [s.name.rpartition(".")[0] for s in self.weights if len(s.shape) == 2 and s.name.rpartition(".")[2] == "weight"]
        return tuple(s for s in self.slices if dense and s.name.rpartition(".")[0] == dense[-1])

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


MAX_AXES, MAX_AXIS_SIZE = 16, 1 << 31  # of the shape that a file gives a sample


@dataclass(frozen=True)
class Inputs:
    """The inputs of a sample in the order in which they lie in a row; with names a module takes them by keyword, else by position."""

    shapes: tuple[tuple[int, ...], ...]
    tokens: tuple[bool, ...]  # whether they are whole numbers
    names: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return sum(map(prod, self.shapes))

    @property
    def pieces(self) -> list[slice]:
        """Where each input lies in a row."""
        ends = np.cumsum([0, *map(prod, self.shapes)]).tolist()
        return [slice(begin, end) for begin, end in pairwise(ends)]

    @property
    def shape(self) -> tuple[tuple[int, ...], ...] | dict[str, tuple[int, ...]]:
        """What a factory gets as `input_shape`: the shapes by name, or in their order."""
        return dict(zip(self.names, self.shapes, strict=True)) if self.names else self.shapes

    def unpack(self, rows: Array) -> tuple[Array, ...] | dict[str, Array]:
        """The inputs of rows again."""
        found = [rows[:, piece].reshape(len(rows), *shape) for piece, shape in zip(self.pieces, self.shapes, strict=True)]
        typed = [each.astype(np.int64) if whole else each for each, whole in zip(found, self.tokens, strict=True)]
        return dict(zip(self.names, typed, strict=True)) if self.names else tuple(typed)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a federation's provenance and a bundle."""
        return {"shapes": [list(shape) for shape in self.shapes], "tokens": list(self.tokens), "names": list(self.names)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Inputs":
        """The inverse of `to_dict`."""
        shapes = tuple(tuple(map(int, shape)) for shape in stored["shapes"])
        if not all(len(shape) <= MAX_AXES and all(0 < size <= MAX_AXIS_SIZE for size in shape) for shape in shapes):
            raise ValueError("inputs of a shape that no sample has")  # before sizes are multiplied: the product of many has any length
        made = cls(shapes, tuple(map(bool, stored["tokens"])), tuple(map(str, stored["names"])))
        if not shapes or len(made.tokens) != len(shapes) or len(made.names) not in (0, len(shapes)) or min(map(prod, shapes)) < 1:
            raise ValueError("inputs that contradict themselves")
        return made


InputShape = tuple[int, ...] | Inputs  # the shape of a sample, or of its several inputs


def count_numbers(shape: InputShape) -> int:
    """How many numbers a sample has."""
    return shape.width if isinstance(shape, Inputs) else prod(shape)
