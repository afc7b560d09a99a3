"""Distinct groups, or a continuum?"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.grouping.choice.structure.cuts import LEVEL, Cut, least_p, suggested, told_cut
from coterie.grouping.choice.structure.placing import Structure, half_correlation, how_many, noise_reach, reined_views
from coterie.grouping.choice.structure.probes import Probes
from coterie.grouping.choice.structure.reference_test import ReferenceTest, compare_with_reference, structures
from coterie.grouping.choice.structure.steadiness import Steadiness, steadiness
from coterie.grouping.choice.structure.views import Views, views_of
from coterie.grouping.clusterers import canonical

DRAWS = 99
MOST = 12  # groups told at most, and never more than half the clients
LEAST_CLIENTS = 8
TESTED = 300  # clients compared with the reference: a sample of more would change nothing but the time


@dataclass(frozen=True)
class Grouped:
    """The answer, the groups it suggests, and the curves behind it: one number for each of 2, 3, ... groups."""

    p: float  # of groups this distinct in one population; 1 where no groups hold, nan with too few clients to say
    p_any: float  # of groups that stand out this far, whether they hold or not
    p_company: float  # of classes that keep each other's company this much; nan without label counts
    distinct: bool
    view: str
    k: int  # the groups told if they are distinct, or else those to look at; nobody is alone in one
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


def groups_of(probes: Probes, rng: np.random.Generator, draws: int = DRAWS, most: int = MOST) -> Grouped:
    """Look for groups, and compare with what grouping finds in one population."""
    n = len(probes.clients)
    most = max(min(most, n // 2) + 1, 2)  # one number more than may be told: the last is no verdict, as nobody knows what follows it
    views = reined_views(views_of(probes), rng)
    if n < LEAST_CLIENTS:
        compared = _nothing(views, most, rng)
    elif n <= TESTED:
        compared = compare_with_reference(views, most, rng, draws)
    else:
        some = np.sort(rng.permutation(n)[:TESTED])
        compared = compare_with_reference(reined_views(views_of(probes.take(some)), rng), most, rng, draws)
    found = structures(views, most, compared.kept)
    held = [steadiness(s, rng) for s in found]
    cut = told_cut(compared, held) if n >= LEAST_CLIENTS else None
    if cut is None:
        view = int(np.argmax([half_correlation(points, views.sizes) for points in views.points]))
        return _answer(views, found, held, compared, suggested(view, compared.excess[view], held[view]), distinct=False)
    return _answer(views, found, held, compared, cut, distinct=True)


def _nothing(views: Views, most: int, rng: np.random.Generator) -> ReferenceTest:
    """With too few clients to compare: the directions to look at, and no more."""
    kept = tuple(how_many(points, views.sizes, noise_reach(points, views.sizes, rng)) for points in views.points)
    blank = np.full((len(kept), most - 1), np.nan)
    return ReferenceTest(kept, blank, np.zeros_like(blank), blank, np.nan)


def _answer(views: Views, found: list[Structure], held: list[Steadiness], compared: ReferenceTest, cut: Cut, *, distinct: bool) -> Grouped:
    s, at = found[cut.view], cut.at
    halves = [tree.labels()[at] for tree in s.half_trees]
    raw, cut_labels = s.halves / views.reins[cut.view][:, None], s.tree.labels()[at]
    labels = adopted(s.coordinates, cut_labels)
    alone = np.flatnonzero(np.bincount(cut_labels)[cut_labels] == 1)
    return Grouped(
        p=float(compared.p[cut.view, at]) if distinct else least_p(compared, held),
        p_any=float(compared.p.min()),
        p_company=compared.p_company,
        distinct=distinct,
        view=views.names[cut.view],
        k=int(labels.max()) + 1,
        cut=at + 2,
        labels=labels,
        half_labels=np.stack([adopted(points, own) for points, own in zip(s.halves, halves, strict=True)]),
        stability=held[cut.view].halves,
        recurrence=held[cut.view].others,
        share=s.share,
        expected=compared.expected[cut.view],
        excess=compared.excess[cut.view],
        coordinates=s.coordinates,
        outliers=np.union1d(far_out(raw, labels), alone).astype(np.int64),
    )


def adopted(points: Doubles, labels: Ids) -> Ids:
    """The labels with clients that are alone in their group put into the nearest group of two or more."""
    sizes = np.bincount(labels)
    real = np.flatnonzero(sizes > 1)
    if len(real) in (0, len(sizes)):
        return canonical(labels)
    middles = np.stack([points[labels == g].mean(axis=0) for g in real])
    nearest = np.linalg.norm(points[:, None] - middles, axis=2).argmin(axis=1)
    return canonical(np.where(sizes[labels] > 1, labels, real[nearest]))


def far_out(halves: Doubles, labels: Ids) -> Ids:
    """Rows whose distance to the middle of their own group, as both halves agree on it, is far out by Tukey's fences."""
    middles = np.stack([np.median(halves[:, labels == g].mean(axis=0), axis=0) for g in range(labels.max() + 1)])[labels]
    squares = np.sum((halves[0] - middles) * (halves[1] - middles), axis=1)  # without noise in its mean
    low, high = np.quantile(squares, [0.25, 0.75])
    return np.flatnonzero(squares > high + 3 * (high - low)).astype(np.int64)
