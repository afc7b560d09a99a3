"""Neurons put in the order of a reference, of many models at once and where they are (see `coterie.methods.matching`).

Products of neurons with those of the reference are made on the device. Models whose neurons are each nearest to the one in their own place,
as after a short training from the reference, stay as they are, and nothing of them is fetched; of the others the products are.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Bools, Ints
from coterie.core.neurons import NeuronLayer
from coterie.engines.tensors import read_off
from coterie.grouping.assignment import SURE, best_order

TOGETHER = 1 << 25  # numbers of a layer of several models that are multiplied at a time


@torch.no_grad()
def matched_rows(tensor: Tensor, layers: Sequence[NeuronLayer], references: Tensor, which: Ints) -> tuple[Tensor, Bools]:
    """(n, d) the models with their hidden neurons in the order of row ``which[i]`` of the references; (n,) which have changed by that."""
    made, changed = tensor, np.zeros(len(tensor), dtype=np.bool_)
    together = max(1, TOGETHER // max(max(layer.weight.size, layer.neurons**2) for layer in layers))  # weights, and products of pairs
    for k in np.unique(which):
        rows = np.flatnonzero(which == k)
        for begin in range(0, len(rows), together):
            some = rows[begin : begin + together]
            there = torch.as_tensor(some, device=tensor.device)
            before = tensor[there]
            part = _in_order(before, layers, references[int(k)][None])
            if part is not before:
                made = tensor.clone() if made is tensor else made
                made[there] = part
                changed[some] = read_off((part != before).any(dim=1))
    return made, changed


def _in_order(models: Tensor, layers: Sequence[NeuronLayer], reference: Tensor) -> Tensor:
    """These models (b, d), matched with one; the very tensor where all stay as they are."""
    made, order = models, None  # order[i, p] is the neuron, of the layer before, that stands for the reference's neuron p
    for layer in layers:
        incoming, found = _inputs(_weights(models, layer), order), None
        if layer is not layers[-1]:  # the outputs have names: they stay where they are
            found = _orders(_features(_weights(reference, layer), reference, layer)[0], _features(incoming, models, layer))
        if found is not None:
            made = made.clone() if made is models else made
            incoming = torch.take_along_dim(incoming, found[:, :, None], dim=1)
            for piece in layer.own:
                made[:, piece.begin : piece.end] = torch.take_along_dim(models[:, piece.begin : piece.end], found, dim=1)
        if found is not None or order is not None:
            made[:, layer.weight.begin : layer.weight.end] = incoming.flatten(1)
        order = found
    return made


def _weights(models: Tensor, layer: NeuronLayer) -> Tensor:
    """(b, out, in ...) what comes in, in one row a neuron."""
    return models[:, layer.weight.begin : layer.weight.end].reshape(len(models), layer.neurons, -1)


def _inputs(weights: Tensor, order: Tensor | None) -> Tensor:
    """With the inputs reordered; where a convolution is flattened, each channel is a run of inputs (its pixels)."""
    if order is None:
        return weights
    by_channel = weights.reshape(*weights.shape[:2], order.shape[1], -1)
    return torch.take_along_dim(by_channel, order[:, None, :, None], dim=2).flatten(2)


def _features(incoming: Tensor, models: Tensor, layer: NeuronLayer) -> Tensor:
    """(b, out, f) what neurons are matched on: incoming weights, and trained numbers of their own."""
    own = [models[:, piece.begin : piece.end, None] for piece in layer.own if piece.kind == "weight"]
    return torch.cat([incoming, *own], dim=2).double()


def _orders(ours: Tensor, theirs: Tensor) -> Tensor | None:
    """(b, out) the order of each model's neurons; None where all have the reference's. See `grouping.assignment`."""
    products = ours @ theirs.transpose(1, 2)  # (b, out, out)
    near = products - theirs.square().sum(dim=2)[:, None] / 2
    lead = near.diagonal(dim1=1, dim2=2).clone()
    near.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    stays = read_off((lead > near.amax(dim=2) + SURE * lead.abs().amax(dim=1, keepdim=True)).all(dim=1))
    if stays.all():
        return None
    found = np.tile(np.arange(ours.shape[0]), (len(theirs), 1))
    for i in np.flatnonzero(~stays):
        found[i] = best_order(read_off(products[int(i)]))
    return torch.as_tensor(found, device=ours.device)
