"""Vectors that stay on the device where they were computed until their numbers are needed on the host.

The server's work on replies (finite, update norms, weighted means, inner products) is done where they are. To all other code they are an
array: NumPy fetches them once, at first use.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from coterie.core.arrays import Array, Bools, Doubles, Floats, Ints

if TYPE_CHECKING:
    from coterie.core.layout import NeuronLayer
    from coterie.core.mixing import MixedTensor


class Vectors(NDArrayOperatorsMixin, ABC):
    """(n, d) trained models, float32, and how far each is from the model that its client was sent.

    Rows, and columns that lie together, can be chosen where they are; every other question that an array can be asked goes to the numbers
    fetched.
    """

    dtype, ndim = np.dtype(np.float32), 2
    shape: tuple[int, int]
    moved: Doubles  # (n,) of whole models, also where columns of them were chosen; not finite where one of the row's numbers is not

    def __init__(self, shape: tuple[int, int], moved: Doubles, at_hand: Floats | None = None) -> None:
        self.shape, self.moved = shape, moved
        self.at_hand = at_hand  # the numbers, where they are so few that they came along at once: then the host mixes them as fast
        self._fetched = at_hand
        self._parts: dict[tuple[int, int, int], Vectors] = {}  # columns that were asked for: they are fetched once, too

    @abstractmethod
    def fetch(self) -> Floats:
        """(n, d) the numbers, as an array of the host."""

    @abstractmethod
    def rows(self, chosen: Ints | slice) -> "Vectors":
        """These rows, where they are."""

    @abstractmethod
    def columns(self, chosen: slice) -> "Vectors":
        """These columns of all rows, where they are."""

    @abstractmethod
    def mixed(self, parts: "Sequence[MixedTensor]", order: Ints, before: Floats) -> Floats:
        """What `mix` promises, to the bit, for these rows in this order: (k, d)."""

    @abstractmethod
    def gram(self, origin: Floats | None) -> Doubles:
        """(n, n) inner products of the rows, or of their differences from `origin`; products and sums in float64."""

    @abstractmethod
    def dots(self, directions: Doubles, origin: Floats | None) -> Doubles:
        """(n,) or (n, m) inner products of the rows (less `origin`) with one direction, or with each of m, in float64."""

    @abstractmethod
    def lengths(self, origin: Floats | Doubles | None) -> Doubles:
        """(n,) the Euclidean norm of each row (less `origin`), in float64."""

    @abstractmethod
    def averaged(self) -> Doubles:
        """(d,) the plain mean of the rows, in float64."""

    @abstractmethod
    def squares_to(self, points: Floats | Doubles) -> Doubles:
        """(n, K) the squared distance of each row from each of K points, in float64 and from the differences themselves."""

    @abstractmethod
    def trimmed(self, cut: int) -> tuple[Floats, Doubles]:
        """(d,) the mean of each column without its `cut` lowest and highest values, and (n,) how much of it each row made up."""

    @abstractmethod
    def below(self, row: Floats) -> "Vectors":
        """This row less each of these: (n, d) differences in float32, where the rows are."""

    @abstractmethod
    def above(self, row: Floats) -> "Vectors":
        """Each of these less this row: (n, d) differences in float32, where the rows are."""

    @abstractmethod
    def matched(self, layers: "Sequence[NeuronLayer]", references: Floats, which: Ints) -> "tuple[Vectors, Bools]":
        """The rows with their hidden neurons in the order of their reference (row ``which[i]``), and (n,) which have changed by that."""

    @abstractmethod
    def placed(self, where: Ints, among: Floats, count: int) -> Floats:
        """(count, d) a table of which row i of these is row ``where[i]``, and `among` the others: the first ones."""

    @property
    def finite(self) -> Bools:
        """(n,) whether all of a row's numbers are."""
        return np.asarray(np.isfinite(self.moved))

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    def as_array(self) -> Floats:
        """Itself, where an array is expected."""
        return cast("Floats", self)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Floats]:
        return iter(self._host())

    def __getitem__(self, chosen: Any) -> Any:
        if isinstance(chosen, slice):
            return self.rows(chosen)
        if isinstance(chosen, np.ndarray) and chosen.ndim == 1:
            numbers = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
            return self if np.array_equal(numbers, np.arange(len(self))) else self.rows(numbers)  # all of them need no second stack
        if self._fetched is None and (part := _get_column_slice(chosen)) is not None:
            ends = part.indices(self.shape[1])
            if ends not in self._parts:
                self._parts[ends] = self.columns(part)
            return self._parts[ends]
        return self._host()[chosen]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # neither half-made objects nor NumPy's protocols are to fetch anything
            raise AttributeError(name)
        return getattr(self._host(), name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._host(), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc is np.subtract and method == "__call__" and inputs[1] is self and self._fetched is None and not options:
            row = inputs[0]
            if isinstance(row, np.ndarray) and row.dtype == np.float32 and row.shape in ((self.shape[1],), (1, self.shape[1])):
                return self.below(row)
        return getattr(ufunc, method)(*(np.asarray(x) if isinstance(x, Vectors) else x for x in inputs), **options)

    def _host(self) -> Floats:
        if self._fetched is None:
            self._fetched = self.fetch()
        return self._fetched


def place_rows(rows: Floats, where: Ints, among: Floats, count: int) -> Floats:
    """What `Vectors.placed` promises, of an array."""
    found = np.empty((count, rows.shape[1]), dtype=np.float32)
    found[: len(among)] = among
    found[where] = rows
    return found


def subtract_row(vectors: Floats, row: Floats) -> Floats:
    """(n, d) the vectors less one row, made where they are: by name, since who writes ``vectors - row`` is to get an array to write in."""
    held = on_device(vectors)
    return vectors - row if held is None else held.above(row).as_array()


def on_device(vectors: Array) -> Vectors | None:
    """Rows that are held, and not at hand: what is made of them is made where they are."""
    return vectors if isinstance(vectors, Vectors) and vectors.at_hand is None else None


def _get_column_slice(chosen: Any) -> slice | None:
    """Which columns an index asks for of all rows; none where it asks for something else."""
    if isinstance(chosen, tuple) and len(chosen) == 2 and isinstance(chosen[0], slice) and chosen[0] == slice(None):
        return chosen[1] if isinstance(chosen[1], slice) else None
    return None
