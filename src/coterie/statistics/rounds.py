"""Significance round by round (FedSim, Figure 5): in which rounds is a method better than another over the seeds?"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Bools, Doubles, Ints
from coterie.statistics.paired import DIGITS, LEVEL, t_p, wilcoxon_p


@dataclass(frozen=True)
class RoundTests:
    """One-sided tests of each round by itself, uncorrected, as the paper makes them."""

    rounds: Ints  # (R,)
    mean: Doubles  # (R,) mean difference
    wilcoxon_p: Doubles  # (R,)
    t_p: Doubles  # (R,)

    @property
    def significant(self) -> Bools:
        return np.asarray(self.wilcoxon_p < LEVEL)  # nan, which cannot be tested, is not significant

    @property
    def share(self) -> float:
        """The share of the rounds in which the method is significantly better."""
        return float(self.significant.mean()) if len(self.rounds) else float("nan")

    @property
    def grey(self) -> list[tuple[int, int]]:
        """The first and last round of each stretch without significance: the grey bands of the figure."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], ~self.significant, [False]]).astype(int)))
        return [(int(self.rounds[a]), int(self.rounds[b - 1])) for a, b in edges.reshape(-1, 2)]


def round_tests(differences: Doubles, rounds: Ints) -> RoundTests:
    """Tests of (seeds, rounds) differences, each round over its seeds."""
    columns = [np.round(column[np.isfinite(column)], DIGITS) for column in differences.T]
    return RoundTests(
        rounds,
        np.array([column.mean() if len(column) else np.nan for column in columns]),
        np.array([wilcoxon_p(column) for column in columns]),
        np.array([t_p(column) for column in columns]),
    )


def in_at_least(p_values: Doubles, count: int) -> float:
    """p that at least `count` of these hypotheses are false: the partial conjunction of Benjamini and Heller (2008).

    Whatever depends on what: with all but count - 1 of them true, the count-th smallest p is at best the least of as many as are left.
    One that could not be tested (nan) has p = 1.
    """
    ordered = np.sort(np.where(np.isfinite(p_values), p_values, 1.0))
    if not 1 <= count <= len(ordered):
        raise ValueError("the count is from 1 to the number of tests")
    return float(min((len(ordered) - count + 1) * ordered[count - 1], 1.0))
