"""Grouping: from points, affinities or distances to labels. The algorithms are scikit-learn's and SciPy's; here are their edges.

Labels are always numbered by first appearance, and never more of them are used than there are distinct clients. Everybody is in a group:
a clusterer that leaves points out must put them somewhere itself. A new one goes into `cluster`, and FedSim can be told its name.
"""

from typing import Literal

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.metrics import silhouette_score

from coterie.core.arrays import Bools, Doubles, Floats, Ids
from coterie.core.rng import key, shuffle
from coterie.core.threads import one_thread
from coterie.grouping.many.means import kmeans_of_many
from coterie.grouping.many.points import LANDMARKS, MANY
from coterie.grouping.similarity import distances, gaussian
from coterie.grouping.starts import best_of_starts

Clusterer = Literal["kmeans", "spectral", "agglomerative"]
Linkage = Literal["single", "complete", "average", "ward"]
SAME = 1e-7  # points nearer than this share of the scale are one point: float32 vectors do not tell them apart


def canonical(labels: Ids) -> Ids:
    """The labels renumbered 0, 1, 2... by first appearance; -1 (in no group) stays."""
    result = np.full(len(labels), -1, dtype=np.int64)
    known = np.flatnonzero(labels >= 0)
    _, first, inverse = np.unique(labels[known], return_index=True, return_inverse=True)
    result[known] = np.argsort(np.argsort(first))[inverse]
    return result


def distinct(points: Doubles, most: int) -> int:
    """How many different points there are, counted up to `most`, each next one being the farthest from those counted."""
    if not len(points):
        return 0
    tolerance = SAME * float(np.max(np.linalg.norm(points, axis=1), initial=0.0))
    gap = np.linalg.norm(points - points[0], axis=1)
    for count in range(1, most):
        farthest = int(np.argmax(gap))
        if gap[farthest] <= tolerance:
            return count
        gap = np.minimum(gap, np.linalg.norm(points - points[farthest], axis=1))
    return most


def cluster(points: Doubles, k: int, how: Clusterer, rng: np.random.Generator) -> Ids:
    """At most k groups of points by the clusterer of this name."""
    match how:
        case "kmeans":
            return kmeans(points, k, rng)
        case "spectral":
            return spectral(gaussian(distances(points @ points.T)), k, rng)
        case "agglomerative":
            return agglomerative(distances(points @ points.T), groups=k, linkage="ward")


def kmeans(points: Doubles, k: int, rng: np.random.Generator, restarts: int = 10) -> Ids:
    """k-means++ labels, the best of several starts; k is capped at the number of distinct points."""
    points = np.asarray(points, dtype=np.float64)
    k = distinct(points, min(k, len(points)))
    if k <= 1:
        return np.zeros(len(points), dtype=np.int64)
    if k == len(points):
        return np.arange(k, dtype=np.int64)
    if len(points) > MANY:
        return canonical(kmeans_of_many(points, k, rng, restarts))
    state = _state(rng)
    with one_thread():  # with several, sums are added up in the order in which the threads finish
        found = best_of_starts(points, k, restarts, state)
        if found is None:
            found = KMeans(k, n_init=restarts, random_state=state).fit(points).labels_.astype(np.int64)
    return canonical(found)


def spectral(affinity: Doubles, k: int, rng: np.random.Generator) -> Ids:
    """Spectral clustering of a precomputed affinity, labels discretised; k is capped at the number of distinct rows."""
    k = distinct(affinity, min(k, len(affinity)))
    if k <= 1:
        return np.zeros(len(affinity), dtype=np.int64)
    if k == len(affinity):
        return np.arange(k, dtype=np.int64)
    # A floor keeps the graph connected without joining anything; few clients take the dense solver, the sparse one needs k < n.
    affinity = np.maximum(affinity, 1e-9 * float(np.max(affinity)))
    solver = "arpack" if len(affinity) > 5 * k else "lobpcg"
    with one_thread():
        fitted = SpectralClustering(k, affinity="precomputed", assign_labels="discretize", eigen_solver=solver, random_state=_state(rng))
        labels = fitted.fit(affinity).labels_
    return canonical(labels.astype(np.int64))


def agglomerative(distances: Doubles, *, groups: int | None = None, threshold: float | None = None, linkage: Linkage = "average") -> Ids:
    """Agglomerative clustering of precomputed distances, cut at a number of groups or at a distance (give one of them).

    Clients at distance zero always stay together, so there are never more groups than distinct clients. Ward takes the distances for
    Euclidean ones.
    """
    if (groups is None) == (threshold is None):
        raise ValueError("give the number of groups or a threshold")
    n = len(distances)
    if n < 2:
        return np.zeros(n, dtype=np.int64)
    tree = hierarchy.linkage(squareform(distances, checks=False), method=linkage)  # rows by rising height
    cut = threshold if threshold is not None else -np.inf
    merges = int(np.sum(tree[:, 2] <= max(cut, SAME * float(distances.max()))))
    if groups is not None:
        merges = max(merges, n - max(groups, 1))
    return _cut(tree, n, merges)


def bipartition(cosines: Doubles, linkage: Linkage = "single") -> Bools:
    """(n,) which clients leave when a group splits in two; nobody where all are alike.

    Single linkage minimises the largest cosine across the cut, which is CFL's optimal bipartition.
    """
    gaps = 1.0 - cosines
    gaps[gaps < 1e-12] = 0.0  # the rounding of a cosine is not a difference
    np.fill_diagonal(gaps, 0.0)
    return np.asarray(agglomerative((gaps + gaps.T) / 2, groups=2, linkage=linkage) == 1)


def nearest(points: Doubles | Floats, centres: Doubles | Floats) -> Ids:
    """(n,) the nearest centre of each point, the first of equals; differences in float64, one point at a time."""
    centres = np.asarray(centres, dtype=np.float64)
    return np.array([np.argmin(((centres - point) ** 2).sum(axis=1)) for point in points], dtype=np.int64)


def inertia(points: Doubles, labels: Ids) -> float:
    """The squared distances of points from the means of their groups, summed."""
    means = np.array([points[labels == j].mean(axis=0) for j in range(int(labels.max()) + 1)])
    return float(((points - means[labels]) ** 2).sum())


def silhouette(points: Doubles, labels: Ids) -> float:
    """The mean silhouette of a grouping; nan for one group, or one group for each point, where it is not defined. Of many points it is
    that of a keyed sample: every pair counts in it."""
    if len(points) > MANY:
        some = shuffle(key("silhouette"), len(points))[:LANDMARKS]
        points, labels = points[some], labels[some]
    groups = len(np.unique(labels))
    return float(silhouette_score(points, labels)) if 2 <= groups < len(points) else float("nan")


def _cut(tree: Doubles, n: int, merges: int) -> Ids:
    """Labels after the first `merges` merges of the tree."""
    sets = hierarchy.DisjointSet(range(n))
    member = list(range(n))  # some client of each node of the tree
    for left, right in tree[:, :2].astype(int):
        if len(member) - n < merges:
            sets.merge(member[left], member[right])
        member.append(member[left])
    return canonical(np.array([sets[i] for i in range(n)], dtype=np.int64))


def _state(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))
