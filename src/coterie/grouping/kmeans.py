"""k-means, plain and trimmed: the best of several starts, of any number of points.

Labels are numbered by first appearance, and never more of them are used than there are distinct points. `find_best_start` finds the labels
that scikit-learn finds one start after the other, in products of all starts together; where rounding would decide, scikit-learn itself
does. It saves 16 % of a whole FedSim round of the papers' size (MCLR, cohort of 20, 20 epochs; 20 % with ten lanes, 27 % with one epoch),
by `benchmarks/kmeans_starts.py`. Of many points, starts run on landmarks. Trimmed k-means (Ghosh et al., 2019): the points farthest from
all centres do not count.
"""

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from coterie._util.threads import use_one_thread
from coterie.core.arrays import Array, Bools, Doubles, Ids, Ints
from coterie.core.vectors import map_row_chunks
from coterie.grouping.landmarks import MANY, sample_landmarks

START_SAMPLE = 4096  # points that the starts run on
LARGE_STEPS = 20  # of Lloyd over all points: from centres of thousands few are needed


def kmeans_large(points: Doubles, k: int, rng: np.random.Generator, restarts: int) -> Ids:
    """(n,) labels of k groups, or fewer where a centre loses its points."""
    state, some = int(rng.integers(2**31)), sample_landmarks(len(points), rng, START_SAMPLE)
    with use_one_thread():
        started = KMeans(k, n_init=restarts, random_state=state).fit(points[some])
        fitted = KMeans(k, init=started.cluster_centers_, n_init=1, max_iter=LARGE_STEPS, random_state=state).fit(points)
    return np.asarray(fitted.labels_, dtype=np.int64)


def find_nearest_large(points: Doubles, centres: Doubles) -> Ids:
    """(n,) the nearest centre of each point, a piece of the points at a time."""
    squares = np.einsum("ij,ij->i", centres, centres)
    found = map_row_chunks(lambda block: (squares - 2 * block.astype(np.float64) @ centres.T).argmin(axis=1), points, width=len(centres))
    return found.astype(np.int64)


MAX_STEPS, TOLERANCE = 300, 1e-4  # scikit-learn's: at most so many steps, or until centres move by less than this share of the variance
TIE = 1e-12  # what differs by less than this share of the points' squares may be equal but for rounding
FAINT = 1e-8  # squared distances that sum up to less than this share of the squares are too near to rounding to be drawn by


class UndecidedError(Exception):
    """Another order of the same sums might find other groups."""


def find_best_start(points: Doubles, k: int, restarts: int, state: int) -> Ids | None:
    """(n,) labels of the start that ends with the least inertia; None where scikit-learn itself must decide."""
    points = points - points.mean(axis=0)
    tolerance, scale = TOLERANCE * float(points.var(axis=0).mean()), float((points**2).sum())
    try:
        labels, centres = _run_lloyd(points, _init_plus_plus(points, k, restarts, state, scale), tolerance, scale)
    except UndecidedError:
        return None
    inertia = [float(((points - centres[i][labels[i]]) ** 2).sum()) for i in range(restarts)]
    best = 0
    for i in range(1, restarts):
        if inertia[i] < inertia[best] + TIE * scale and not _is_same_partition(labels[i], labels[best], k):
            if inertia[i] > inertia[best] - TIE * scale:
                return None
            best = i
    return np.asarray(labels[best])


def _init_plus_plus(points: Doubles, k: int, restarts: int, state: int, scale: float) -> Doubles:
    """(R, k, r) centres to begin with: each next one is the best of a few points drawn by their squared distance from those so far."""
    n, trials, starts = len(points), 2 + int(np.log(k)), np.arange(restarts)
    draws = np.random.RandomState(state).random_sample((restarts, 1 + (k - 1) * trials))
    shares = np.cumsum(np.full(n, 1 / n))
    chosen = np.empty((restarts, k), dtype=np.int64)
    chosen[:, 0] = np.searchsorted(shares / shares[-1], draws[:, 0], side="right")
    closest = _compute_squares_to_all(points, chosen[:, 0])  # (R, n) squared distances from the nearest centre
    for c in range(1, k):
        sums = closest.cumsum(axis=1)
        if sums[:, -1].min() < FAINT * scale:
            raise UndecidedError
        drawn = draws[:, 1 + (c - 1) * trials : 1 + c * trials] * sums[:, -1:]
        candidates = np.minimum((sums[:, None, :] < drawn[:, :, None]).sum(axis=2), n - 1)  # (R, trials)
        apart = np.minimum(_compute_squares_to_all(points, candidates.ravel()).reshape(restarts, trials, n), closest[:, None, :])
        left = apart.sum(axis=2)
        best = left.argmin(axis=1)
        chosen[:, c], closest = candidates[starts, best], apart[starts, best]
        _check_ties((left <= left[starts, best][:, None] + TIE * scale) & (candidates != chosen[:, c : c + 1]))
    return np.asarray(points[chosen])


def _compute_squares_to_all(points: Doubles, some: Ints) -> Doubles:
    squares = np.einsum("ij,ij->i", points, points)
    return np.asarray(np.maximum(squares[some][:, None] + squares - 2 * points[some] @ points.T, 0.0))


def _run_lloyd(points: Doubles, centres: Doubles, tolerance: float, scale: float) -> tuple[Ids, Doubles]:
    """(R, n) labels and (R, k, r) centres at the end of every start; those that have ended are left where they are."""
    restarts, k, _ = centres.shape
    labels: Ids = np.full((restarts, len(points)), -1, dtype=np.int64)
    active, unsettled = np.arange(restarts), []
    for _ in range(MAX_STEPS):
        before, found = centres[active], _assign_centres(points, centres[active], scale)
        members: Array = found[:, None, :] == np.arange(k)[:, None]  # (a, k, n)
        sizes = members.sum(axis=2)
        _check_ties(sizes == 0)
        moved = (members.reshape(-1, len(points)).astype(np.float64) @ points).reshape(before.shape) / sizes[:, :, None]
        settled = (found == labels[active]).all(axis=1)
        small = ~settled & (((moved - before) ** 2).sum(axis=(1, 2)) <= tolerance)
        centres[active], labels[active] = moved, found
        unsettled.append(active[small])
        active = active[~(settled | small)]
        if not len(active):
            break
    late = np.concatenate([*unsettled, active])  # their centres have moved since they were labelled
    labels[late] = _assign_centres(points, centres[late], scale)
    return labels, centres


def _assign_centres(points: Doubles, centres: Doubles, scale: float) -> Ids:
    flat = centres.reshape(-1, centres.shape[2])
    apart = (np.einsum("ij,ij->i", flat, flat) - 2 * points @ flat.T).reshape(len(points), *centres.shape[:2])
    nearest: Ids = apart.argmin(axis=2)
    least = np.take_along_axis(apart, nearest[:, :, None], axis=2)
    if np.count_nonzero(apart <= least + TIE * scale) > nearest.size:
        raise UndecidedError
    return nearest.T


def _check_ties(ties: Bools) -> None:
    if ties.any():
        raise UndecidedError


def _is_same_partition(one: Ids, two: Ids, k: int) -> bool:
    """Whether two labellings are one but for the names of groups: as many pairs of names as names."""
    return len(np.unique(one * k + two)) == len(np.unique(one)) == len(np.unique(two))


SAME = 1e-7  # points nearer than this share of the scale are one point: float32 vectors cannot separate them


def renumber_labels(labels: Ids) -> Ids:
    """The labels renumbered 0, 1, 2... by first appearance; -1 (in no group) stays."""
    result = np.full(len(labels), -1, dtype=np.int64)
    known = np.flatnonzero(labels >= 0)
    _, first, inverse = np.unique(labels[known], return_index=True, return_inverse=True)
    result[known] = np.argsort(np.argsort(first))[inverse]
    return result


def count_distinct(points: Doubles, most: int) -> int:
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
    k = count_distinct(points, min(k, len(points)))
    if k <= 1:
        return np.zeros(len(points), dtype=np.int64)
    if k == len(points):
        return np.arange(k, dtype=np.int64)
    if len(points) > MANY:
        return renumber_labels(kmeans_large(points, k, rng, restarts))
    state = draw_random_state(rng)
    with use_one_thread():  # with several, sums are added up in the order in which the threads finish
        found = find_best_start(points, k, restarts, state)
        if found is None:
            found = KMeans(k, n_init=restarts, random_state=state).fit(points).labels_.astype(np.int64)
    return renumber_labels(found)


def compute_inertia(points: Doubles, labels: Ids) -> float:
    """The squared distances of points from the means of their groups, summed."""
    means = np.array([points[labels == j].mean(axis=0) for j in range(int(labels.max()) + 1)])
    return float(((points - means[labels]) ** 2).sum())


def draw_random_state(rng: np.random.Generator) -> int:
    """A seed for scikit-learn."""
    return int(rng.integers(2**31))


TRIMMED_STEPS = 100  # of Lloyd


def trimmed_kmeans(points: Doubles, k: int, leave: int, rng: np.random.Generator, restarts: int = 20) -> tuple[Ids, Bools]:
    """k-means in which the `leave` farthest points count in no centre: labels (the nearest centre), and which were left out.

    Each start clusters a random part of the points, so that some start without the odd ones; the least trimmed inertia wins. Of many points
    the starts run on landmarks, and all points take Lloyd's steps from the best of them.
    """
    if len(points) > MANY:
        return _trimmed_kmeans_large(points, k, leave, rng, restarts)
    labels = kmeans(points, k, rng)
    k = int(labels.max()) + 1 if len(labels) else 0
    if not leave or k >= len(points) - leave:
        return labels, np.zeros(len(points), dtype=np.bool_)
    return _find_best_trimmed_start(points, k, leave, rng, restarts)[1:]


def _trimmed_kmeans_large(points: Doubles, k: int, leave: int, rng: np.random.Generator, restarts: int) -> tuple[Ids, Bools]:
    k = count_distinct(points, k)
    if not leave or k <= 1:
        return kmeans(points, k, rng), np.zeros(len(points), dtype=np.bool_)
    some = points[sample_landmarks(len(points), rng, START_SAMPLE)]
    _, labels, odd = _find_best_trimmed_start(some, k, round(leave * len(some) / len(points)), rng, restarts)
    _, labels, odd = _run_trimmed_lloyd(points, _compute_means(some[~odd], labels[~odd]), leave, LARGE_STEPS)
    return labels, odd


def _find_best_trimmed_start(points: Doubles, k: int, leave: int, rng: np.random.Generator, restarts: int) -> tuple[float, Ids, Bools]:
    found = []
    for _ in range(restarts):
        part = rng.permutation(len(points))[: len(points) - leave]
        found.append(_run_trimmed_lloyd(points, _compute_means(points[part], kmeans(points[part], k, rng, restarts=1)), leave))
    return min(found, key=lambda start: start[0])  # the first of equals


def _run_trimmed_lloyd(points: Doubles, centres: Doubles, leave: int, steps: int = TRIMMED_STEPS) -> tuple[float, Ids, Bools]:
    """Lloyd's iteration, leaving out the farthest: trimmed inertia, nearest centres, which were left out."""
    labels, odd = np.full(len(points), -1, dtype=np.int64), np.zeros(len(points), dtype=np.bool_)
    for _ in range(steps):
        squares = _compute_squared_distances(points, centres)
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


def _compute_squared_distances(points: Doubles, centres: Doubles) -> Doubles:
    """(n, k) squared distances; of many without a table of all differences."""
    if len(points) > MANY:
        return np.asarray(cdist(points, centres, "sqeuclidean"))
    return np.asarray(((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2))


def _compute_means(points: Doubles, labels: Ids) -> Doubles:
    return np.array([points[labels == j].mean(axis=0) for j in np.unique(labels)])
