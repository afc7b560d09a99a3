"""Layouts: what each slice of a model's flat vector, and of a sample's row, is.

All that crosses the wire is a flat vector: the module's trained parameters in order, then its buffers; frozen parameters are not in it.
The layout separates what must not be treated alike: statistics (batch norm's running moments) and counters are averaged but never compared.

Samples of several inputs (tokens and numbers, an image and its text) are one row of float32 numbers; only the module splits the row again.
float32 holds token numbers up to 2^24 exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, Literal, Protocol

import numpy as np

from coterie._util.errors import UserError
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


MAX_TOKEN = 1 << 24


MAX_AXES, MAX_AXIS_SIZE = 16, 1 << 31  # of the shape that a file says a sample has


@dataclass(frozen=True)
class Inputs:
    """The inputs of a sample in the order in which they lie in a row; with names a module takes them by keyword, else by position."""

    shapes: tuple[tuple[int, ...], ...]
    tokens: tuple[bool, ...]  # whether they are whole numbers
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Sequence[Any] | Mapping[str, Any], where: str) -> "Inputs":
        """The layout of arrays that all have a row a sample; a list of single numbers is a column."""
        names = tuple(map(str, given)) if isinstance(given, Mapping) else ()
        arrays = _to_arrays(given)
        for place, array in enumerate(arrays):
            name = names[place] if names else str(place)
            if array.ndim == 0 or array.dtype.kind not in "fiub" or not all(array.shape[1:]):
                raise UserError(f"{where}: the input {name!r} should be numbers, a row a sample, not {array.dtype} of shape {array.shape}.")
        counts = [len(array) for array in arrays]
        if len(set(counts)) != 1:
            raise UserError(f"{where}: its inputs have {', '.join(map(str, counts))} rows: each needs one for every sample.")
        return cls(tuple(array.shape[1:] or (1,) for array in arrays), tuple(array.dtype.kind in "iu" for array in arrays), names)

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
        """What a factory is told as `input_shape`: the shapes by name, or in their order."""
        return dict(zip(self.names, self.shapes, strict=True)) if self.names else self.shapes

    def pack(self, given: Sequence[Any] | Mapping[str, Any], where: str) -> Floats:
        """(n, width) rows of what is given as these inputs."""
        if isinstance(given, Mapping) != bool(self.names) or (self.names and set(given) != set(self.names)):
            wanted = f"a dictionary of {', '.join(self.names)}" if self.names else f"a tuple of {len(self.shapes)} arrays"
            raise UserError(f"{where}: the model takes {wanted}.")
        arrays = _to_arrays({name: given[name] for name in self.names} if isinstance(given, Mapping) else given)
        found = Inputs.of(dict(zip(self.names, arrays, strict=True)) if self.names else arrays, where)
        if found.shapes != self.shapes:
            raise UserError(f"{where}: samples have the shapes {_format_shapes(found)}, and the model takes {_format_shapes(self)}.")
        rows = np.empty((len(arrays[0]), self.width), dtype=np.float32)
        for array, piece, whole in zip(arrays, self.pieces, self.tokens, strict=True):
            if whole:
                _check_tokens(array, where)
            rows[:, piece] = array.reshape(len(array), -1)
        return rows

    def unpack(self, rows: Array) -> tuple[Array, ...] | dict[str, Array]:
        """The inputs of rows again."""
        found = [rows[:, piece].reshape(len(rows), *shape) for piece, shape in zip(self.pieces, self.shapes, strict=True)]
        typed = [each.astype(np.int64) if whole else each for each, whole in zip(found, self.tokens, strict=True)]
        return dict(zip(self.names, typed, strict=True)) if self.names else tuple(typed)

    def told(self) -> dict[str, Any]:
        """As plain values, for a federation's provenance and a bundle."""
        return {"shapes": [list(shape) for shape in self.shapes], "tokens": list(self.tokens), "names": list(self.names)}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Inputs":
        """From what `told` gave."""
        shapes = tuple(tuple(map(int, shape)) for shape in told["shapes"])
        if not all(len(shape) <= MAX_AXES and all(0 < size <= MAX_AXIS_SIZE for size in shape) for shape in shapes):
            raise ValueError("inputs of a shape that no sample has")  # before sizes are multiplied: the product of many has any length
        made = cls(shapes, tuple(map(bool, told["tokens"])), tuple(map(str, told["names"])))
        if not shapes or len(made.tokens) != len(shapes) or len(made.names) not in (0, len(shapes)) or min(map(prod, shapes)) < 1:
            raise ValueError("inputs that contradict themselves")
        return made


InputShape = tuple[int, ...] | Inputs  # the shape of a sample, or of its several inputs


def has_several_inputs(given: Any) -> bool:
    """Whether samples are given as several inputs: a dictionary, or a tuple of arrays of which each has a row a sample."""
    if isinstance(given, Mapping):
        return True
    return isinstance(given, tuple) and all(np.ndim(each) >= 1 and hasattr(each, "shape") for each in given) and len(given) > 0


def _to_arrays(given: Sequence[Any] | Mapping[str, Any]) -> list[Array]:
    return [np.asarray(each) for each in (given.values() if isinstance(given, Mapping) else given)]


def _check_tokens(array: Array, where: str) -> None:
    if array.size and (array.min() < 0 or array.max() > MAX_TOKEN or (array.dtype.kind == "f" and (array != np.round(array)).any())):
        raise UserError(f"{where}: whole numbers that stand for words should lie between 0 and {MAX_TOKEN:,}; give amounts as floats.")


def _format_shapes(inputs: Inputs) -> str:
    names = inputs.names or tuple(map(str, range(len(inputs.shapes))))
    return ", ".join(f"{name}: {shape}" for name, shape in zip(names, inputs.shapes, strict=True))
