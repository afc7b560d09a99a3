"""The federation against one population of the same spread."""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles
from coterie.grouping.choice.structure.placing import Structure, how_many, last_gains, noise_reach, reined, structure
from coterie.grouping.choice.structure.reference import OnePopulation, company
from coterie.grouping.choice.structure.views import Views


@dataclass(frozen=True)
class ReferenceTest:
    """Curves have one row a view and one number for each of 2, 3, ... groups."""

    kept: tuple[int, ...]  # directions looked at in each view
    expected: Doubles  # the share that groups account for in one population, on average
    excess: Doubles  # how many of its standard deviations the gain of the last group is away from that in one population
    p: Doubles  # the chance that one population has an excess like this anywhere: in any view, at any number of groups
    p_company: float  # of classes that keep each other's company this much; nan without label counts


def compare_with_reference(views: Views, most: int, rng: np.random.Generator, draws: int) -> ReferenceTest:
    """Parametric bootstrap: the whole search for groups, again in every draw, in as many directions as the federation has."""
    reaches = [noise_reach(points, views.sizes, rng) for points in views.points]
    kept = [how_many(points, views.sizes, reach) for points, reach in zip(views.points, reaches, strict=True)]
    found = np.stack([s.share for s in structures(views, most, kept)])
    population = OnePopulation(views, reaches[-1])
    share, companies = np.empty((draws, *found.shape)), np.empty(draws)
    for i in range(draws):
        drawn, counts = population.draw(rng)
        share[i] = [structure(reined(points, views.sizes, k)[0], views.sizes, most, k).share for points, k in zip(drawn, kept, strict=True)]
        companies[i] = company(counts)
    own, others = last_gains(found), last_gains(share)
    mean, deviation = others.mean(axis=0), np.maximum(others.std(axis=0), 1e-9)
    excess, highest = (own - mean) / deviation, ((others - mean) / deviation).max(axis=(1, 2))
    return ReferenceTest(
        kept=tuple(kept),
        expected=share.mean(axis=0),
        excess=excess,
        p=_rank(excess, highest),
        p_company=float(_rank(np.array(company(views.counts.sum(axis=0))), companies)) if len(found) > 1 else np.nan,
    )


def structures(views: Views, most: int, kept: list[int] | tuple[int, ...]) -> list[Structure]:
    """The structure of every view."""
    return [structure(points, views.sizes, most, k) for points, k in zip(views.points, kept, strict=True)]


def _rank(own: Doubles, drawn: Doubles) -> Doubles:
    """The share of draws at least as extreme, the observation counted as one of them."""
    return np.asarray((1 + np.sum(drawn >= own[..., None], axis=-1)) / (len(drawn) + 1))
