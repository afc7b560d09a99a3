"""The test of structure, step 2: points in the directions that both halves share, grouped by Ward's method.

It measures how well k groups explain what a client's two halves have in common.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.cluster import hierarchy

from coterie.core.arrays import Doubles, Ids, Ints
from coterie.grouping.structure_views import Views


@dataclass(frozen=True)
class WardTree:
    """The tree laid out as a dendrogram: every node is a span of places, and the last k - 1 merges are what k groups keep apart.

    (SciPy's `fcluster` cuts at one k at a time and checks the tree each time: most of what a reference draw would cost.)
    """

    order: Ints  # (n,) the client at each place
    spans: Ints  # (most - 1, 3): begin, split and end of the last merges, the last of all first

    @classmethod
    def from_points(cls, points: Doubles, most: int) -> "WardTree":
        n, tree = len(points), hierarchy.linkage(points, "ward")
        members = [1] * n + tree[:, 3].astype(int).tolist()
        begin, spans = [0] * (2 * n - 1), []
        for row, (left, right) in reversed(list(enumerate(tree[:, :2].astype(int).tolist()))):
            begin[left] = begin[n + row]
            begin[right] = begin[n + row] + members[left]
            spans.append((begin[left], begin[right], begin[left] + members[n + row]))
        return cls(np.argsort(begin[:n]), np.array(spans[: most - 1]))

    def labels(self) -> Ids:
        """(most - 1, n) groups at 2, 3, ... `most`."""
        places = np.empty(len(self.order), dtype=np.int64)
        places[self.order] = np.arange(len(places))
        splits = self.spans[:, 1]
        return np.stack([np.searchsorted(np.sort(splits[:k]), places, side="right") for k in range(1, len(splits) + 1)]).astype(np.int64)

    def explained(self, here: Doubles, there: Doubles) -> Doubles:
        """(most - 1,) at 2, 3, ... groups: the inner product of the group means `here` with the members' points `there`, summed."""
        sums = [np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows[self.order], axis=0)]) for rows in (here, there)]

        def of(begin: Ints, end: Ints) -> Doubles:
            first, second = (total[end] - total[begin] for total in sums)
            return np.asarray(np.sum(first * second, axis=1) / (end - begin))

        begin, split, end = self.spans.T
        gained = of(begin, split) + of(split, end) - of(begin, end)  # each split replaces one group by two
        return np.asarray(of(np.zeros(1, dtype=np.int64), np.array([len(self.order)])) + np.cumsum(gained))


# Directions with much variance are toned down to this power of it, so that the last groups to part are heard beside the first. This and
# MAX_DISTANCE were chosen on other seeds than docs/reference/inspect-calibration.md reports.
EVENING_POWER = 0.4
MAX_DISTANCE = 2.0  # times the median distance from the middle, to which clients farther out are drawn in
PAIRINGS = 39


@dataclass(frozen=True)
class ViewGroups:
    """The groups of one view at every number of groups from 2 up, found on either half and on all samples."""

    coordinates: Doubles  # (n, r) all samples, shrunken
    halves: Doubles  # (2, n, r)
    tree: WardTree  # of all samples
    half_trees: tuple[WardTree, WardTree]
    # (most - 1,) the share of the variance that groups account for: the mean of that in the samples they were found on, which is proud of
    # its own noise, and that in the other half, which forgets how tight a group is.
    share: Doubles


def group_view(points: Doubles, sizes: Doubles, most: int, kept: int) -> ViewGroups:
    """Ward's groups of points (2, n, p), in the `kept` directions that both halves share most, every client shrunk by its own noise."""
    everything, halves = place_clients(points, sizes, kept)
    tree, trees = WardTree.from_points(everything, most), [WardTree.from_points(half, most) for half in halves]
    across = np.mean([trees[h].explained(halves[h], halves[1 - h]) for h in (0, 1)], axis=0)
    within = _compute_share(tree.explained(everything, everything), float(np.sum(everything**2)))
    return ViewGroups(
        coordinates=everything,
        halves=halves,
        tree=tree,
        half_trees=(trees[0], trees[1]),
        share=(within + _compute_share(across, float(np.sum(halves[0] * halves[1])))) / 2,
    )


def compute_last_gains(share: Doubles) -> Doubles:
    """(..., most - 1) by how much one group more cuts down what is left unexplained, as the logarithm of the ratio.

    Distinct groups are where this is high: the last of them leaves little. In a continuum every further group takes its part, the first
    split as well as the next, whatever the tails or the shape; and groups far from each other do not drown those near each other, since
    what is left counts and not what has been explained.
    """
    left = np.maximum(1 - share, 1e-3)  # no samples show more than that
    before = np.concatenate([np.ones_like(left[..., :1]), left[..., :-1]], axis=-1)
    return np.asarray(np.log(before / left))


def place_clients(points: Doubles, sizes: Doubles, kept: int) -> tuple[Doubles, Doubles]:
    """Coordinates of all samples (n, r) and of the halves (2, n, r) in the `kept` directions that both halves share most."""
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    points = points - np.einsum("n,hnp->p", weight / weight.sum(), points) / 2
    spread, directions = compute_shared_directions(points, weight, kept)
    scores = points @ directions  # (2, n, r)
    noise = np.mean(weight[:, None] * (scores[0] - scores[1]) ** 2, axis=0)  # (r,) of a single sample
    everything = np.einsum("hnr,hn->nr", scores, sizes) / sizes.sum(axis=0)[:, None] * compute_shrinkage(spread, noise, sizes.sum(axis=0))
    evened = np.maximum(np.mean(everything**2, axis=0), 1e-300) ** (-EVENING_POWER / 2)
    return everything * evened, scores * compute_shrinkage(spread, noise, sizes) * evened


def compute_shrink_factors(points: Doubles, sizes: Doubles, kept: int) -> Doubles:
    """(n,) the factors that draw clients far out in to MAX_DISTANCE; 1 for all others.

    A few clients far from all others, as heavy tails have them, would account for most of the variance and pass for groups. A group far
    out keeps its place apart: it is drawn in as a whole.
    """
    distances = np.linalg.norm(place_clients(points, sizes, kept)[0], axis=1)
    longest = MAX_DISTANCE * np.median(distances)
    if longest <= 0:  # most clients are in the middle: none is far out
        return np.ones(len(distances))
    return np.asarray(np.minimum(1.0, longest / np.maximum(distances, longest)))


def shrink_outliers(points: Doubles, sizes: Doubles, kept: int) -> tuple[Doubles, Doubles]:
    """The points about their middle, with clients far out drawn in, and by how much they were."""
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    middle = np.einsum("n,hnp->p", weight / weight.sum(), points) / 2
    factors = compute_shrink_factors(points, sizes, kept)
    return (points - middle) * factors[:, None], factors


def shrink_outliers_of_views(views: Views, rng: np.random.Generator) -> Views:
    """The same federation with clients far out drawn in, in every view."""
    kept = [count_directions(points, views.sizes, estimate_noise_level(points, views.sizes, rng)) for points in views.points]
    drawn_in = [shrink_outliers(points, views.sizes, k) for points, k in zip(views.points, kept, strict=True)]
    return replace(views, points=tuple(points for points, _ in drawn_in), shrink_factors=tuple(factors for _, factors in drawn_in))


def compute_shared_directions(points: Doubles, weight: Doubles, kept: int) -> tuple[Doubles, Doubles]:
    """Variances (r,) and directions (p, r) that both halves agree on most, the last one most of all.

    The covariance across halves has no noise in its mean.
    """
    values, directions = np.linalg.eigh(compute_cross_covariance(points, weight))  # ascending
    return np.maximum(values[-kept:], 1e-6 * np.abs(values).max() + 1e-300), directions[:, -kept:]


def estimate_noise_level(points: Doubles, sizes: Doubles, rng: np.random.Generator) -> float:
    """How high noise alone raises the highest eigenvalue of the covariance across halves, on average.

    The difference of a client's halves is noise only. Paired with the difference of another client it shows what noise makes of nothing.
    """
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    noise = (points[0] - points[1]) / np.sqrt(2)
    scale = np.sqrt(weight)[:, None]
    drawn = []
    for _ in range(PAIRINGS):
        order, signs = rng.permutation(len(weight)), rng.choice([-1.0, 1.0], size=(len(weight), 1))
        other = scale[order] * noise[order] / scale  # as noisy as that of a client of this size
        drawn.append(np.linalg.eigvalsh(compute_cross_covariance(np.stack([signs * noise, other]), weight))[-1])
    return float(np.mean(drawn))


def count_directions(points: Doubles, sizes: Doubles, reach: float) -> int:
    """The number of directions that rise above the reach of noise, and one in any case."""
    values = np.linalg.eigvalsh(compute_cross_covariance(points, sizes[0] * sizes[1] / sizes.sum(axis=0)))
    return max(int(np.sum(values > max(reach, 1e-12 * values[-1]))), 1)


def compute_cross_covariance(points: Doubles, weight: Doubles) -> Doubles:
    """(p, p) the covariance of one half with the other, made symmetric."""
    share = weight[:, None] / weight.sum()
    cross = (share * (points[0] - np.sum(share * points[0], axis=0))).T @ points[1]
    return np.asarray((cross + cross.T) / 2)


def compute_half_correlation(points: Doubles, sizes: Doubles) -> float:
    """The correlation of the halves over all clients and directions: 0 is chance, 1 no noise at all."""
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    own = [np.trace(compute_cross_covariance(np.stack([half, half]), weight)) for half in points]
    return float(np.trace(compute_cross_covariance(points, weight)) / max(np.sqrt(own[0] * own[1]), 1e-300))


def compute_shrinkage(spread: Doubles, noise: Doubles, sizes: Doubles) -> Doubles:
    """(..., n, r) how much of a client's score is signal, on average: the best linear prediction."""
    return np.asarray(spread / (spread + noise / sizes[..., None]))


def _compute_share(part: Doubles, whole: float) -> Doubles:
    """Between nothing and all; nothing where the halves have nothing in common."""
    return np.clip(part / whole, 0.0, 1.0) if whole > 0 else np.zeros_like(part)
