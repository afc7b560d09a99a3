"""FeSEM with matched averaging (Section 5.1): hidden neurons are put in the centre's order before models are compared or averaged.

Layer by layer, a model's inputs are put into the order found for the previous layer, and its neurons are matched with the reference's on
incoming weights and bias (Hungarian algorithm). The Indian-buffet prior of the original matched averaging, which lets a model have neurons
that the reference lacks, is omitted: every neuron has a partner.
"""

import re
from dataclasses import dataclass, replace

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Bools, Doubles, Floats, Ids, Ints
from coterie.core.asks import Trained
from coterie.core.layout import InitialModels, Layout, NeuronLayer, Slice
from coterie.core.method import Context, Round
from coterie.core.vectors import on_device
from coterie.grouping.assignment import find_best_assignment, is_identity_best
from coterie.methods.fesem import FeSEM, FeSEMState, compute_squared_distances

_CHAIN_LAYER_NAMES = re.compile(r"(.*\.)?\d+|first|second|dense|logits")  # Sequential, ModuleList (Mlp), and the layers of Cnn


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


def align_model(vector: Floats, reference: Floats, layers: tuple[NeuronLayer, ...]) -> Floats:
    """The same function with its hidden neurons in the order that matches the reference's best, layer by layer."""
    result = vector.copy()
    order: Ints | None = None  # order[p] is the neuron of the layer before that stands for the reference's neuron p
    for layer in layers:
        incoming = _reorder_inputs(_read_tensor(vector, layer.weight), order)
        if layer is not layers[-1]:  # the outputs have names: they stay where they are
            theirs = _collect_features(incoming, vector, layer)
            ours = _collect_features(_read_tensor(reference, layer.weight), reference, layer)
            order = _match_neurons(ours, theirs)
            incoming = incoming[order]
            for piece in layer.own:
                result[piece.begin : piece.end] = _read_tensor(vector, piece)[order]
        result[layer.weight.begin : layer.weight.end] = incoming.ravel()
    return result


def align_models(vectors: Floats, references: Floats, which: Ids, layers: tuple[NeuronLayer, ...]) -> tuple[Floats, Bools]:
    """(n, d) every model matched with its own reference, and (n,) which have changed by that."""
    if (away := on_device(vectors)) is not None:
        there, changed = away.matched(layers, references, which)
        return there.as_array(), changed
    moved, changed = np.empty(vectors.shape, dtype=np.float32), np.zeros(len(vectors), dtype=np.bool_)
    for row, (vector, k) in enumerate(zip(vectors, which, strict=True)):
        moved[row] = align_model(vector, references[k], layers)
        changed[row] = bool(np.any(moved[row] != vector))
    return moved, changed


def compute_matching_costs(vectors: Floats, references: Floats, layers: tuple[NeuronLayer, ...], layout: Layout) -> Doubles:
    """(n, K) what is left of each model after it has been matched with each reference."""
    if (away := on_device(vectors)) is None:
        costs = [[compute_matching_cost(vector, reference, layers, layout) for reference in references] for vector in vectors]
        return np.array(costs).reshape(len(vectors), len(references))
    columns = []
    for k in range(len(references)):
        there, _ = away.matched(layers, references, np.full(len(vectors), k))
        left = layout.comparable(there.as_array())
        columns.append(compute_squared_distances(left, layout.comparable(references[k : k + 1])))
    return np.concatenate(columns, axis=1)


def compute_matching_cost(vector: Floats, reference: Floats, layers: tuple[NeuronLayer, ...], layout: Layout) -> float:
    """What is left after matching: the squared distance of the aligned model from the reference, the paper's matching score."""
    left = align_model(vector, reference, layers).astype(np.float64) - reference
    return float((left[layout.compared] ** 2).sum())


def _reorder_inputs(weight: Array, order: Ints | None) -> Array:
    """(out, in, ...) with the inputs reordered; where a convolution is flattened, each channel is a run of inputs (its pixels)."""
    if order is None:
        return weight
    return np.asarray(weight.reshape(len(weight), len(order), -1)[:, order].reshape(weight.shape))


def _collect_features(incoming: Array, vector: Floats, layer: NeuronLayer) -> Doubles:
    """(out, f) what neurons are matched on: incoming weights, and trained numbers of their own."""
    own = [_read_tensor(vector, piece)[:, None] for piece in layer.own if piece.kind == "weight"]
    return np.concatenate([incoming.reshape(len(incoming), -1), *own], axis=1).astype(np.float64)


def _match_neurons(ours: Doubles, theirs: Doubles) -> Ints:
    """The order of `theirs` with the least summed squared distance from `ours`.

    ||a - b||^2 = ||a||^2 + ||b||^2 - 2 <a, b>, and every neuron is used once, so only the inner products matter.
    """
    products = ours @ theirs.T
    return np.arange(len(ours)) if is_identity_best(products, (theirs**2).sum(axis=1)) else find_best_assignment(products)


def _read_tensor(vector: Floats, piece: Slice) -> Floats:
    return vector[piece.begin : piece.end].reshape(piece.shape)


def _make_chain_error(piece: Slice) -> UserError:
    return UserError(
        f"Neurons can be matched in mlp, cnn and other plain chains of layers only, and {piece.name!r} of shape {piece.shape} "
        "does not fit one: use fesem instead of fesem_ma."
    )


@dataclass(frozen=True, kw_only=True)
class MatchedFeSEM(FeSEM):
    """FeSEM whose E-step distance is the matching cost and whose M-step averages matched neurons.

    The warm-up's models are matched with w_0, later ones with the centre they belong to.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.assign_on != "all":
            raise UserError(f"FeSEM-MA compares whole models: leave assign_on={self.assign_on!r} away, or use fesem.")

    def start(self, init: InitialModels, ctx: Context) -> Round[FeSEMState]:
        build_layer_chain(ctx.layout)  # a model that cannot be matched is refused before anybody is asked
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
