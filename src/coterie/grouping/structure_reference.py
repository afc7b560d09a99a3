"""The test of structure, step 3: comparison with one population of the same spread, and stability of the groups.

The reference population: label proportions come from a Dirichlet distribution around the federation's class totals, as dispersed as the
clients' label counts make likeliest; what goes beyond labels from a normal distribution with the covariance that the two halves share, less
noise; and sampling noise from the scatter of single samples, class by class. Client sizes and class totals are the real ones. It has no
gaps, so groups found in it are what grouping finds in a continuum.

Stability: the same groups must be found on the other half of the data, and among other clients. Cuts of a continuum move when clients are
left out; noise moves them when samples are exchanged.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln
from sklearn.metrics import adjusted_rand_score

from coterie._util.progress import track
from coterie.core.arrays import Doubles, Ids, Ints
from coterie.grouping.structure_points import (
    ViewGroups,
    WardTree,
    compute_cross_covariance,
    compute_last_gains,
    count_directions,
    estimate_noise_level,
    group_view,
    shrink_outliers,
)
from coterie.grouping.structure_views import Views, compute_scatter, compute_whitening

RAKINGS = 20  # sweeps over rows and columns; totals need not be met to the last sample


class ReferencePopulation:
    """Draws the points of every view, as `Views.points` has them, and the label counts (n, C) they come with."""

    def __init__(self, views: Views, reach: float) -> None:
        """`reach` is that of noise in the last view."""
        self.views = views
        self.concentration = fit_dirichlet(views.counts.sum(axis=0))
        self.factor = _compute_debiased_factor(views.points[-1], views.sizes, reach)  # without labels: of all there is

    def draw(self, rng: np.random.Generator) -> tuple[tuple[Doubles, ...], Doubles]:
        views, (n, classes) = self.views, self.views.counts.shape[1:]
        held = views.counts.sum(axis=0)
        proportions = rake_proportions(rng.gamma(self.concentration, size=(n, classes)) + 1e-300, held.sum(axis=1), held.sum(axis=0))
        counts = np.stack([rng.multinomial(m.astype(np.int64), proportions) for m in views.sizes]).astype(np.float64)
        noise = [  # of the mean of a half's samples of each class
            rng.standard_normal((2, n, len(factor))) @ factor / np.sqrt(np.maximum(counts[:, :, c, None], 1))
            for c, factor in enumerate(views.noise)
        ]
        even = compute_whitening(compute_scatter(noise, counts), counts.sum(axis=(0, 1)))
        shares = counts / views.sizes[..., None]
        beyond = sum(shares[:, :, c, None] * own for c, own in enumerate(noise)) @ even
        beyond += rng.standard_normal((n, len(self.factor))) @ self.factor  # the client's own, in both halves
        labels = shares @ (views.means @ even)
        return (labels + beyond, beyond)[: len(views.names)], counts.sum(axis=0)


def fit_dirichlet(counts: Doubles) -> Doubles:
    """(C,) the concentration, in proportion to the class totals, under which these counts (n, C) are likeliest (Dirichlet-multinomial).

    One number is fitted, not one a class: how common a class is follows from the totals.
    """
    totals, sizes = counts.sum(axis=0) + 0.5, counts.sum(axis=1)
    mean = totals / totals.sum()

    def surprise(log: float) -> float:
        a = np.exp(log) * mean
        ways = len(counts) * (gammaln(a.sum()) - gammaln(a).sum()) - gammaln(sizes + a.sum()).sum() + gammaln(counts + a).sum()
        return -float(ways)

    return np.asarray(np.exp(minimize_scalar(surprise, bounds=(-7, 12), method="bounded").x) * mean)


def rake_proportions(amounts: Doubles, sizes: Doubles, totals: Doubles) -> Doubles:
    """(n, C) label proportions whose mixture over clients of these sizes has these class totals (iterative proportional fitting).

    Which client holds much of a class is chance; how much of it there is in the federation is known. Letting that vary as well makes the
    reference clump more than a federation would, and the test cautious.
    """
    for _ in range(RAKINGS):
        of_class = amounts.sum(axis=0)  # zero, after the first time, of a class that none of these clients holds
        amounts = amounts * np.divide(totals, of_class, out=np.zeros_like(of_class), where=of_class > 0)
        amounts = amounts * (sizes / amounts.sum(axis=1))[:, None]
    return np.asarray(amounts / amounts.sum(axis=1, keepdims=True))


def _compute_debiased_factor(points: Doubles, sizes: Doubles, reach: float) -> Doubles:
    """(r, p) a factor F of the covariance F'F that the halves share: of its eigenvalues, what rises above the reach of noise."""
    values, directions = np.linalg.eigh(compute_cross_covariance(points, sizes[0] * sizes[1] / sizes.sum(axis=0)))
    kept = values > reach
    return np.asarray(np.sqrt(values[kept] - reach)[:, None] * directions[:, kept].T)


def compute_class_cooccurrence(counts: Doubles) -> float:
    """How much classes co-occur: the sum of squared correlations, over clients, between (roots of) label proportions.

    In a Dirichlet distribution one class has no more to do with a second than with a third, so a federation in which the same classes
    come together again and again stands out against the reference.
    """
    roots = np.sqrt(counts / counts.sum(axis=1, keepdims=True))
    roots = roots[:, roots.std(axis=0) > 0]
    if roots.shape[1] < 3:  # with two classes, one determines the other
        return 0.0
    return float(np.sum(np.triu(np.corrcoef(roots.T), 1) ** 2))


@dataclass(frozen=True)
class ReferenceTest:
    """Curves have one row a view and one number for each of 2, 3, ... groups."""

    kept: tuple[int, ...]  # directions looked at in each view
    expected: Doubles  # the share that groups account for in one population, on average
    excess: Doubles  # how many of its standard deviations the gain of the last group is away from that in one population
    p: Doubles  # the chance that one population has an excess like this anywhere: in any view, at any number of groups
    p_company: float  # of classes that co-occur this much; nan without label counts


def compare_with_reference(views: Views, most: int, rng: np.random.Generator, draws: int) -> ReferenceTest:
    """Parametric bootstrap: the whole search for groups, again in every draw, in as many directions as the federation has."""
    reaches = [estimate_noise_level(points, views.sizes, rng) for points in views.points]
    kept = [count_directions(points, views.sizes, reach) for points, reach in zip(views.points, reaches, strict=True)]
    found = np.stack([s.share for s in group_views(views, most, kept)])
    population = ReferencePopulation(views, reaches[-1])
    share, companies = np.empty((draws, *found.shape)), np.empty(draws)
    for i in track(range(draws), "looking for groups"):
        drawn, counts = population.draw(rng)
        share[i] = [
            group_view(shrink_outliers(points, views.sizes, k)[0], views.sizes, most, k).share
            for points, k in zip(drawn, kept, strict=True)
        ]
        companies[i] = compute_class_cooccurrence(counts)
    own, others = compute_last_gains(found), compute_last_gains(share)
    mean, deviation = others.mean(axis=0), np.maximum(others.std(axis=0), 1e-9)
    excess, highest = (own - mean) / deviation, ((others - mean) / deviation).max(axis=(1, 2))
    return ReferenceTest(
        kept=tuple(kept),
        expected=share.mean(axis=0),
        excess=excess,
        p=_compute_p(excess, highest),
        p_company=float(_compute_p(np.array(compute_class_cooccurrence(views.counts.sum(axis=0))), companies))
        if len(found) > 1
        else np.nan,
    )


def group_views(views: Views, most: int, kept: list[int] | tuple[int, ...]) -> list[ViewGroups]:
    """The structure of every view."""
    return [group_view(points, views.sizes, most, k) for points, k in zip(views.points, kept, strict=True)]


def _compute_p(own: Doubles, drawn: Doubles) -> Doubles:
    """The share of draws at least as extreme, the observation counted as one of them."""
    return np.asarray((1 + np.sum(drawn >= own[..., None], axis=-1)) / (len(drawn) + 1))


MIN_AGREEMENT = 0.5  # adjusted Rand index of the groups found on either half, below which a number of groups is no verdict
MIN_RECURRENCE = 0.75  # Jaccard index of the group that recurs worst among other clients; .75 is usual for a stable group (Hennig, 2007)
DRAWINGS = 50
SHARE = 2 / 3  # of the clients in a drawing
MOST_DRAWN = 300  # clients in a drawing: more would change nothing but the time


@dataclass(frozen=True)
class Stability:
    """At 2, 3, ... groups: how well the groups are found again, and of what sizes they are."""

    halves: Doubles  # (most - 1,) agreement of the groups found on either half
    others: Doubles  # (most - 1,) how well the worst group is found again among a part of the clients
    groups: Ints  # (most - 1,) groups of two clients or more; one client is no group
    alone: Ints  # (most - 1,) clients by themselves
    median_size: Doubles  # (most - 1,) the median size of groups
    smallest: Ints  # (most - 1,)

    @property
    def holds(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """(most - 1,) whether this many groups can be a verdict.

        Never the last number looked at: what comes after it is unknown. Nor where as many clients stand alone as there are groups.
        """
        stable = (self.halves >= MIN_AGREEMENT) & (self.others >= MIN_RECURRENCE) & (self.groups >= 2) & (self.alone < self.groups)
        stable[-1] = False
        return stable


def compute_stability(found: ViewGroups, rng: np.random.Generator) -> Stability:
    """How well the groups of a view hold."""
    labels, halves = found.tree.labels(), [tree.labels() for tree in found.half_trees]
    sizes = [np.bincount(row) for row in labels]
    return Stability(
        halves=np.array([adjusted_rand_score(a, b) for a, b in zip(*halves, strict=True)]),
        others=compute_recurrence(found.coordinates, labels, rng),
        groups=np.array([int(np.sum(row > 1)) for row in sizes]),
        alone=np.array([int(np.sum(row == 1)) for row in sizes]),
        median_size=np.array([float(np.median(row)) for row in sizes]),
        smallest=np.array([int(row.min()) for row in sizes]),
    )


def compute_recurrence(points: Doubles, labels: Ids, rng: np.random.Generator) -> Doubles:
    """(most - 1,) for labels (most - 1, n) at 2, 3, ... groups: the Jaccard index of the group that recurs worst, on average.

    Part of the clients are drawn and grouped again; each group is compared with the new group that is most like it.
    """
    n, found = len(points), np.zeros((DRAWINGS, len(labels)))
    for drawing in found:
        some = np.sort(rng.permutation(n)[: min(int(np.ceil(SHARE * n)), MOST_DRAWN)])
        again = WardTree.from_points(points[some], min(len(labels) + 1, len(some))).labels()
        for i, (before, after) in enumerate(zip(labels, again, strict=False)):
            drawing[i] = _find_worst_jaccard(before[some], after, np.bincount(before))
    return np.asarray(found.mean(axis=0))


def _find_worst_jaccard(before: Ids, after: Ids, sizes: Ints) -> float:
    """The Jaccard index of the group found again worst; groups of one client, and those without a drawn client, aside."""
    table = np.bincount(before * (after.max() + 1) + after, minlength=len(sizes) * (after.max() + 1)).reshape(len(sizes), -1)
    old, new = table.sum(axis=1), table.sum(axis=0)
    best = (table / np.maximum(old[:, None] + new - table, 1)).max(axis=1)
    counted = (old > 0) & (sizes > 1)
    return float(best[counted].min()) if counted.any() else 0.0
