"""Grouping: from points, affinities or distances to labels. The algorithms are scikit-learn's and SciPy's; here are their edges.

Labels are always numbered by first appearance, and never more of them are used than there are distinct clients.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.metrics import adjusted_rand_score, silhouette_score

from coterie.core.arrays import Bools, Doubles, Floats, Ids
from coterie.core.threads import one_thread

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


def kmeans(points: Doubles, k: int, rng: np.random.Generator, restarts: int = 10) -> Ids:
    """k-means++ labels, the best of several starts; k is capped at the number of distinct points."""
    points = np.asarray(points, dtype=np.float64)
    k = distinct(points, min(k, len(points)))
    if k <= 1:
        return np.zeros(len(points), dtype=np.int64)
    if k == len(points):
        return np.arange(k, dtype=np.int64)
    with one_thread():  # with several, sums are added up in the order in which the threads finish
        fitted = KMeans(k, n_init=restarts, random_state=_state(rng)).fit(points)
    return canonical(fitted.labels_.astype(np.int64))


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


How = Literal["silhouette", "gap", "stability"]


@dataclass(frozen=True)
class Choice:
    """A number of groups, and the curve it was read from: the criterion at 1, 2, 3... groups (nan where it is not defined)."""

    k: int
    curve: tuple[float, ...]
    how: How


def choose(points: Doubles, rng: np.random.Generator, most: int, how: How = "silhouette") -> Choice:
    """How many groups, from 1 to `most`. The silhouette cannot say 1 unless all points are equal; the other two can.

    The candidates stop below the number of distinct points, since points that are each their own group fit perfectly and say nothing.
    """
    points = np.asarray(points, dtype=np.float64)
    n = len(points)
    different = distinct(points, n)
    most = max(min(most, different if different < n else n - 1), 1)
    if most == 1:
        return Choice(1, (np.nan,), how)
    match how:
        case "silhouette":
            return _by_silhouette(points, rng, most)
        case "gap":
            return _by_gap(points, rng, most)
        case "stability":
            return _by_stability(points, rng, most)


def silhouette(points: Doubles, labels: Ids) -> float:
    """The mean silhouette of a grouping; nan for one group, or one group for each point, where it is not defined."""
    groups = len(np.unique(labels))
    return float(silhouette_score(points, labels)) if 2 <= groups < len(points) else float("nan")


def _by_silhouette(points: Doubles, rng: np.random.Generator, most: int) -> Choice:
    """Rousseeuw (1987): the largest mean silhouette."""
    curve = [float(silhouette_score(points, kmeans(points, k, rng))) for k in range(2, most + 1)]
    return Choice(2 + int(np.argmax(curve)), (np.nan, *curve), "silhouette")


def _by_gap(points: Doubles, rng: np.random.Generator, most: int, draws: int = 20) -> Choice:
    """Tibshirani, Walther and Hastie (2001), against uniform boxes along the principal axes.

    The smallest k within one error of the largest gap (Dudoit and Fridlyand 2002): the original's "first k that the next does not beat"
    stops at 1 when several groups lie equally far apart, since two of them then explain hardly more than one.
    """
    rotated = points - points.mean(axis=0)
    rotated = rotated @ np.linalg.svd(rotated, full_matrices=False)[2].T
    low, high = rotated.min(axis=0), rotated.max(axis=0)
    ks = range(1, most + 1)
    logs = np.array([[_log_inertia(rng.uniform(low, high, rotated.shape), k, rng, 3) for k in ks] for _ in range(draws)])
    gaps = logs.mean(axis=0) - [_log_inertia(points, k, rng, 10) for k in ks]
    errors = logs.std(axis=0) * np.sqrt(1 + 1 / draws)
    best = int(np.argmax(gaps))
    return Choice(1 + int(np.argmax(gaps >= gaps[best] - errors[best])), tuple(map(float, gaps)), "gap")


def _by_stability(points: Doubles, rng: np.random.Generator, most: int, draws: int = 20) -> Choice:
    """Ben-Hur, Elisseeff and Guyon (2002): two samples of 80 %, grouped apart, must agree on the clients they share.

    The largest k within .01 of the best mean agreement (adjusted Rand index); one group where even the best is below .9. Only k that leave
    two clients a group in a sample are tried: clients each in their own group always agree.
    """
    n = len(points)
    size = int(np.ceil(0.8 * n))
    curve = [1.0]
    for k in range(2, min(most, size // 2) + 1):
        scores = []
        for _ in range(draws):
            one, two = (np.sort(rng.permutation(n)[:size]) for _ in range(2))
            both = np.intersect1d(one, two)
            labels = [kmeans(points[sample], k, rng, restarts=3)[np.searchsorted(sample, both)] for sample in (one, two)]
            scores.append(adjusted_rand_score(*labels))
        curve.append(float(np.mean(scores)))
    best = max(curve[1:], default=0.0)
    k = max(k for k, score in enumerate(curve, start=1) if score >= best - 0.01) if best >= 0.9 else 1
    return Choice(k, tuple(curve), "stability")


def _log_inertia(points: Doubles, k: int, rng: np.random.Generator, restarts: int) -> float:
    """The logarithm of the squared distances to group means, kept above rounding."""
    whole = float(((points - points.mean(axis=0)) ** 2).sum())
    labels = kmeans(points, k, rng, restarts)
    means = np.array([points[labels == j].mean(axis=0) for j in range(labels.max() + 1)])
    return float(np.log(max(float(((points - means[labels]) ** 2).sum()), 1e-12 * whole)))


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
