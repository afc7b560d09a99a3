"""Vectors that stay on a device while the server works with them: acceptance, mixing and similarity are computed there.

The bits of a weighted sum are those of `coterie.core.mixing.mix`: in float64, one product and one sum after the other, rounded once.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.mixing import MixedTensor
from coterie.core.vectors import MAX_SORTED, HostVectors, Vectors
from coterie.engines.device import as_tensor, fetch_small, fetch_tensor, has_room_for, has_triton

COLUMNS = 1 << 16  # in float64 at a time
FEW = 1 << 16  # numbers of a model up to which all are fetched at once: starting a kernel for each lane would take longer than its sums


class SumTerms(NamedTuple):
    """The terms of one sum: rows in their order, and the weight of each, none of them zero."""

    rows: Ints
    weights: Doubles

    @classmethod
    def from_weights(cls, weights: Doubles, order: Ints) -> "SumTerms":
        counted = order[weights[order] != 0.0]
        return cls(counted, weights[counted])


@torch.no_grad()
def compute_weighted_sums(into: Tensor, vectors: Tensor, before: Tensor, replies: Sequence[SumTerms], kept: Sequence[SumTerms]) -> None:
    """Row j of `into` (k, w) becomes the sum of its terms over `vectors` (n, w), then of those over `before` (k0, w)."""
    for rows, terms in ((vectors, replies), (before, kept)):
        if max((int(t.rows.max(initial=-1)) for t in terms), default=-1) >= len(rows):  # a kernel would not notice
            raise ValueError(f"weights of more rows than the {len(rows)} there are")
    if into.is_cuda and has_triton():
        from coterie.engines.device_vectors_gpu import compute_weighted_sums_on_gpu

        compute_weighted_sums_on_gpu(into, vectors, before, replies, kept)
        return
    for j in range(len(into)):
        total = torch.zeros(into.shape[1], dtype=torch.float64, device=into.device)
        for table, own in ((vectors, replies[j]), (before, kept[j])):
            for row, weight in zip(*own, strict=True):
                total += table[int(row)].double() * float(weight)
        into[j] = total


@torch.no_grad()
def compute_distances(vectors: Tensor, models: Tensor, start: Tensor) -> Doubles:
    """(n,) how far row i of `vectors` (n, d) is from row ``start[i]`` of `models`, in float64; its bits do not depend on the other rows."""
    if vectors.is_cuda and has_triton():
        from coterie.engines.device_vectors_gpu import compute_squared_distances_on_gpu

        return np.sqrt(compute_squared_distances_on_gpu(vectors, models, start))
    return np.array([float(torch.dist(row.double(), models[which].double())) for row, which in zip(vectors, start, strict=True)])


class DeviceVectors(NDArrayOperatorsMixin, Vectors):
    """(n, d) float32 rows of a tensor; an array to code that knows no better, which NumPy fetches once.

    Rows, and columns that lie together, can be chosen where they are; every other question that an array can be asked goes to the numbers
    fetched.

    Args:
        tensor: (n, d) the rows.
        update_norms: (n,) of whole models, also where columns of them are chosen.
        host_copy: The numbers, where they are so few that they were fetched at once: then the host works on them as fast.
    """

    xp = torch
    dtype, ndim = np.dtype(np.float32), 2
    update_norms: Doubles

    def __init__(self, tensor: Tensor, update_norms: Doubles, host_copy: Floats | None = None) -> None:
        self.values, self.update_norms, self.host_copy = tensor, update_norms, host_copy
        self.shape = (tensor.shape[0], tensor.shape[1])
        self._fetched = host_copy
        self._columns: dict[tuple[int, int, int], DeviceVectors] = {}  # columns that were asked for: they are fetched once, too

    @classmethod
    def from_training(cls, tensor: Tensor, models: Tensor | Floats, start: Ints) -> "DeviceVectors":
        """Models after training, of which row i started from row ``start[i]`` of `models`; all are measured at once."""
        sent = models if isinstance(models, Tensor) else to_device_tensor(models, tensor.device)
        moved = compute_distances(tensor, sent, as_tensor(start, tensor.device))
        return cls(tensor, moved, fetch_tensor(tensor) if tensor.shape[1] <= FEW else None)

    @classmethod
    def from_gradients(cls, tensor: Tensor) -> "DeviceVectors":
        """Rows that started from zero, gradients for instance: their norm is the distance they moved."""
        norms = cls(tensor, np.zeros(len(tensor))).norms()
        return cls(tensor, norms, fetch_tensor(tensor) if tensor.shape[1] <= FEW else None)

    def get_tensor(self, chosen: Ints | None = None) -> Tensor:
        """The tensor itself, or a copy of some of its rows."""
        values: Tensor = self.values
        return values if chosen is None else values[as_tensor(chosen, values.device)]

    def fetch(self) -> Floats:
        """(n, d) the numbers, fetched now."""
        return fetch_tensor(self.values)

    def to_host(self) -> Floats:
        if self._fetched is None:
            self._fetched = self.fetch()
        return self._fetched

    def send(self, array: Array) -> Tensor:
        return as_tensor(array, self.values.device)

    def bring(self, values: Tensor, *, few: bool = False) -> Array:
        return fetch_small(values) if few else fetch_tensor(values)

    def wrap(self, values: Tensor) -> Floats:
        return DeviceVectors(values, self.update_norms).as_array()

    def rows(self, chosen: Ints | slice) -> "DeviceVectors":
        where = chosen if isinstance(chosen, slice) else self.send(chosen)
        return DeviceVectors(self.values[where], self.update_norms[chosen], None if self.host_copy is None else self.host_copy[chosen])

    def columns(self, chosen: slice) -> "DeviceVectors":
        return DeviceVectors(self.values[:, chosen], self.update_norms, None if self.host_copy is None else self.host_copy[:, chosen])

    @torch.no_grad()
    def place_rows(self, where: Ints, among: Floats, count: int) -> Floats:
        if not has_room_for((count, self.shape[1]), self.values.device):
            return HostVectors(self.to_host()).place_rows(where, among, count)
        if len(where) == count:
            return self._copy_apart(np.argsort(where, kind="stable")).as_array()
        found, moved = self.values.new_empty((count, self.shape[1])), np.zeros(count)
        found[: len(among)] = to_device_tensor(among, self.values.device)
        found[self.send(where)] = self.values
        moved[where] = self.update_norms
        return DeviceVectors(found, moved).as_array()

    def _copy_apart(self, order: Ints) -> "DeviceVectors":
        """The rows in this order, without the rest of a larger tensor that they are a part of, which would stay in memory with them."""
        alone = 2 * self.values.nbytes > self.values.untyped_storage().nbytes()
        return self if alone and np.array_equal(order, np.arange(len(self))) else self.rows(order)

    @torch.no_grad()
    def subtract(self, row: Floats, *, reverse: bool = False) -> Floats:
        there = self.send(np.ravel(row))
        return DeviceVectors.from_gradients(there - self.values if reverse else self.values - there).as_array()

    def weighted_sums(self, parts: Sequence[MixedTensor], order: Ints, before: Floats) -> Floats:
        used = any(part.before.any() for part in parts)
        old = self.send(before) if used else self.values[:0]
        found = torch.empty((len(parts[0].replies), self.shape[1]), device=self.values.device)
        for part in parts:
            columns = slice(part.begin, part.end)
            terms = (
                [SumTerms.from_weights(row, order) for row in part.replies],
                [SumTerms.from_weights(row, np.arange(len(row))) for row in part.before],
            )
            compute_weighted_sums(found[:, columns], self.values[:, columns], old[:, columns], *terms)
        return fetch_tensor(found)

    @torch.no_grad()
    def inner_products(self, directions: Doubles | None = None, origin: Floats | None = None) -> Doubles:
        if directions is None:
            return self._sum_blocks((len(self), len(self)), (block @ block.T for _, block in self._blocks(origin)))
        along = torch.as_tensor(directions.T, device=self.values.device)  # (d,) or (d, m)
        return self._sum_blocks((len(self), *along.shape[1:]), (block @ along[part] for part, block in self._blocks(origin)))

    @torch.no_grad()
    def norms(self, origin: Floats | Doubles | None = None) -> Doubles:
        return np.sqrt(self._sum_blocks((len(self),), (block.square_().sum(dim=1) for _, block in self._blocks(origin))))

    @torch.no_grad()
    def squared_distances(self, points: Floats | Doubles) -> Doubles:
        there = self.send(points)

        def square(block: Tensor, part: slice) -> Tensor:
            """By differences, since products of long rows would lose the distances between them."""
            return torch.stack([(block - point).square_().sum(dim=1) for point in there[:, part].double()], dim=1)

        return self._sum_blocks((len(self), len(points)), (square(block, part) for part, block in self._blocks(None)))

    @torch.no_grad()
    def mean_row(self) -> Doubles:
        found = torch.empty(self.shape[1], dtype=torch.float64, device=self.values.device)
        for part, block in self._blocks(None):
            found[part] = block.mean(dim=0)
        return np.asarray(fetch_tensor(found))

    @torch.no_grad()
    def sorted_columns(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        n, d = self.shape
        for begin in range(0, d, step := max(8, min(COLUMNS, MAX_SORTED // n))):
            values, order = torch.sort(self.values[:, begin : begin + step], dim=0, stable=True)
            yield slice(begin, begin + step), values.double(), order

    def _blocks(self, origin: Floats | Doubles | None) -> Iterator[tuple[slice, Tensor]]:
        """Some columns at a time in float64, less the origin's: the stack is never copied whole."""
        flat = None if origin is None else torch.as_tensor(np.ravel(origin), device=self.values.device, dtype=torch.float64)
        for begin in range(0, self.shape[1], COLUMNS):
            part = slice(begin, begin + COLUMNS)
            block = self.values[:, part].double()
            yield part, block if flat is None else block.sub_(flat[part])

    def _sum_blocks(self, shape: tuple[int, ...], blocks: Iterator[Tensor]) -> Doubles:
        total = torch.zeros(shape, dtype=torch.float64, device=self.values.device)
        for block in blocks:
            total += block
        return fetch_small(total)

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    def as_array(self) -> Floats:
        """Itself, where an array is expected."""
        return cast("Floats", self)

    def __iter__(self) -> Iterator[Floats]:
        return iter(self.to_host())

    def __getitem__(self, chosen: Any) -> Any:
        if isinstance(chosen, slice):
            return self.rows(chosen)
        if isinstance(chosen, np.ndarray) and chosen.ndim == 1:
            numbers = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
            return self if np.array_equal(numbers, np.arange(len(self))) else self.rows(numbers)  # all of them need no second stack
        match chosen:
            case (slice() as rows, slice() as columns) if self._fetched is None and rows == slice(None):
                ends = columns.indices(self.shape[1])
                if ends not in self._columns:
                    self._columns[ends] = self.columns(columns)
                return self._columns[ends]
        return self.to_host()[chosen]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # neither half-made objects nor NumPy's protocols are to fetch anything
            raise AttributeError(name)
        return getattr(self.to_host(), name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.to_host(), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc is np.subtract and method == "__call__" and inputs[1] is self and self._fetched is None and not options:
            row = inputs[0]
            if isinstance(row, np.ndarray) and row.dtype == np.float32 and row.shape in ((self.shape[1],), (1, self.shape[1])):
                return self.subtract(row, reverse=True)
        return getattr(ufunc, method)(*(np.asarray(x) if isinstance(x, DeviceVectors) else x for x in inputs), **options)


def to_device_tensor(models: Floats, device: torch.device) -> Tensor:
    """(k, d) on a device: rows that are there already are not fetched and sent again."""
    return models.values.to(device) if isinstance(models, DeviceVectors) else as_tensor(np.ascontiguousarray(models), device)
