"""Several methods over several federations: Friedman's test and the critical difference of mean ranks.

Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets" (2006), Section 3.2. Federations, not seeds, are the blocks: seeds
of one federation are no evidence about another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from coterie.core.arrays import Doubles
from coterie.statistics.paired import LEVEL


@dataclass(frozen=True)
class Ranking:
    """Mean ranks (1 is best) over federations; two methods differ when their ranks are a critical difference apart."""

    methods: tuple[str, ...]
    federations: int
    ranks: tuple[float, ...]
    statistic: float  # Friedman's chi-square
    p: float
    difference: float  # Nemenyi's critical difference

    @property
    def cliques(self) -> list[tuple[str, ...]]:
        """The largest sets of methods without a significant difference, best first: the bars of a critical difference diagram."""
        order = sorted(range(len(self.methods)), key=lambda i: self.ranks[i])
        spans: list[tuple[int, int]] = []
        for first in range(len(order)):
            close = [j for j in range(first, len(order)) if self.ranks[order[j]] - self.ranks[order[first]] < self.difference]
            if len(close) > 1 and (not spans or close[-1] > spans[-1][1]):
                spans.append((first, close[-1]))
        return [tuple(self.methods[i] for i in order[a : b + 1]) for a, b in spans]


def rank_methods(scores: Doubles, methods: Sequence[str], level: float = LEVEL) -> Ranking | None:
    """The ranking from (federations, methods) scores; None for fewer than two federations or three methods, which cannot be tested.

    A method without a score in a federation (every run diverged) is ranked last there.
    """
    blocks, k = scores.shape
    if blocks < 2 or k < 3:
        return None
    known = np.where(np.isfinite(scores), scores, -np.inf)
    ranks = stats.rankdata(-known, axis=1)
    if np.ptp(ranks, axis=1).max() == 0:  # every method equals every other everywhere
        statistic, p = 0.0, 1.0
    else:
        statistic, p = map(float, stats.friedmanchisquare(*ranks.T))
    return Ranking(
        tuple(methods), blocks, tuple(map(float, ranks.mean(axis=0))), statistic, p, compute_critical_difference(k, blocks, level)
    )


def compute_critical_difference(methods: int, federations: int, level: float = LEVEL) -> float:
    """Nemenyi's: q / sqrt(2) * sqrt(k (k + 1) / (6 N)), q the studentised range of k means with infinite degrees of freedom."""
    q = float(stats.studentized_range.ppf(1 - level, methods, np.inf))
    return float(q / np.sqrt(2) * np.sqrt(methods * (methods + 1) / (6 * federations)))
