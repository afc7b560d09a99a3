"""Scores from counts, vectorised over clients and rounds: no Python call per client.

Counts are arrays (..., C) by class: `hits` (right), `predicted` and `actual`. Anything undefined is nan, never 0: the F1 of a class that
was neither present nor predicted, the accuracy of a client without test samples, the AUROC of a client with one class.
"""

from collections.abc import Callable, Sequence

import numpy as np

from coterie.core.arrays import Array, Doubles, Ints

Agreement = Callable[[Sequence[tuple[Array, Array]]], Doubles]  # (P,) of pairs of groupings of the same clients, -1 for one in no group
OverClients = Callable[[Doubles, Ints], Doubles]  # right answers (..., N) and test samples (N,) -> a score (...)


def accuracy(hits: Array, actual: Array) -> Doubles:
    """(...) share of right predictions."""
    return ratio(hits.sum(-1), actual.sum(-1))


def precision(hits: Array, predicted: Array, actual: Array) -> Doubles:
    """(...) precision averaged over the classes that are present or predicted; 0 for a present class never predicted."""
    return _class_mean(np.where(predicted > 0, ratio(hits, predicted), 0.0), predicted, actual)


def recall(hits: Array, predicted: Array, actual: Array) -> Doubles:
    """(...) recall averaged over the classes that are present or predicted; 0 for a predicted class that is absent."""
    return _class_mean(np.where(actual > 0, ratio(hits, actual), 0.0), predicted, actual)


def f1(hits: Array, predicted: Array, actual: Array) -> Doubles:
    """(...) F1 averaged over the classes that are present or predicted (scikit-learn's macro F1)."""
    both = predicted + actual
    return _class_mean(ratio(2 * hits, both), predicted, actual)


def ratio(top: Array, bottom: Array) -> Doubles:
    """top / bottom, nan where the bottom is 0."""
    out = np.full(np.broadcast(top, bottom).shape, np.nan)
    return np.asarray(np.divide(top, bottom, out=out, where=bottom > 0))


def mean(values: Doubles, axis: int = -1) -> Doubles:
    """The plain mean of what is defined (macro over clients); nan when nothing is."""
    defined = np.isfinite(values)
    return ratio(np.where(defined, values, 0.0).sum(axis), defined.sum(axis))


def worst(values: Doubles, axis: int = -1) -> Doubles:
    """The lowest defined value: the worst-served client."""
    lowest = np.where(np.isfinite(values), values, np.inf).min(axis)
    return np.where(np.isfinite(lowest), lowest, np.nan)


def bottom_decile(values: Doubles) -> Doubles:
    """The mean over the worst tenth of the clients (last axis; at least one client)."""
    ordered = np.sort(values, axis=-1)  # nan last
    defined = np.isfinite(values).sum(-1)
    keep = np.arange(values.shape[-1]) < np.maximum(np.ceil(defined / 10), 1)[..., None]
    return mean(np.where(keep, ordered, np.nan))


def _class_mean(values: Doubles, predicted: Array, actual: Array) -> Doubles:
    return mean(np.where(predicted + actual > 0, values, np.nan))
