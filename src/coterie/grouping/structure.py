"""The test of structure: are there distinct groups, or one population? Used by methods and by `coterie inspect`.

Clients are asked for gradients on two halves of their data (`structure_views`); groups of their points (`structure_points`) are claimed
only where they are more distinct than one population of the same spread would show, and stable (`structure_reference`). The answer can
be one.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.grouping.kmeans import renumber_labels
from coterie.grouping.structure_points import (
    ViewGroups,
    compute_half_correlation,
    count_directions,
    estimate_noise_level,
    shrink_outliers_of_views,
)
from coterie.grouping.structure_reference import ReferenceTest, Stability, compare_with_reference, compute_stability, group_views
from coterie.grouping.structure_views import Probes, Views, make_views

LEVEL = 0.05

# Shares of the highest excess: what stands out at least so far is as plain, and nearly as plain. Chosen on other seeds than inspect.md
# reports.
COMPARABLE = 0.5
NEARLY = 0.7


@dataclass(frozen=True)
class Cut:
    """A view, and the place in its curves: 0 is two groups."""

    view: int
    at: int


def select_cut(compared: ReferenceTest, held: list[Stability]) -> Cut | None:
    """The groups that are distinct, if any are; where views give different numbers equally clearly, the finer one."""
    best = [_select_cut_of_view(view, compared, stable) for view, stable in enumerate(held)]
    found = [(cut, compared.excess[cut.view, highest]) for cut, highest in filter(None, best)]
    if not found:
        return None
    plain = [(held[cut.view].groups[cut.at], excess, cut) for cut, excess in found if excess >= COMPARABLE * max(e for _, e in found)]
    return max(plain, key=lambda cut: cut[:2])[2]


def _select_cut_of_view(view: int, compared: ReferenceTest, stable: Stability) -> tuple[Cut, int] | None:
    """The cut of one view, and the place of its highest excess.

    More groups than where the excess is highest are reported if they stand out at least half as far and are about as large: where one group
    is far from two that are near each other, two groups stand out most and three are plain all the same. Part of a group is smaller. And
    where the excess is highest by such a part, which can be when there is hardly anything left to explain, the groups before it are
    reported.
    """
    excess, can = compared.excess[view], stable.holds & (compared.p[view] <= LEVEL)
    if not can.any():
        return None
    highest = int(np.argmax(np.where(can, excess, -np.inf)))
    finer = can & (excess >= COMPARABLE * excess[highest]) & (stable.smallest >= stable.median_size[highest] / 2)
    finer[: highest + 1] = False
    if finer.any():
        return Cut(view, int(np.flatnonzero(finer)[-1])), highest
    coarser = can & (excess >= NEARLY * excess[highest]) & (stable.smallest >= stable.median_size / 2)
    coarser[highest:] = False
    if stable.smallest[highest] < stable.median_size[highest] / 2 and coarser.any():
        return Cut(view, int(np.flatnonzero(coarser)[-1])), highest
    return Cut(view, highest), highest


def suggest_cut(view: int, excess: np.ndarray[tuple[int, ...], np.dtype[np.float64]], stable: Stability) -> Cut:
    """The groups to look at where none are distinct: those that stand out most among those that hold, or else that agree most."""
    if stable.holds.any():
        return Cut(view, int(np.argmax(np.where(stable.holds, excess, -np.inf))))
    return Cut(view, int(np.argmax(np.where(stable.groups >= 2, stable.halves, -1.0))))


def find_least_p(compared: ReferenceTest, held: list[Stability]) -> float:
    """That of the groups that stand out most among those that hold; 1 where none do, nan where nothing was compared."""
    if np.isnan(compared.p).all():
        return float("nan")
    holding = np.stack([stable.holds for stable in held])
    return float(compared.p[holding].min()) if holding.any() else 1.0


DRAWS = 99
MAX_GROUPS = 12  # groups reported at most, and never more than half the clients
MIN_CLIENTS = 8
MAX_TESTED = 300  # clients compared with the reference: a sample of more would change nothing but the time


@dataclass(frozen=True)
class StructureResult:
    """The answer, the groups it suggests, and the curves behind it: one number for each of 2, 3, ... groups."""

    p: float  # of groups this distinct in one population; 1 where no groups hold, nan with too few clients
    p_any: float  # of groups that stand out this far, whether they hold or not
    p_company: float  # of classes that co-occur this much; nan without label counts
    distinct: bool
    view: str
    k: int  # the groups reported if they are distinct, or else those to look at; no client is alone in one
    cut: int  # the number of groups in the curves that these came from: k, and clients by themselves
    labels: Ids  # (n,) the groups, from all samples
    half_labels: Ids  # (2, n) from each half alone
    stability: Doubles  # agreement (adjusted Rand index) of the groups found on either half
    recurrence: Doubles  # how well the worst group is found again among a part of the clients (Jaccard index)
    share: Doubles  # of the variance that groups account for: mean of that in their own samples and that in the other half
    expected: Doubles  # the same in one population
    excess: Doubles  # how far the gain by the last group stands out against one population, in its standard deviations
    coordinates: Doubles  # (n, r) clients in the directions that both halves share, those far out drawn in
    outliers: Ids  # rows of clients far from their group, or by themselves

    @property
    def number(self) -> int:
        """How many groups there are: one where none are distinct."""
        return self.k if self.distinct else 1

    @property
    def overlapping(self) -> bool:
        """Whether there is structure without distinct groups."""
        return not self.distinct and bool(self.p_company <= LEVEL)


def find_groups(probes: Probes, rng: np.random.Generator, draws: int = DRAWS, most: int = MAX_GROUPS) -> StructureResult:
    """Look for groups, and compare with what grouping finds in one population."""
    n = len(probes.clients)
    most = max(min(most, n // 2) + 1, 2)  # one number more than may be reported: the last is no verdict, as what follows it is unknown
    views = shrink_outliers_of_views(make_views(probes), rng)
    if n < MIN_CLIENTS:
        compared = _skip_reference(views, most, rng)
    elif n <= MAX_TESTED:
        compared = compare_with_reference(views, most, rng, draws)
    else:
        some = np.sort(rng.permutation(n)[:MAX_TESTED])
        compared = compare_with_reference(shrink_outliers_of_views(make_views(probes.take(some)), rng), most, rng, draws)
    found = group_views(views, most, compared.kept)
    held = [compute_stability(s, rng) for s in found]
    cut = select_cut(compared, held) if n >= MIN_CLIENTS else None
    if cut is None:
        view = int(np.argmax([compute_half_correlation(points, views.sizes) for points in views.points]))
        return _make_result(views, found, held, compared, suggest_cut(view, compared.excess[view], held[view]), distinct=False)
    return _make_result(views, found, held, compared, cut, distinct=True)


def _skip_reference(views: Views, most: int, rng: np.random.Generator) -> ReferenceTest:
    """With too few clients to compare: the directions to look at, and no more."""
    kept = tuple(count_directions(points, views.sizes, estimate_noise_level(points, views.sizes, rng)) for points in views.points)
    blank = np.full((len(kept), most - 1), np.nan)
    return ReferenceTest(kept, blank, np.zeros_like(blank), blank, np.nan)


def _make_result(
    views: Views, found: list[ViewGroups], held: list[Stability], compared: ReferenceTest, cut: Cut, *, distinct: bool
) -> StructureResult:
    s, at = found[cut.view], cut.at
    halves = [tree.labels()[at] for tree in s.half_trees]
    raw, cut_labels = s.halves / views.shrink_factors[cut.view][:, None], s.tree.labels()[at]
    labels = merge_singletons(s.coordinates, cut_labels)
    alone = np.flatnonzero(np.bincount(cut_labels)[cut_labels] == 1)
    return StructureResult(
        p=float(compared.p[cut.view, at]) if distinct else find_least_p(compared, held),
        p_any=float(compared.p.min()),
        p_company=compared.p_company,
        distinct=distinct,
        view=views.names[cut.view],
        k=int(labels.max()) + 1,
        cut=at + 2,
        labels=labels,
        half_labels=np.stack([merge_singletons(points, own) for points, own in zip(s.halves, halves, strict=True)]),
        stability=held[cut.view].halves,
        recurrence=held[cut.view].others,
        share=s.share,
        expected=compared.expected[cut.view],
        excess=compared.excess[cut.view],
        coordinates=s.coordinates,
        outliers=np.union1d(find_outliers(raw, labels), alone).astype(np.int64),
    )


def merge_singletons(points: Doubles, labels: Ids) -> Ids:
    """The labels with clients that are alone in their group put into the nearest group of two or more."""
    sizes = np.bincount(labels)
    real = np.flatnonzero(sizes > 1)
    if len(real) in (0, len(sizes)):
        return renumber_labels(labels)
    middles = np.stack([points[labels == g].mean(axis=0) for g in real])
    nearest = np.linalg.norm(points[:, None] - middles, axis=2).argmin(axis=1)
    return renumber_labels(np.where(sizes[labels] > 1, labels, real[nearest]))


def find_outliers(halves: Doubles, labels: Ids) -> Ids:
    """Rows whose distance to the middle of their own group, as both halves agree on it, is far out by Tukey's fences."""
    middles = np.stack([np.median(halves[:, labels == g].mean(axis=0), axis=0) for g in range(labels.max() + 1)])[labels]
    squares = np.sum((halves[0] - middles) * (halves[1] - middles), axis=1)  # without noise in its mean
    low, high = np.quantile(squares, [0.25, 0.75])
    return np.flatnonzero(squares > high + 3 * (high - low)).astype(np.int64)
