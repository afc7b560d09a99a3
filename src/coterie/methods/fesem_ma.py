"""FeSEM with matched averaging (Section 5.1): hidden neurons are put in the centre's order before models are compared or averaged.

Layer by layer, a model's inputs are put into the order found for the previous layer, and its neurons are matched with the reference's on
incoming weights and bias (Hungarian algorithm). The Indian-buffet prior of the original matched averaging, which lets a model have neurons
that the reference lacks, is omitted: every neuron has a partner.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie._util.errors import UserError
from coterie.core.arrays import Bools, Doubles, Floats, Ids, Ints
from coterie.core.asks import Trained
from coterie.core.layout import InitialModels, Layout, Slice
from coterie.core.method import Context, Round
from coterie.core.vectors import Vectors, as_vectors
from coterie.methods.fesem import FeSEM, FeSEMState

_CHAIN_LAYER_NAMES = re.compile(r"(.*\.)?\d+|first|second|dense|logits")  # Sequential, ModuleList (Mlp), and the layers of Cnn
MATCHED = 1 << 25  # numbers of a layer of several models that are multiplied at a time
MARGIN = 1e-9  # of the largest number: a lead that no rounding takes away


@dataclass(frozen=True)
class NeuronLayer:
    """A dense or convolutional layer: the weights (out, in, ...), and all that has one number for each of its neurons."""

    weight: Slice
    own: list[Slice] = field(default_factory=list)  # (out,) each: the bias, and a batch norm's scale, shift and statistics

    @property
    def neurons(self) -> int:
        return self.weight.shape[0]


def build_layer_chain(layout: Layout) -> tuple[NeuronLayer, ...]:
    """The model as a plain chain of layers, from the shapes and names of its slices; an error where it is not one."""
    layers: list[NeuronLayer] = []
    owner: dict[str, NeuronLayer] = {}  # by the name of the module: a batch norm belongs to the layer before it
    for piece in layout.slices:
        module, _, leaf = piece.name.rpartition(".")
        if len(piece.shape) >= 2 and leaf == "weight" and piece.kind == "weight" and _CHAIN_LAYER_NAMES.fullmatch(module):
            if layers and piece.shape[1] % layers[-1].neurons:
                raise _make_chain_error(piece)
            layers.append(NeuronLayer(piece))
            owner[module] = layers[-1]
        elif len(piece.shape) == 1 and layers and (module in owner or piece.kind == "weight"):
            layer = owner.setdefault(module, layers[-1])
            if piece.size != layer.neurons:
                raise _make_chain_error(piece)
            layer.own.append(piece)
        elif piece.size > 1:  # a counter has one number and no order
            raise _make_chain_error(piece)
    return tuple(layers)


def align_models(vectors: Floats, references: Floats, which: Ids, layers: Sequence[NeuronLayer]) -> tuple[Floats, Bools]:
    """(n, d) the same functions with their hidden neurons in the order that matches row ``which[i]`` of the references best.

    Returns:
        The models, the very same object where none changes, and (n,) which have changed.
    """
    rows = as_vectors(vectors)
    made, changed = rows.values, np.zeros(len(rows), dtype=np.bool_)
    together = max(1, MATCHED // max(max(layer.weight.size, layer.neurons**2) for layer in layers))  # weights, and products of pairs
    for k in np.unique(which):
        members = np.flatnonzero(which == k)
        reference = rows.send(references[int(k)][None])
        for begin in range(0, len(members), together):
            some = members[begin : begin + together]
            there = rows.send(some)
            before = rows.values[there]
            part = _match_neurons(rows, before, layers, reference)
            if part is not before:
                made = rows.xp.asarray(made, copy=True) if made is rows.values else made
                made[there] = part
                changed[some] = rows.bring((part != before).any(axis=1), few=True)
    return (vectors, changed) if made is rows.values else (rows.wrap(made), changed)


def compute_matching_costs(vectors: Floats, references: Floats, layers: Sequence[NeuronLayer], layout: Layout) -> Doubles:
    """(n, K) what is left of each model after matching it with each reference: the squared distance, the paper's matching score."""
    columns = []
    for k, reference in enumerate(references):
        aligned = as_vectors(layout.comparable(align_models(vectors, references, np.full(len(vectors), k), layers)[0]))
        xp, origin = aligned.xp, aligned.send(layout.comparable(reference[None]))
        together = max(1, MATCHED // origin.shape[1])
        squares = []
        for at in range(0, len(aligned), together):
            rows = xp.stack(list(aligned.values[at : at + together]))  # side by side, whatever columns were left out
            squares.append(((xp.asarray(rows, dtype=xp.float64) - origin) ** 2).sum(axis=1))
        columns.append(aligned.bring(xp.concatenate(squares), few=True) if squares else np.zeros(0))
    return np.stack(columns, axis=1)


def _match_neurons(rows: Vectors, models: Any, layers: Sequence[NeuronLayer], reference: Any) -> Any:
    """These models (b, d), in the library of the rows, matched with one reference (1, d); the same array where all stay as they are."""
    made, order = models, None  # order[i, p] is the neuron, of the layer before, that stands for the reference's neuron p
    b = rows.send(np.arange(len(models))[:, None])
    for layer in layers:
        incoming, found = _get_weights(models, layer), None
        if order is not None:  # where a convolution is flattened, each channel is a run of inputs (its pixels)
            by_channel = incoming.reshape(len(models), layer.neurons, order.shape[1], -1)
            out = rows.send(np.arange(layer.neurons)[:, None])
            incoming = by_channel[b[:, :, None], out, order[:, None, :]].reshape(len(models), layer.neurons, -1)
        if layer is not layers[-1]:  # the outputs have names: they stay where they are
            ours = _collect_features(rows, _get_weights(reference, layer), reference, layer)[0]
            found = _find_orders(rows, ours, _collect_features(rows, incoming, models, layer))
        if found is not None:
            made = rows.xp.asarray(models, copy=True) if made is models else made
            incoming = incoming[b, found]
            for piece in layer.own:
                made[:, piece.begin : piece.end] = models[:, piece.begin : piece.end][b, found]
        if found is not None or order is not None:
            made[:, layer.weight.begin : layer.weight.end] = incoming.reshape(len(models), -1)
        order = found
    return made


def _get_weights(models: Any, layer: NeuronLayer) -> Any:
    return models[:, layer.weight.begin : layer.weight.end].reshape(len(models), layer.neurons, -1)


def _collect_features(rows: Vectors, incoming: Any, models: Any, layer: NeuronLayer) -> Any:
    """(b, out, f) what neurons are matched on: incoming weights, and trained numbers of their own."""
    own = [models[:, piece.begin : piece.end, None] for piece in layer.own if piece.kind == "weight"]
    return rows.xp.asarray(rows.xp.concatenate([incoming, *own], axis=2), dtype=rows.xp.float64)


def _find_orders(rows: Vectors, ours: Any, theirs: Any) -> Any:
    """(b, out) the order of each model's neurons with the least summed squared distance from `ours`; None where all are in order.

    ||a - b||^2 = ||a||^2 + ||b||^2 - 2 <a, b>, and every neuron is used once, so only the inner products matter. A model is in order where
    each neuron is nearer to its own partner than to any other: ``<a, b> - ||b||^2 / 2`` is largest where ||a - b|| is least, and no other
    order has a larger sum. Then nothing need be searched.
    """
    products = ours @ theirs.swapaxes(1, 2)  # (b, out, out)
    near = products - (theirs * theirs).sum(axis=2)[:, None] / 2
    diagonal = rows.send(np.arange(len(ours)))
    lead = near[:, diagonal, diagonal]
    near[:, diagonal, diagonal] = -np.inf
    margin = MARGIN * rows.xp.amax(rows.xp.abs(lead), axis=1)
    stays = rows.bring((lead > rows.xp.amax(near, axis=2) + margin[:, None]).all(axis=1), few=True)
    if len(ours) < 2 or stays.all():
        return None
    found = np.tile(np.arange(len(ours)), (len(theirs), 1))
    for i in np.flatnonzero(~stays):
        found[i] = find_best_assignment(rows.bring(products[int(i)], few=True))
    return rows.send(found)


def find_best_assignment(products: Doubles) -> Ints:
    """(n,) the partner (column) of each row with the largest sum of products, by the Hungarian algorithm."""
    return np.asarray(linear_sum_assignment(products, maximize=True)[1], dtype=np.int64)


def _make_chain_error(piece: Slice) -> UserError:
    return UserError(
        f"Neurons can be matched in mlp, cnn and other plain chains of layers only, and {piece.name!r} of shape {piece.shape} "
        "does not fit one: use fesem instead of fesem_ma."
    )


@dataclass(frozen=True, kw_only=True)
class MatchedFeSEM(FeSEM):
    """FeSEM whose E-step distance is the matching cost and whose M-step averages matched neurons.

    The warm-up's models are matched with w_0, later ones with the centre they belong to.

    Example: ``ct.MatchedFeSEM(groups=4)``, or the spec ``fesem_ma(groups=4)``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.assign_on != "all":
            raise UserError(f"FeSEM-MA compares whole models: omit assign_on={self.assign_on!r}, or use fesem.")

    def start(self, init: InitialModels, ctx: Context) -> Round[FeSEMState]:
        build_layer_chain(ctx.layout)  # a model that cannot be matched is refused before any client is asked
        return super().start(init, ctx)

    def distances(self, vectors: Floats, centres: Floats, ctx: Context) -> Doubles:
        return compute_matching_costs(vectors, centres, build_layer_chain(ctx.layout), ctx.layout)

    def align(self, trained: Trained, own: Ids, centres: Floats, ctx: Context) -> Trained:
        layers = build_layer_chain(ctx.layout)
        if len(layers) == 1:  # outputs stay where they are
            ctx.note("reordered", 0)
            return trained
        moved, changed = align_models(trained.vectors, centres, own, layers)
        ctx.note("reordered", int(changed.sum()))
        return replace(trained, vectors=moved)
