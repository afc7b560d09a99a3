"""Layer-wise matching of neurons (FeSEM, Section 5.1): the order of hidden neurons is arbitrary, so models are aligned before averaging.

Layer after layer, a model's inputs are put into the order found for the layer before, and its neurons are matched with the reference's on
incoming weights and bias (the Hungarian algorithm). The Indian-buffet prior of the original matched averaging, which lets a model have
neurons that the reference lacks, is left out: every neuron has a partner.
"""

import re

import numpy as np

from coterie.core.arrays import Array, Bools, Doubles, Floats, Ids, Ints
from coterie.core.errors import UserError
from coterie.core.held import elsewhere
from coterie.core.layout import Layout, Slice
from coterie.core.neurons import NeuronLayer
from coterie.grouping.assignment import best_order, stays_in_order
from coterie.methods.centre_distances import squared_distances

_CHAINED = re.compile(r"(.*\.)?\d+|first|second|dense|logits")  # Sequential, ModuleList (Mlp), and the layers of Cnn


def chain(layout: Layout) -> tuple[NeuronLayer, ...]:
    """The model as a plain chain of layers, from the shapes and names of its slices; an error where it is not one."""
    layers: list[NeuronLayer] = []
    owner: dict[str, NeuronLayer] = {}  # by the name of the module: a batch norm belongs to the layer before it
    for piece in layout.slices:
        module, _, leaf = piece.name.rpartition(".")
        if len(piece.shape) >= 2 and leaf == "weight" and piece.kind == "weight" and _CHAINED.fullmatch(module):
            if layers and piece.shape[1] % layers[-1].neurons:
                raise _not_a_chain(piece)
            layers.append(NeuronLayer(piece))
            owner[module] = layers[-1]
        elif len(piece.shape) == 1 and layers and (module in owner or piece.kind == "weight"):
            layer = owner.setdefault(module, layers[-1])
            if piece.size != layer.neurons:
                raise _not_a_chain(piece)
            layer.own.append(piece)
        elif piece.size > 1:  # a counter has one number and no order
            raise _not_a_chain(piece)
    return tuple(layers)


def aligned(vector: Floats, reference: Floats, layers: tuple[NeuronLayer, ...]) -> Floats:
    """The same function with its hidden neurons in the order that matches the reference's best, layer by layer."""
    result = vector.copy()
    order: Ints | None = None  # order[p] is the neuron of the layer before that stands for the reference's neuron p
    for layer in layers:
        incoming = _inputs(_tensor(vector, layer.weight), order)
        if layer is not layers[-1]:  # the outputs have names: they stay where they are
            theirs = _features(incoming, vector, layer)
            ours = _features(_tensor(reference, layer.weight), reference, layer)
            order = _matched(ours, theirs)
            incoming = incoming[order]
            for piece in layer.own:
                result[piece.begin : piece.end] = _tensor(vector, piece)[order]
        result[layer.weight.begin : layer.weight.end] = incoming.ravel()
    return result


def all_aligned(vectors: Floats, references: Floats, which: Ids, layers: tuple[NeuronLayer, ...]) -> tuple[Floats, Bools]:
    """(n, d) every model matched with its own reference, and (n,) which have changed by that."""
    if (away := elsewhere(vectors)) is not None:
        there, changed = away.matched(layers, references, which)
        return there.as_array(), changed
    moved, changed = np.empty(vectors.shape, dtype=np.float32), np.zeros(len(vectors), dtype=np.bool_)
    for row, (vector, k) in enumerate(zip(vectors, which, strict=True)):
        moved[row] = aligned(vector, references[k], layers)
        changed[row] = bool(np.any(moved[row] != vector))
    return moved, changed


def matching_costs(vectors: Floats, references: Floats, layers: tuple[NeuronLayer, ...], layout: Layout) -> Doubles:
    """(n, K) what is left of each model after it has been matched with each reference."""
    if (away := elsewhere(vectors)) is None:
        costs = [[unmatched(vector, reference, layers, layout) for reference in references] for vector in vectors]
        return np.array(costs).reshape(len(vectors), len(references))
    columns = []
    for k in range(len(references)):
        there, _ = away.matched(layers, references, np.full(len(vectors), k))
        left = layout.comparable(there.as_array())
        columns.append(squared_distances(left, layout.comparable(references[k : k + 1])))
    return np.concatenate(columns, axis=1)


def unmatched(vector: Floats, reference: Floats, layers: tuple[NeuronLayer, ...], layout: Layout) -> float:
    """What is left after matching: the squared distance of the aligned model from the reference, the paper's matching score."""
    left = aligned(vector, reference, layers).astype(np.float64) - reference
    return float((left[layout.compared] ** 2).sum())


def _inputs(weight: Array, order: Ints | None) -> Array:
    """(out, in, ...) with the inputs reordered; where a convolution is flattened, each channel is a run of inputs (its pixels)."""
    if order is None:
        return weight
    return np.asarray(weight.reshape(len(weight), len(order), -1)[:, order].reshape(weight.shape))


def _features(incoming: Array, vector: Floats, layer: NeuronLayer) -> Doubles:
    """(out, f) what neurons are matched on: incoming weights, and trained numbers of their own."""
    own = [_tensor(vector, piece)[:, None] for piece in layer.own if piece.kind == "weight"]
    return np.concatenate([incoming.reshape(len(incoming), -1), *own], axis=1).astype(np.float64)


def _matched(ours: Doubles, theirs: Doubles) -> Ints:
    """The order of `theirs` with the least summed squared distance from `ours`.

    ||a - b||^2 = ||a||^2 + ||b||^2 - 2 <a, b>, and every neuron is used once, so only the inner products matter.
    """
    products = ours @ theirs.T
    return np.arange(len(ours)) if stays_in_order(products, (theirs**2).sum(axis=1)) else best_order(products)


def _tensor(vector: Floats, piece: Slice) -> Floats:
    return vector[piece.begin : piece.end].reshape(piece.shape)


def _not_a_chain(piece: Slice) -> UserError:
    return UserError(
        f"Neurons can be matched in mlp, cnn and other plain chains of layers only, and {piece.name!r} of shape {piece.shape} "
        "does not fit one: use fesem instead of fesem_ma."
    )
