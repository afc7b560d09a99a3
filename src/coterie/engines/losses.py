"""Losses and errors of several models on many clients: one forward pass a model over all their samples, then sums by client."""

from collections.abc import Callable

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ids, Ints
from coterie.core.asks import Error, Errors, Losses, LossTable
from coterie.core.tasks import Task
from coterie.data.federation import Parts
from coterie.engines.evaluate import Predict
from coterie.engines.tallies import THRESHOLD, limited

LossesOf = Callable[[Floats, Ints], Doubles]  # (models (k, d), samples) -> losses (k, m): where no probabilities are wanted


def loss_table(ask: Losses, parts: Parts, predict: Predict, losses_of: LossesOf | None = None) -> LossTable:
    """The mean loss of every model on every client's part; by `losses_of` where an engine has a shorter way to losses alone."""
    samples, owners = _samples(parts, ask.clients)
    found = losses_of(ask.models, samples) if losses_of is not None else (predict(model, samples)[1] for model in ask.models)
    losses = np.stack([_means(limited(of_model, ask.loss_limit), owners, len(ask.clients)) for of_model in found], axis=1)
    return LossTable(ask.clients, losses, parts.sizes[ask.clients])


def squares_of(predicted: Doubles, actual: Array, task: Task) -> tuple[Doubles, Doubles]:
    """(m,) twice: squared errors of what is said, as class numbers, and of the probabilities (FedSim, Eq. 15-16).

    A regression says numbers, so both are its squared error; of several labels each is said or not; of texts it is the probability that is
    missing to a token.
    """
    if task.name == "next-token":
        missing = ((1 - predicted) ** 2.0).mean(1)
        return missing, missing
    if task.name == "regression":
        found = (predicted[:, 0] - actual) ** 2.0
        return found, found
    if task.name == "multilabel":
        return (((predicted >= THRESHOLD) != (actual > 0)) * 1.0).mean(1), ((predicted - actual) ** 2.0).mean(1)
    return (predicted.argmax(1) - actual) ** 2.0, ((predicted - np.eye(predicted.shape[1])[actual]) ** 2.0).mean(1)


def errors(ask: Error, parts: Parts, y: Array, predict: Predict, task: Task) -> Errors:
    """Root mean squared errors of every model on every client's training part (FedSim, Eq. 15-16)."""
    samples, owners = _samples(parts, ask.clients)
    actual = y[samples]
    labels, chances = [], []
    for model in ask.models:
        said, chance = squares_of(predict(model, samples)[0], actual, task)
        labels.append(_means(said, owners, len(ask.clients)))
        chances.append(_means(chance, owners, len(ask.clients)))
    table = [np.sqrt(np.stack(columns, axis=1)) for columns in (labels, chances)]
    return Errors(ask.clients, table[0], table[1], parts.sizes[ask.clients])


def _samples(parts: Parts, clients: Ids) -> tuple[Ints, Ints]:
    """The sample numbers of these clients one after the other, and for each sample the row of its owner."""
    return parts.joined(clients), np.repeat(np.arange(len(clients)), parts.sizes[clients])


def _means(values: Doubles, owners: Ints, n: int) -> Doubles:
    sums = np.bincount(owners, weights=values, minlength=n)
    return np.asarray(sums / np.bincount(owners, minlength=n))
