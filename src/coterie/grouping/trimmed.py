"""Trimmed k-means (Ghosh et al., 2019): centres in which the points farthest from all of them do not count."""

import numpy as np
from scipy.spatial.distance import cdist

from coterie.core.arrays import Bools, Doubles, Ids
from coterie.grouping.clusterers import distinct, kmeans
from coterie.grouping.many.means import STARTED_ON
from coterie.grouping.many.means import STEPS as STEPS_OF_MANY
from coterie.grouping.many.points import MANY, landmarks

STEPS = 100  # of Lloyd


def trimmed_kmeans(points: Doubles, k: int, leave: int, rng: np.random.Generator, restarts: int = 20) -> tuple[Ids, Bools]:
    """k-means in which the `leave` farthest points count in no centre: labels (the nearest centre), and who was left out.

    Each start clusters a random part of the points, so that some start without the odd ones; the least trimmed inertia wins. Of many points
    the starts are tried on landmarks, and everybody takes Lloyd's steps from the best of them.
    """
    if len(points) > MANY:
        return _of_many(points, k, leave, rng, restarts)
    labels = kmeans(points, k, rng)
    k = int(labels.max()) + 1 if len(labels) else 0
    if not leave or k >= len(points) - leave:
        return labels, np.zeros(len(points), dtype=np.bool_)
    return _best_start(points, k, leave, rng, restarts)[1:]


def _of_many(points: Doubles, k: int, leave: int, rng: np.random.Generator, restarts: int) -> tuple[Ids, Bools]:
    k = distinct(points, k)
    if not leave or k <= 1:
        return kmeans(points, k, rng), np.zeros(len(points), dtype=np.bool_)
    some = points[landmarks(len(points), rng, STARTED_ON)]
    _, labels, odd = _best_start(some, k, round(leave * len(some) / len(points)), rng, restarts)
    _, labels, odd = _settled(points, _means(some[~odd], labels[~odd]), leave, STEPS_OF_MANY)
    return labels, odd


def _best_start(points: Doubles, k: int, leave: int, rng: np.random.Generator, restarts: int) -> tuple[float, Ids, Bools]:
    """Trimmed inertia, labels and who was left out, of the best of several starts."""
    found = []
    for _ in range(restarts):
        part = rng.permutation(len(points))[: len(points) - leave]
        found.append(_settled(points, _means(points[part], kmeans(points[part], k, rng, restarts=1)), leave))
    return min(found, key=lambda start: start[0])  # the first of equals


def _settled(points: Doubles, centres: Doubles, leave: int, steps: int = STEPS) -> tuple[float, Ids, Bools]:
    """Lloyd's iteration, leaving out the farthest: trimmed inertia, nearest centres, who was left out."""
    labels, odd = np.full(len(points), -1, dtype=np.int64), np.zeros(len(points), dtype=np.bool_)
    for _ in range(steps):
        squares = _squares(points, centres)
        near, gaps = squares.argmin(axis=1), squares.min(axis=1)
        left = np.zeros(len(points), dtype=np.bool_)
        left[np.argsort(gaps, kind="stable")[len(points) - leave :]] = True
        inertia = float(gaps[~left].sum())
        if np.array_equal(near, labels) and np.array_equal(left, odd):
            break
        labels, odd = near, left
        for j in np.unique(labels[~odd]):
            centres[j] = points[(labels == j) & ~odd].mean(axis=0)
    return inertia, labels, odd


def _squares(points: Doubles, centres: Doubles) -> Doubles:
    """(n, k) squared distances; of many without a table of all differences."""
    if len(points) > MANY:
        return np.asarray(cdist(points, centres, "sqeuclidean"))
    return np.asarray(((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2))


def _means(points: Doubles, labels: Ids) -> Doubles:
    """(k, r) the mean of each label that is there."""
    return np.array([points[labels == j].mean(axis=0) for j in np.unique(labels)])
