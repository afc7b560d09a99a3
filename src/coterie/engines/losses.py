"""Losses and errors of several models on many clients: one forward pass a model over all their samples, then sums by client."""

from collections.abc import Callable

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids, Ints
from coterie.core.asks import Error, Errors, Losses, LossTable
from coterie.data.federation import Parts
from coterie.engines.evaluate import Predict

LossesOf = Callable[[Floats, Ints], Doubles]  # (models (k, d), samples) -> losses (k, m): where no probabilities are wanted


def loss_table(ask: Losses, parts: Parts, predict: Predict, losses_of: LossesOf | None = None) -> LossTable:
    """The mean loss of every model on every client's part; by `losses_of` where an engine has a shorter way to losses alone."""
    samples, owners = _samples(parts, ask.clients)
    found = losses_of(ask.models, samples) if losses_of is not None else (predict(model, samples)[1] for model in ask.models)
    losses = np.stack([_means(of_model, owners, len(ask.clients)) for of_model in found], axis=1)
    return LossTable(ask.clients, losses, parts.sizes[ask.clients])


def errors(ask: Error, parts: Parts, y: Ints, predict: Predict) -> Errors:
    """Root mean squared errors of every model on every client's training part (FedSim, Eq. 15-16)."""
    samples, owners = _samples(parts, ask.clients)
    actual = y[samples]
    labels, chances = [], []
    for model in ask.models:
        predicted, _ = predict(model, samples)
        labels.append(_means((predicted.argmax(1) - actual) ** 2.0, owners, len(ask.clients)))
        gaps = (predicted - np.eye(predicted.shape[1])[actual]) ** 2.0
        chances.append(_means(gaps.mean(1), owners, len(ask.clients)))
    table = [np.sqrt(np.stack(columns, axis=1)) for columns in (labels, chances)]
    return Errors(ask.clients, table[0], table[1], parts.sizes[ask.clients])


def _samples(parts: Parts, clients: Ids) -> tuple[Ints, Ints]:
    """The sample numbers of these clients one after the other, and for each sample the row of its owner."""
    return parts.joined(clients), np.repeat(np.arange(len(clients)), parts.sizes[clients])


def _means(values: Doubles, owners: Ints, n: int) -> Doubles:
    sums = np.bincount(owners, weights=values, minlength=n)
    return np.asarray(sums / np.bincount(owners, minlength=n))
