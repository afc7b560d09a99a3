"""Means and deviations of columns with gaps, from sums that clients give: no row leaves a client.

In two steps, as a federation would ask for them: counts and sums first, which give the mean; then the sums of squares about that mean.
Squares about zero would lose every digit of a column of years or time stamps.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles


@dataclass(frozen=True)
class Sums:
    """What a client tells of its training rows, a number a feature."""

    counts: Doubles
    totals: Doubles

    @classmethod
    def of(cls, rows: Doubles) -> "Sums":
        known = ~np.isnan(rows)
        return cls(known.sum(0).astype(np.float64), np.where(known, rows, 0.0).sum(0))

    def mean(self) -> Doubles:
        """The mean of each feature; 0 of one that nobody knows."""
        return np.asarray(np.divide(self.totals, self.counts, out=np.zeros_like(self.totals), where=self.counts > 0))


def added(sums: Iterable[Sums]) -> Sums:
    """The sums of several clients."""
    known = list(sums)
    return Sums(np.sum([each.counts for each in known], axis=0), np.sum([each.totals for each in known], axis=0))


def squares(rows: Doubles, mean: Doubles) -> Doubles:
    """What a client tells next: the squares of its rows about the mean, summed."""
    away = np.where(np.isnan(rows), 0.0, rows - mean)
    return np.asarray((away**2).sum(0))


def deviation(total_squares: Doubles, counts: Doubles) -> Doubles:
    """The deviation of each feature, 0 of one that is constant or that nobody knows."""
    spread = np.sqrt(np.divide(total_squares, counts, out=np.zeros_like(total_squares), where=counts > 0))
    return np.asarray(spread)
