"""Vectors that stay on a device while the server works with them: acceptance, mixing and similarity are computed there.

The bits of a weighted sum are those of `coterie.core.mixing.mix`: in float64, one product and one sum after the other, rounded once.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Bools, Doubles, Floats, Ints
from coterie.core.layout import NeuronLayer
from coterie.core.mixing import MixedTensor
from coterie.core.vectors import Vectors, place_rows
from coterie.engines.device import as_tensor, fetch_small, fetch_tensor, has_room_for
from coterie.grouping.assignment import MARGIN, find_best_assignment


class SumTerms(NamedTuple):
    """What one sum is made of: rows in their order, and the weight of each, none of them nought."""

    rows: Ints
    weights: Doubles

    @classmethod
    def of(cls, weights: Doubles, order: Ints) -> "SumTerms":
        counted = order[weights[order] != 0.0]
        return cls(counted, weights[counted])


@torch.no_grad()
def compute_weighted_sums(into: Tensor, vectors: Tensor, before: Tensor, replies: Sequence[SumTerms], kept: Sequence[SumTerms]) -> None:
    """Row j of `into` (k, w) becomes the sum of its terms over `vectors` (n, w), then of those over `before` (k0, w)."""
    for rows, terms in ((vectors, replies), (before, kept)):
        if max((int(t.rows.max(initial=-1)) for t in terms), default=-1) >= len(rows):  # a kernel would not notice
            raise ValueError(f"weights of more rows than the {len(rows)} there are")
    if into.is_cuda and _has_triton():
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
    if vectors.is_cuda and _has_triton():
        from coterie.engines.device_vectors_gpu import compute_squared_distances_on_gpu

        return np.sqrt(compute_squared_distances_on_gpu(vectors, models, start))
    return np.array([float(torch.dist(row.double(), models[which].double())) for row, which in zip(vectors, start, strict=True)])


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


TOGETHER = 1 << 25  # numbers of a layer of several models that are multiplied at a time


@torch.no_grad()
def match_neurons(tensor: Tensor, layers: Sequence[NeuronLayer], references: Tensor, which: Ints) -> tuple[Tensor, Bools]:
    """(n, d) the models with their hidden neurons in the order of row ``which[i]`` of the references; (n,) which have changed by that."""
    made, changed = tensor, np.zeros(len(tensor), dtype=np.bool_)
    together = max(1, TOGETHER // max(max(layer.weight.size, layer.neurons**2) for layer in layers))  # weights, and products of pairs
    for k in np.unique(which):
        rows = np.flatnonzero(which == k)
        for begin in range(0, len(rows), together):
            some = rows[begin : begin + together]
            there = torch.as_tensor(some, device=tensor.device)
            before = tensor[there]
            part = _reorder_neurons(before, layers, references[int(k)][None])
            if part is not before:
                made = tensor.clone() if made is tensor else made
                made[there] = part
                changed[some] = fetch_small((part != before).any(dim=1))
    return made, changed


def _reorder_neurons(models: Tensor, layers: Sequence[NeuronLayer], reference: Tensor) -> Tensor:
    """These models (b, d), matched with one; the very tensor where all stay as they are."""
    made, order = models, None  # order[i, p] is the neuron, of the layer before, that stands for the reference's neuron p
    for layer in layers:
        incoming, found = _reorder_inputs(_get_weights(models, layer), order), None
        if layer is not layers[-1]:  # the outputs have names: they stay where they are
            found = _find_orders(
                _get_match_features(_get_weights(reference, layer), reference, layer)[0], _get_match_features(incoming, models, layer)
            )
        if found is not None:
            made = made.clone() if made is models else made
            incoming = torch.take_along_dim(incoming, found[:, :, None], dim=1)
            for piece in layer.own:
                made[:, piece.begin : piece.end] = torch.take_along_dim(models[:, piece.begin : piece.end], found, dim=1)
        if found is not None or order is not None:
            made[:, layer.weight.begin : layer.weight.end] = incoming.flatten(1)
        order = found
    return made


def _get_weights(models: Tensor, layer: NeuronLayer) -> Tensor:
    """(b, out, in ...) what comes in, in one row a neuron."""
    return models[:, layer.weight.begin : layer.weight.end].reshape(len(models), layer.neurons, -1)


def _reorder_inputs(weights: Tensor, order: Tensor | None) -> Tensor:
    """With the inputs reordered; where a convolution is flattened, each channel is a run of inputs (its pixels)."""
    if order is None:
        return weights
    by_channel = weights.reshape(*weights.shape[:2], order.shape[1], -1)
    return torch.take_along_dim(by_channel, order[:, None, :, None], dim=2).flatten(2)


def _get_match_features(incoming: Tensor, models: Tensor, layer: NeuronLayer) -> Tensor:
    """(b, out, f) what neurons are matched on: incoming weights, and trained numbers of their own."""
    own = [models[:, piece.begin : piece.end, None] for piece in layer.own if piece.kind == "weight"]
    return torch.cat([incoming, *own], dim=2).double()


def _find_orders(ours: Tensor, theirs: Tensor) -> Tensor | None:
    """(b, out) the order of each model's neurons; None where all have the reference's. See `grouping.assignment`."""
    products = ours @ theirs.transpose(1, 2)  # (b, out, out)
    near = products - theirs.square().sum(dim=2)[:, None] / 2
    lead = near.diagonal(dim1=1, dim2=2).clone()
    near.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    stays = fetch_small((lead > near.amax(dim=2) + MARGIN * lead.abs().amax(dim=1, keepdim=True)).all(dim=1))
    if stays.all():
        return None
    found = np.tile(np.arange(ours.shape[0]), (len(theirs), 1))
    for i in np.flatnonzero(~stays):
        found[i] = find_best_assignment(fetch_small(products[int(i)]))
    return torch.as_tensor(found, device=ours.device)


COLUMNS = 1 << 16  # in float64 at a time


SORTED = 1 << 24  # numbers that are sorted at a time


FEW = 1 << 16  # numbers of a model up to which all are fetched at once: starting a kernel for each lane would take longer than its sums


class DeviceVectors(Vectors):
    """(n, d) float32 rows of a tensor."""

    def __init__(self, tensor: Tensor, moved: Doubles, at_hand: Floats | None = None) -> None:
        super().__init__((tensor.shape[0], tensor.shape[1]), moved, at_hand)
        self._tensor = tensor

    @classmethod
    def trained(cls, tensor: Tensor, models: Tensor | Floats, start: Ints) -> "DeviceVectors":
        """Models after training, which row i began from row ``start[i]`` of `models`; all are measured at once."""
        sent = models if isinstance(models, Tensor) else to_device_tensor(models, tensor.device)
        moved = compute_distances(tensor, sent, as_tensor(start, tensor.device))
        return cls(tensor, moved, fetch_tensor(tensor) if tensor.shape[1] <= FEW else None)

    @classmethod
    def measured(cls, tensor: Tensor) -> "DeviceVectors":
        """Rows that began from nothing, gradients for instance: how far they have moved is their length."""
        plain = cls(tensor, np.zeros(len(tensor)))
        return cls(tensor, plain.lengths(None), fetch_tensor(tensor) if tensor.shape[1] <= FEW else None)

    def get_tensor(self, chosen: Ints | None = None) -> Tensor:
        """The tensor itself, or a copy of some of its rows."""
        return self._tensor if chosen is None else self._tensor[as_tensor(chosen, self._tensor.device)]

    def fetch(self) -> Floats:
        return fetch_tensor(self._tensor)

    def rows(self, chosen: Ints | slice) -> "DeviceVectors":
        where = chosen if isinstance(chosen, slice) else as_tensor(chosen, self._tensor.device)
        return DeviceVectors(self._tensor[where], self.moved[chosen], None if self.at_hand is None else self.at_hand[chosen])

    def columns(self, chosen: slice) -> "DeviceVectors":
        return DeviceVectors(self._tensor[:, chosen], self.moved, None if self.at_hand is None else self.at_hand[:, chosen])

    @torch.no_grad()
    def placed(self, where: Ints, among: Floats, count: int) -> Floats:
        if self.at_hand is not None or not has_room_for((count, self.shape[1]), self._tensor.device):
            return place_rows(np.asarray(self), where, among, count)
        if len(where) == count:
            return self._by_itself(np.argsort(where, kind="stable")).as_array()
        found, moved = self._tensor.new_empty((count, self.shape[1])), np.zeros(count)
        found[: len(among)] = to_device_tensor(among, self._tensor.device)
        found[as_tensor(where, self._tensor.device)] = self._tensor
        moved[where] = self.moved
        return DeviceVectors(found, moved).as_array()

    def _by_itself(self, order: Ints) -> "DeviceVectors":
        """The rows in this order, without the rest of a larger tensor that they are a part of: who keeps them would keep all of it."""
        alone = 2 * self._tensor.nbytes > self._tensor.untyped_storage().nbytes()
        return self if alone and np.array_equal(order, np.arange(len(self))) else self.rows(order)

    def mixed(self, parts: Sequence[MixedTensor], order: Ints, before: Floats) -> Floats:
        used = any(part.before.any() for part in parts)
        old = as_tensor(before, self._tensor.device) if used else self._tensor[:0]
        found = torch.empty((len(parts[0].replies), self.shape[1]), device=self._tensor.device)
        for part in parts:
            columns = slice(part.begin, part.end)
            terms = [SumTerms.of(row, order) for row in part.replies], [SumTerms.of(row, np.arange(len(row))) for row in part.before]
            compute_weighted_sums(found[:, columns], self._tensor[:, columns], old[:, columns], *terms)
        return fetch_tensor(found)

    @torch.no_grad()
    def gram(self, origin: Floats | None) -> Doubles:
        return self._sum_blocks((len(self), len(self)), (block @ block.T for _, block in self._blocks(origin)))

    @torch.no_grad()
    def dots(self, directions: Doubles, origin: Floats | None) -> Doubles:
        along = torch.as_tensor(directions.T, device=self._tensor.device)  # (d,) or (d, m)
        return self._sum_blocks((len(self), *along.shape[1:]), (block @ along[part] for part, block in self._blocks(origin)))

    @torch.no_grad()
    def lengths(self, origin: Floats | Doubles | None) -> Doubles:
        return np.sqrt(self._sum_blocks((len(self),), (block.square_().sum(dim=1) for _, block in self._blocks(origin))))

    @torch.no_grad()
    def averaged(self) -> Doubles:
        found = torch.empty(self.shape[1], dtype=torch.float64, device=self._tensor.device)
        for part, block in self._blocks(None):
            found[part] = block.mean(dim=0)
        return np.asarray(fetch_tensor(found))

    @torch.no_grad()
    def squares_to(self, points: Floats | Doubles) -> Doubles:
        there = as_tensor(points, self._tensor.device)
        blocks = (_compute_squared_distances(block, there[:, part].double()) for part, block in self._blocks(None))
        return self._sum_blocks((len(self), len(points)), blocks)

    @torch.no_grad()
    def trimmed(self, cut: int) -> tuple[Floats, Doubles]:
        n, d = self.shape
        mean = torch.empty(d, device=self._tensor.device)
        counted = torch.zeros(n, dtype=torch.int64, device=self._tensor.device)
        for begin in range(0, d, columns := max(8, min(COLUMNS, SORTED // n))):
            values, order = torch.sort(self._tensor[:, begin : begin + columns], dim=0, stable=True)
            mean[begin : begin + columns] = values[cut : n - cut].double().mean(dim=0)
            counted += torch.bincount(order[cut : n - cut].flatten(), minlength=n)
        shares = fetch_small(counted.double())
        return fetch_tensor(mean), np.asarray(shares / shares.sum())

    @torch.no_grad()
    def below(self, row: Floats) -> "DeviceVectors":
        return DeviceVectors.measured(as_tensor(np.ravel(row), self._tensor.device) - self._tensor)

    @torch.no_grad()
    def above(self, row: Floats) -> "DeviceVectors":
        return DeviceVectors.measured(self._tensor - as_tensor(np.ravel(row), self._tensor.device))

    def matched(self, layers: Sequence[NeuronLayer], references: Floats, which: Ints) -> "tuple[DeviceVectors, Bools]":
        made, changed = match_neurons(self._tensor, layers, as_tensor(references, self._tensor.device), which)
        return DeviceVectors(made, self.moved), changed

    def _blocks(self, origin: Floats | Doubles | None) -> Iterator[tuple[slice, Tensor]]:
        """Some columns at a time in float64, less the origin's: the stack is never copied whole."""
        flat = None if origin is None else torch.as_tensor(np.ravel(origin), device=self._tensor.device, dtype=torch.float64)
        for begin in range(0, self.shape[1], COLUMNS):
            part = slice(begin, begin + COLUMNS)
            block = self._tensor[:, part].double()
            yield part, block if flat is None else block.sub_(flat[part])

    def _sum_blocks(self, shape: tuple[int, ...], blocks: Iterator[Tensor]) -> Doubles:
        total = torch.zeros(shape, dtype=torch.float64, device=self._tensor.device)
        for block in blocks:
            total += block
        return fetch_small(total)


def _compute_squared_distances(block: Tensor, points: Tensor) -> Tensor:
    """(n, K) squared distances in some columns: by differences, since products of what is long would lose what is between them."""
    return torch.stack([(block - point).square_().sum(dim=1) for point in points], dim=1)


def to_device_tensor(models: Floats, device: torch.device) -> Tensor:
    """(k, d) on a device: what is held there is not fetched and sent again."""
    return models._tensor.to(device) if isinstance(models, DeviceVectors) else as_tensor(np.ascontiguousarray(models), device)
