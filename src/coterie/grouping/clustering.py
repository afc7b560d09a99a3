"""Clustering: from points, affinities or distances to labels. The algorithms are scikit-learn's and SciPy's; here are their edge cases.

Labels are numbered by first appearance, and never more of them are used than there are distinct clients. Every client is in a group: a
clusterer that leaves points out must assign them itself. `clusterers` has them by name, and FedSim accepts each.

For many clients, FedEx's affinity (1 + cosine) / 2 is the inner product of the rows (1, u_i) / sqrt(2), u_i being a client's direction: the
eigenvectors of the normalised affinity B B' follow from those of B' B, a matrix as small as the directions are long. A tree of landmarks is
cut, and each client joins a part of it. CFL's bipartition of a group cuts where the largest cosine across is smallest.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from sklearn.cluster import SpectralClustering
from sklearn.metrics import silhouette_score

from coterie._util.errors import UserError
from coterie._util.threads import use_one_thread
from coterie.core.arrays import Bools, Doubles, Floats, Ids, Ints
from coterie.core.rng import make_key, shuffle
from coterie.core.specs import Registry
from coterie.core.vectors import PIECE, prepare_rows
from coterie.grouping.kmeans import SAME, count_distinct, draw_random_state, find_nearest_large, kmeans, renumber_labels
from coterie.grouping.landmarks import LANDMARKS, MANY, compute_short_points, count_affordable_landmarks, sample_landmarks
from coterie.grouping.similarity import compute_cosines, compute_distances, compute_gaussian, compute_gram, compute_norms

Linkage = Literal["single", "complete", "average", "ward"]


def cluster(points: Doubles, k: int, how: str, rng: np.random.Generator) -> Ids:
    """At most k groups of points by the clusterer of this name.

    Raises:
        UserError: A clusterer of an installed package does not give each point a group.
    """
    labels = np.asarray(clusterers[how](points, k, rng))
    if labels.shape != (len(points),) or labels.dtype.kind not in "iu" or (len(labels) and labels.min() < 0):
        raise UserError(f"Clusterer {how!r} should give each of {len(points)} clients the number of its group, from 0 on.")
    return labels if how in BUILT_IN else renumber_labels(labels.astype(np.int64))


def _cluster_spectrally(points: Doubles, k: int, rng: np.random.Generator) -> Ids:
    return spectral_clustering(compute_gaussian(compute_distances(points @ points.T)), k, rng)


def _cluster_by_ward(points: Doubles, k: int, rng: np.random.Generator) -> Ids:
    return agglomerative_clustering(compute_distances(points @ points.T), groups=k, linkage="ward")


BUILT_IN = {"kmeans": kmeans, "spectral": _cluster_spectrally, "agglomerative": _cluster_by_ward}
clusterers: Registry[Ids] = Registry("clusterer", "coterie.clusterers", **BUILT_IN)  # (points, k, rng) -> a group for each point


def spectral_clustering(affinity: Doubles, k: int, rng: np.random.Generator) -> Ids:
    """Spectral clustering of a precomputed affinity, labels discretised; k is capped at the number of distinct rows."""
    k = count_distinct(affinity, min(k, len(affinity)))
    if k <= 1:
        return np.zeros(len(affinity), dtype=np.int64)
    if k == len(affinity):
        return np.arange(k, dtype=np.int64)
    # A floor keeps the graph connected without joining anything; few clients take the dense solver, the sparse one needs k < n.
    affinity = np.maximum(affinity, 1e-9 * float(np.max(affinity)))
    solver = "arpack" if len(affinity) > 5 * k else "lobpcg"
    with use_one_thread():
        fitted = SpectralClustering(
            k, affinity="precomputed", assign_labels="discretize", eigen_solver=solver, random_state=draw_random_state(rng)
        )
        labels = fitted.fit(affinity).labels_
    return renumber_labels(labels.astype(np.int64))


def agglomerative_clustering(
    distances: Doubles, *, groups: int | None = None, threshold: float | None = None, linkage: Linkage = "average"
) -> Ids:
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
    return _cut_tree(tree, n, merges)


def bipartition(cosines: Doubles, linkage: Linkage = "single") -> Bools:
    """(n,) which clients leave when a group splits in two; none where all are alike.

    Single linkage minimises the largest cosine across the cut, which is CFL's optimal bipartition.
    """
    gaps = 1.0 - cosines
    gaps[gaps < 1e-12] = 0.0  # the rounding of a cosine is not a difference
    np.fill_diagonal(gaps, 0.0)
    return np.asarray(agglomerative_clustering((gaps + gaps.T) / 2, groups=2, linkage=linkage) == 1)


def find_nearest(points: Doubles | Floats, centres: Doubles | Floats) -> Ids:
    """(n,) the nearest centre of each point, the first of equals; differences in float64, one point at a time."""
    centres = np.asarray(centres, dtype=np.float64)
    return np.array([np.argmin(((centres - point) ** 2).sum(axis=1)) for point in points], dtype=np.int64)


def compute_silhouette(points: Doubles, labels: Ids) -> float:
    """The mean silhouette of a grouping; nan for one group, or one group for each point, where it is not defined. Of many points it is
    that of a keyed sample: every pair counts in it."""
    if len(points) > MANY:
        some = shuffle(make_key("silhouette"), len(points))[:LANDMARKS]
        points, labels = points[some], labels[some]
    groups = len(np.unique(labels))
    return float(silhouette_score(points, labels)) if 2 <= groups < len(points) else float("nan")


def _cut_tree(tree: Doubles, n: int, merges: int) -> Ids:
    sets = hierarchy.DisjointSet(range(n))
    member = list(range(n))  # some client of each node of the tree
    for left, right in tree[:, :2].astype(int):
        if len(member) - n < merges:
            sets.merge(member[left], member[right])
        member.append(member[left])
    return renumber_labels(np.array([sets[i] for i in range(n)], dtype=np.int64))


def spectral_clustering_large(directions: Doubles, k: int, rng: np.random.Generator) -> Ids:
    """(n,) at most k groups of clients by their directions (n, r), each of length one or, in few directions, less."""
    features = np.concatenate([np.ones((len(directions), 1)), directions], axis=1) / np.sqrt(2)
    degrees = features @ features.sum(axis=0)  # the sum of a client's affinities with all
    scaled = features / np.sqrt(degrees)[:, None]
    with use_one_thread():
        _, vectors = np.linalg.eigh(scaled.T @ scaled)
        embedded = scaled @ vectors[:, -min(k, vectors.shape[1]) :]
    lengths = np.linalg.norm(embedded, axis=1, keepdims=True)
    return renumber_labels(kmeans(embedded / np.where(lengths > 0, lengths, 1.0), k, rng))


def merge_singletons_large(labels: Ids, directions: Doubles) -> Ids:
    """The labels after every group of one client has joined the group whose mean direction is most its own; one after the other."""
    labels = renumber_labels(labels)
    while labels.max() > 0 and (sizes := np.bincount(labels)).min() == 1:
        lone = int(np.flatnonzero(sizes[labels] == 1)[0])
        sums = np.stack([np.bincount(labels, weights=column) for column in directions.T], axis=1)  # (groups, r)
        alike = sums / sizes[:, None] @ directions[lone]
        alike[labels[lone]] = -np.inf
        labels[lone] = int(alike.argmax())
        labels = renumber_labels(labels)
    return labels


def agglomerative_clustering_large(
    points: Doubles, rng: np.random.Generator, *, groups: int | None = None, threshold: float | None = None, linkage: Linkage = "average"
) -> Ids:
    """(n,) groups: landmarks by `agglomerative_clustering`, the others by the nearest middle; with single linkage, by the nearest landmark.

    Ward's heights grow with the root of the clients below them: a threshold for all clients is that much lower for the landmarks.
    """
    some = sample_landmarks(len(points), rng)
    if threshold is not None and linkage == "ward":
        threshold = threshold * float(np.sqrt(len(some) / len(points)))
    sample = points[some]
    labels = agglomerative_clustering(compute_distances(sample @ sample.T), groups=groups, threshold=threshold, linkage=linkage)
    return renumber_labels(assign_to_landmarks(points, some, labels, linkage))


def assign_to_landmarks(points: Doubles, some: Ints, labels: Ids, linkage: Linkage) -> Ids:
    """(n,) the label of every client from those of the landmarks `some`: the nearest middle's; with single linkage, the nearest
    landmark's."""
    sample = points[some]
    if linkage == "single":
        found = labels[find_nearest_large(points, sample)]
    else:
        middles = np.stack([sample[labels == j].mean(axis=0) for j in range(int(labels.max()) + 1)])
        found = find_nearest_large(points, middles)
    found[some] = labels
    return found


class Bipartition(NamedTuple):
    """Which clients leave, and the largest cosine between one that leaves and one that stays: it decides whether the cut counts."""

    leaves: Bools  # (n,) none where all are alike
    across: float


def bipartition_by_cosines(alike: Doubles, linkage: Linkage) -> Bipartition:
    """The cut with the smallest largest cosine across it (single linkage)."""
    parts = bipartition(alike, linkage)
    return Bipartition(parts, float(alike[np.ix_(parts, ~parts)].max(initial=-1.0)))


def compute_mean_update_norm(vectors: Floats, origin: Floats, share: Doubles) -> float:
    """The length of the mean update, each client counting by its share: exactly, a piece of the clients at a time."""
    total, together = np.zeros(vectors.shape[1]), max(1, PIECE // max(vectors.shape[1], 1))
    with use_one_thread():
        for at in range(0, len(vectors), together):
            total += share[at : at + together] @ prepare_rows(vectors[at : at + together], origin)
    return float(np.linalg.norm(total))


def bipartition_large(vectors: Floats, origin: Floats, rng: np.random.Generator, linkage: Linkage) -> Bipartition:
    """The cut of the clients' updates. Cosines of landmarks are exact; all clients are placed by directions in few dimensions.

    The largest cosine across is that of landmarks: of all clients' it falls short by what the extremes of more pairs exceed those of fewer.
    """
    some = sample_landmarks(len(vectors), rng, count_affordable_landmarks(vectors.shape[1]))
    cut = bipartition_by_cosines(compute_cosines(compute_gram(vectors[some], origin)), linkage)
    if not cut.leaves.any():
        return Bipartition(np.zeros(len(vectors), dtype=np.bool_), cut.across)
    directions = prepare_rows(compute_short_points(vectors, origin, rng, centred=False, unit=True), None, unit=True)
    return Bipartition(assign_to_landmarks(directions, some, cut.leaves.astype(np.int64), linkage) == 1, cut.across)


class GroupUpdates(NamedTuple):
    """The lengths of the mean update and of the longest, and the cut in two of the clients, computed when it is called."""

    mean: float
    longest: float
    cut: Callable[[Linkage], Bipartition]


def summarize_updates(vectors: Floats, origin: Floats, share: Doubles, rng: np.random.Generator) -> GroupUpdates:
    """Of clients that were sent `origin`, each counting in the mean by its share; both lengths are exact, however many they are.

    The generator is used by the cut of more than `MANY` clients.
    """
    if len(vectors) > MANY:
        mean, longest = compute_mean_update_norm(vectors, origin, share), float(compute_norms(vectors, origin).max())
        return GroupUpdates(mean, longest, lambda linkage: bipartition_large(vectors, origin, rng, linkage))
    inner = compute_gram(vectors, origin)
    mean, longest = float(np.sqrt(max(float(share @ inner @ share), 0.0))), float(np.sqrt(np.diag(inner).max()))
    return GroupUpdates(mean, longest, lambda linkage: bipartition_by_cosines(compute_cosines(inner), linkage))
