"""CFL's bipartition of a group: norms of its updates and the split with the smallest largest cosine across.

Of many clients landmarks are split exactly, and each other client follows the landmarks it is most similar to.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coterie._util.threads import use_one_thread
from coterie.core.arrays import Bools, Doubles, Floats
from coterie.core.vectors import PIECE, prepare_rows
from coterie.grouping.clustering import Linkage, assign_to_landmarks, bipartition
from coterie.grouping.landmarks import MANY, compute_short_points, count_affordable_landmarks, sample_landmarks
from coterie.grouping.similarity import compute_cosines, compute_gram, compute_norms


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
