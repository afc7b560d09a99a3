"""Distinct groups, or a continuum?"""

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import adjusted_rand_score

from coterie.core.arrays import Doubles, Ids
from coterie.grouping.choice.probes import Probes
from coterie.grouping.choice.reference import OnePopulation, company
from coterie.grouping.choice.structure import Structure, agreement, how_many, noise_reach, structure
from coterie.grouping.choice.views import Views, views_of
from coterie.grouping.clusterers import canonical

DRAWS = 199
MOST = 12  # groups looked for, and never more than half the clients
LEAST_CLIENTS = 4
TESTED = 300  # clients compared with the reference: a sample of more would change nothing but the time
LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """The federation against one population of the same spread; curves have one number for each of 2, 3, ... groups."""

    p: float  # of groups this distinct, over all views and numbers of groups; nan with too few clients to say
    p_company: float  # of classes that keep each other's company this much; nan without label counts
    view: int  # where the groups stand out most; if nowhere, where the halves agree most
    kept: int  # directions looked at in this view
    k: int  # the number of groups that stands out most, distinct or not
    expected: Doubles  # what groups account for in one population, on average
    excess: Doubles  # how many of its standard deviations the federation is away from that


@dataclass(frozen=True)
class Grouped:
    """The answer, the groups it suggests, and the curves behind it."""

    p: float
    p_company: float
    view: str
    k: int
    labels: Ids  # (n,) the groups at k, from all samples
    half_labels: Ids  # (2, n) from each half alone
    stability: Doubles  # agreement (adjusted Rand index) of the groups found on either half
    common: Doubles  # share of the common variance that groups found on one half account for in the other
    expected: Doubles
    excess: Doubles
    coordinates: Doubles  # (n, r) clients in the directions that both halves share
    outliers: Ids  # rows of clients far from their group

    @property
    def distinct(self) -> bool:
        return bool(self.p <= LEVEL)

    @property
    def overlapping(self) -> bool:
        """Whether there is structure without distinct groups."""
        return not self.distinct and bool(self.p_company <= LEVEL)


def groups_of(probes: Probes, rng: np.random.Generator, draws: int = DRAWS, most: int = MOST) -> Grouped:
    """Look for groups, and compare with what grouping finds in one population."""
    n = len(probes.clients)
    sample = probes if n <= TESTED else probes.take(np.sort(rng.permutation(n)[:TESTED]))
    compared = compare(views_of(sample), rng, draws, most)
    views = views_of(probes)
    found = structure(views.points[compared.view], views.sizes, len(compared.expected) + 1, compared.kept)
    return _answer(found, views.names[compared.view], compared)


def compare(views: Views, rng: np.random.Generator, draws: int, most: int = MOST) -> Comparison:
    """Parametric bootstrap: the whole search for groups, again in every draw, in as many directions as the federation has."""
    n = views.counts.shape[1]
    most = max(min(most, n // 2), 2)
    reaches = [noise_reach(points, views.sizes, rng) for points in views.points]
    kept = [how_many(points, views.sizes, reach) for points, reach in zip(views.points, reaches, strict=True)]
    if n < LEAST_CLIENTS:
        nothing = np.full(most - 1, np.nan)
        return Comparison(np.nan, np.nan, 0, kept[0], 2, nothing, nothing)
    found = _structures(views.points, views.sizes, most, kept)
    population = OnePopulation(views, reaches[-1])
    common = np.empty((draws, len(found), most - 1))
    within, companies = np.empty_like(common), np.empty(draws)
    for i in range(draws):
        points, counts = population.draw(rng)
        drawn = _structures(points, views.sizes, most, kept)
        common[i], within[i], companies[i] = [s.common for s in drawn], [s.within for s in drawn], company(counts)
    mean, deviation = common.mean(axis=0), np.maximum(common.std(axis=0), 1e-12)
    excess = (np.stack([s.common for s in found]) - mean) / deviation
    highest = ((common - mean) / deviation).max(axis=(1, 2))  # over views and numbers of groups at once: one test, not many
    p = _rank(float(excess.max()), highest)
    view = int(excess.max(axis=1).argmax()) if p <= LEVEL else int(np.argmax([agreement(v, views.sizes) for v in views.points]))
    k = 2 + int(np.argmax(found[view].within - within[:, view].mean(axis=0)))
    p_company = _rank(company(views.counts.sum(axis=0)), companies) if len(found) > 1 else np.nan
    return Comparison(p, p_company, view, kept[view], k, mean[view], excess[view])


def _structures(points: tuple[Doubles, ...], sizes: Doubles, most: int, kept: list[int]) -> list[Structure]:
    return [structure(view, sizes, most, directions) for view, directions in zip(points, kept, strict=True)]


def _rank(own: float, drawn: Doubles) -> float:
    """The share of draws at least as extreme, the observation counted as one of them."""
    return float((1 + np.sum(drawn >= own)) / (len(drawn) + 1))


def _answer(s: Structure, view: str, compared: Comparison) -> Grouped:
    at = compared.k - 2
    labels, halves = canonical(s.tree.labels()[at]), np.stack([tree.labels() for tree in s.half_trees])
    return Grouped(
        p=compared.p,
        p_company=compared.p_company,
        view=view,
        k=compared.k,
        labels=labels,
        half_labels=halves[:, at],
        stability=np.array([adjusted_rand_score(a, b) for a, b in zip(*halves, strict=True)]),
        common=s.common,
        expected=compared.expected,
        excess=compared.excess,
        coordinates=s.coordinates,
        outliers=outliers(s.halves, labels),
    )


def outliers(halves: Doubles, labels: Ids) -> Ids:
    """Rows whose distance to the middle of their own group, as both halves agree on it, is far out by Tukey's fences."""
    middles = np.stack([np.median(halves[:, labels == g].mean(axis=0), axis=0) for g in range(labels.max() + 1)])[labels]
    squares = np.sum((halves[0] - middles) * (halves[1] - middles), axis=1)  # without noise in its mean
    low, high = np.quantile(squares, [0.25, 0.75])
    return np.flatnonzero(squares > high + 3 * (high - low)).astype(np.int64)
