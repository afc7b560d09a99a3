"""Hierarchical clustering of many points: a tree of landmarks is cut, and everybody joins a part of it."""

import numpy as np

from coterie.core.arrays import Doubles, Ids, Ints
from coterie.grouping.clusterers import Linkage, agglomerative, canonical
from coterie.grouping.many.means import nearest_of_many
from coterie.grouping.many.points import landmarks
from coterie.grouping.similarity import distances


def tree_of_many(
    points: Doubles, rng: np.random.Generator, *, groups: int | None = None, threshold: float | None = None, linkage: Linkage = "average"
) -> Ids:
    """(n,) groups: landmarks by `agglomerative`, the others by the nearest middle, or, with single linkage, by the nearest landmark.

    Ward's heights grow with the root of the clients below them: a threshold for everybody is that much lower for the landmarks.
    """
    some = landmarks(len(points), rng)
    if threshold is not None and linkage == "ward":
        threshold = threshold * float(np.sqrt(len(some) / len(points)))
    sample = points[some]
    labels = agglomerative(distances(sample @ sample.T), groups=groups, threshold=threshold, linkage=linkage)
    return canonical(with_landmarks(points, some, labels, linkage))


def with_landmarks(points: Doubles, some: Ints, labels: Ids, linkage: Linkage) -> Ids:
    """(n,) everybody's label from those of the landmarks `some`: the nearest middle's, or, with single linkage, the nearest landmark's."""
    sample = points[some]
    if linkage == "single":
        found = labels[nearest_of_many(points, sample)]
    else:
        middles = np.stack([sample[labels == j].mean(axis=0) for j in range(int(labels.max()) + 1)])
        found = nearest_of_many(points, middles)
    found[some] = labels
    return found
