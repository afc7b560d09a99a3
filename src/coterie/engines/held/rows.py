"""Rows of a tensor as replies hold them: what acceptance, mixing and similarity need is computed on the tensor's device."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Bools, Doubles, Floats, Ints
from coterie.core.held import Held, placed_on_host
from coterie.core.mixing import MixedTensor
from coterie.core.neurons import NeuronLayer
from coterie.engines.free_memory import room_for
from coterie.engines.held.matching import matched_rows
from coterie.engines.held.sums import Terms, distances, weighted_sum
from coterie.engines.tensors import as_tensor, fetched, read_off

COLUMNS = 1 << 16  # in float64 at a time
SORTED = 1 << 24  # numbers that are sorted at a time
FEW = 1 << 16  # numbers of a model up to which all are fetched at once: starting a kernel for each lane would take longer than its sums


class TensorRows(Held):
    """(n, d) float32 rows of a tensor."""

    def __init__(self, tensor: Tensor, moved: Doubles, at_hand: Floats | None = None) -> None:
        super().__init__((tensor.shape[0], tensor.shape[1]), moved, at_hand)
        self._tensor = tensor

    @classmethod
    def trained(cls, tensor: Tensor, models: Tensor | Floats, start: Ints) -> "TensorRows":
        """Models after training, which row i began from row ``start[i]`` of `models`; all are measured at once."""
        sent = models if isinstance(models, Tensor) else tensor_of(models, tensor.device)
        moved = distances(tensor, sent, as_tensor(start, tensor.device))
        return cls(tensor, moved, fetched(tensor) if tensor.shape[1] <= FEW else None)

    @classmethod
    def measured(cls, tensor: Tensor) -> "TensorRows":
        """Rows that began from nothing, gradients for instance: how far they have moved is their length."""
        plain = cls(tensor, np.zeros(len(tensor)))
        return cls(tensor, plain.lengths(None), fetched(tensor) if tensor.shape[1] <= FEW else None)

    def there(self, chosen: Ints | None = None) -> Tensor:
        """The tensor itself, or a copy of some of its rows."""
        return self._tensor if chosen is None else self._tensor[as_tensor(chosen, self._tensor.device)]

    def fetch(self) -> Floats:
        return fetched(self._tensor)

    def rows(self, chosen: Ints | slice) -> "TensorRows":
        where = chosen if isinstance(chosen, slice) else as_tensor(chosen, self._tensor.device)
        return TensorRows(self._tensor[where], self.moved[chosen], None if self.at_hand is None else self.at_hand[chosen])

    def columns(self, chosen: slice) -> "TensorRows":
        return TensorRows(self._tensor[:, chosen], self.moved, None if self.at_hand is None else self.at_hand[:, chosen])

    @torch.no_grad()
    def placed(self, where: Ints, among: Floats, count: int) -> Floats:
        if self.at_hand is not None or not room_for((count, self.shape[1]), self._tensor.device):
            return placed_on_host(np.asarray(self), where, among, count)
        if len(where) == count:
            return self._by_itself(np.argsort(where, kind="stable")).as_array()
        found, moved = self._tensor.new_empty((count, self.shape[1])), np.zeros(count)
        found[: len(among)] = tensor_of(among, self._tensor.device)
        found[as_tensor(where, self._tensor.device)] = self._tensor
        moved[where] = self.moved
        return TensorRows(found, moved).as_array()

    def _by_itself(self, order: Ints) -> "TensorRows":
        """The rows in this order, without the rest of a larger tensor that they are a part of: who keeps them would keep all of it."""
        alone = 2 * self._tensor.nbytes > self._tensor.untyped_storage().nbytes()
        return self if alone and np.array_equal(order, np.arange(len(self))) else self.rows(order)

    def mixed(self, parts: Sequence[MixedTensor], order: Ints, before: Floats) -> Floats:
        used = any(part.before.any() for part in parts)
        old = as_tensor(before, self._tensor.device) if used else self._tensor[:0]
        found = torch.empty((len(parts[0].replies), self.shape[1]), device=self._tensor.device)
        for part in parts:
            columns = slice(part.begin, part.end)
            terms = [Terms.of(row, order) for row in part.replies], [Terms.of(row, np.arange(len(row))) for row in part.before]
            weighted_sum(found[:, columns], self._tensor[:, columns], old[:, columns], *terms)
        return fetched(found)

    @torch.no_grad()
    def gram(self, origin: Floats | None) -> Doubles:
        return self._summed((len(self), len(self)), (block @ block.T for _, block in self._blocks(origin)))

    @torch.no_grad()
    def dots(self, directions: Doubles, origin: Floats | None) -> Doubles:
        along = torch.as_tensor(directions.T, device=self._tensor.device)  # (d,) or (d, m)
        return self._summed((len(self), *along.shape[1:]), (block @ along[part] for part, block in self._blocks(origin)))

    @torch.no_grad()
    def lengths(self, origin: Floats | Doubles | None) -> Doubles:
        return np.sqrt(self._summed((len(self),), (block.square_().sum(dim=1) for _, block in self._blocks(origin))))

    @torch.no_grad()
    def averaged(self) -> Doubles:
        found = torch.empty(self.shape[1], dtype=torch.float64, device=self._tensor.device)
        for part, block in self._blocks(None):
            found[part] = block.mean(dim=0)
        return np.asarray(fetched(found))

    @torch.no_grad()
    def squares_to(self, points: Floats | Doubles) -> Doubles:
        there = as_tensor(points, self._tensor.device)
        blocks = (_squares(block, there[:, part].double()) for part, block in self._blocks(None))
        return self._summed((len(self), len(points)), blocks)

    @torch.no_grad()
    def trimmed(self, cut: int) -> tuple[Floats, Doubles]:
        n, d = self.shape
        mean = torch.empty(d, device=self._tensor.device)
        counted = torch.zeros(n, dtype=torch.int64, device=self._tensor.device)
        for begin in range(0, d, columns := max(8, min(COLUMNS, SORTED // n))):
            values, order = torch.sort(self._tensor[:, begin : begin + columns], dim=0, stable=True)
            mean[begin : begin + columns] = values[cut : n - cut].double().mean(dim=0)
            counted += torch.bincount(order[cut : n - cut].flatten(), minlength=n)
        shares = read_off(counted.double())
        return fetched(mean), np.asarray(shares / shares.sum())

    @torch.no_grad()
    def below(self, row: Floats) -> "TensorRows":
        return TensorRows.measured(as_tensor(np.ravel(row), self._tensor.device) - self._tensor)

    @torch.no_grad()
    def above(self, row: Floats) -> "TensorRows":
        return TensorRows.measured(self._tensor - as_tensor(np.ravel(row), self._tensor.device))

    def matched(self, layers: Sequence[NeuronLayer], references: Floats, which: Ints) -> "tuple[TensorRows, Bools]":
        made, changed = matched_rows(self._tensor, layers, as_tensor(references, self._tensor.device), which)
        return TensorRows(made, self.moved), changed

    def _blocks(self, origin: Floats | Doubles | None) -> Iterator[tuple[slice, Tensor]]:
        """Some columns at a time in float64, less the origin's: the stack is never copied whole."""
        flat = None if origin is None else torch.as_tensor(np.ravel(origin), device=self._tensor.device, dtype=torch.float64)
        for begin in range(0, self.shape[1], COLUMNS):
            part = slice(begin, begin + COLUMNS)
            block = self._tensor[:, part].double()
            yield part, block if flat is None else block.sub_(flat[part])

    def _summed(self, shape: tuple[int, ...], blocks: Iterator[Tensor]) -> Doubles:
        total = torch.zeros(shape, dtype=torch.float64, device=self._tensor.device)
        for block in blocks:
            total += block
        return read_off(total)


def _squares(block: Tensor, points: Tensor) -> Tensor:
    """(n, K) squared distances in some columns: by differences, since products of what is long would lose what is between them."""
    return torch.stack([(block - point).square_().sum(dim=1) for point in points], dim=1)


def tensor_of(models: Floats, device: torch.device) -> Tensor:
    """(k, d) on a device: what is held there is not fetched and sent again."""
    return models._tensor.to(device) if isinstance(models, TensorRows) else as_tensor(np.ascontiguousarray(models), device)
