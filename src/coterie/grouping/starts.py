"""k-means from several starts at once: the labels that scikit-learn finds one start after the other, in products of all starts together.

The starts are drawn as scikit-learn draws them (greedy k-means++, one generator through all of them), steps and the rule by which the best
start is chosen are Lloyd's and its own. What takes it time among a hundred points are its calls, and these are shared here. Where rounding
would decide (two candidates, centres or results as good as each other), or a centre loses all its points, nothing is decided here.
"""

import numpy as np

from coterie.core.arrays import Array, Bools, Doubles, Ids, Ints

STEPS, TOLERANCE = 300, 1e-4  # scikit-learn's: at most so many steps, or until centres move by less than this share of the variance
TIE = 1e-12  # what differs by less than this share of the points' squares may be equal but for rounding
FAINT = 1e-8  # squared distances that sum up to less than this share of the squares are too near to rounding to be drawn by


class UndecidedError(Exception):
    """Another order of the same sums might find other groups."""


def best_of_starts(points: Doubles, k: int, restarts: int, state: int) -> Ids | None:
    """(n,) labels of the start that ends with the least inertia; None where it is for scikit-learn itself to say."""
    points = points - points.mean(axis=0)
    tolerance, scale = TOLERANCE * float(points.var(axis=0).mean()), float((points**2).sum())
    try:
        labels, centres = _lloyd(points, _plus_plus(points, k, restarts, state, scale), tolerance, scale)
    except UndecidedError:
        return None
    inertia = [float(((points - centres[i][labels[i]]) ** 2).sum()) for i in range(restarts)]
    best = 0
    for i in range(1, restarts):
        if inertia[i] < inertia[best] + TIE * scale and not _same(labels[i], labels[best], k):
            if inertia[i] > inertia[best] - TIE * scale:
                return None
            best = i
    return np.asarray(labels[best])


def _plus_plus(points: Doubles, k: int, restarts: int, state: int, scale: float) -> Doubles:
    """(R, k, r) centres to begin with: each next one is the best of a few points drawn by their squared distance from those so far."""
    n, trials, starts = len(points), 2 + int(np.log(k)), np.arange(restarts)
    draws = np.random.RandomState(state).random_sample((restarts, 1 + (k - 1) * trials))
    shares = np.cumsum(np.full(n, 1 / n))
    chosen = np.empty((restarts, k), dtype=np.int64)
    chosen[:, 0] = np.searchsorted(shares / shares[-1], draws[:, 0], side="right")
    closest = _apart(points, chosen[:, 0])  # (R, n) squared distances from the nearest centre
    for c in range(1, k):
        sums = closest.cumsum(axis=1)
        if sums[:, -1].min() < FAINT * scale:
            raise UndecidedError
        drawn = draws[:, 1 + (c - 1) * trials : 1 + c * trials] * sums[:, -1:]
        tried = np.minimum((sums[:, None, :] < drawn[:, :, None]).sum(axis=2), n - 1)  # (R, trials)
        apart = np.minimum(_apart(points, tried.ravel()).reshape(restarts, trials, n), closest[:, None, :])
        left = apart.sum(axis=2)
        best = left.argmin(axis=1)
        chosen[:, c], closest = tried[starts, best], apart[starts, best]
        _decided((left <= left[starts, best][:, None] + TIE * scale) & (tried != chosen[:, c : c + 1]))
    return np.asarray(points[chosen])


def _apart(points: Doubles, some: Ints) -> Doubles:
    """(m, n) squared distances of some points from all."""
    squares = np.einsum("ij,ij->i", points, points)
    return np.asarray(np.maximum(squares[some][:, None] + squares - 2 * points[some] @ points.T, 0.0))


def _lloyd(points: Doubles, centres: Doubles, tolerance: float, scale: float) -> tuple[Ids, Doubles]:
    """(R, n) labels and (R, k, r) centres at the end of every start; those that have ended are left where they are."""
    restarts, k, _ = centres.shape
    labels: Ids = np.full((restarts, len(points)), -1, dtype=np.int64)
    active, unsettled = np.arange(restarts), []
    for _ in range(STEPS):
        before, found = centres[active], _nearest_centres(points, centres[active], scale)
        members: Array = found[:, None, :] == np.arange(k)[:, None]  # (a, k, n)
        sizes = members.sum(axis=2)
        _decided(sizes == 0)
        moved = (members.reshape(-1, len(points)).astype(np.float64) @ points).reshape(before.shape) / sizes[:, :, None]
        settled = (found == labels[active]).all(axis=1)
        small = ~settled & (((moved - before) ** 2).sum(axis=(1, 2)) <= tolerance)
        centres[active], labels[active] = moved, found
        unsettled.append(active[small])
        active = active[~(settled | small)]
        if not len(active):
            break
    late = np.concatenate([*unsettled, active])  # their centres have moved since they were labelled
    labels[late] = _nearest_centres(points, centres[late], scale)
    return labels, centres


def _nearest_centres(points: Doubles, centres: Doubles, scale: float) -> Ids:
    """(a, n) the nearest of each start's k centres."""
    flat = centres.reshape(-1, centres.shape[2])
    apart = (np.einsum("ij,ij->i", flat, flat) - 2 * points @ flat.T).reshape(len(points), *centres.shape[:2])
    nearest: Ids = apart.argmin(axis=2)
    least = np.take_along_axis(apart, nearest[:, :, None], axis=2)
    if np.count_nonzero(apart <= least + TIE * scale) > nearest.size:
        raise UndecidedError
    return nearest.T


def _decided(ties: Bools) -> None:
    if ties.any():
        raise UndecidedError


def _same(one: Ids, two: Ids, k: int) -> bool:
    """Whether two labellings are one but for the names of groups: as many pairs of names as names."""
    return len(np.unique(one * k + two)) == len(np.unique(one)) == len(np.unique(two))
