"""Statistics of columns with gaps, from sums and counts that clients give: no row leaves a client.

Means and deviations take two steps, as a federation would ask for them: counts and sums first, which give the mean; then the sums of
squares about that mean. Squares about zero would lose every digit of a column of years or time stamps.

Quantiles take 32 steps: in each the server names a threshold a column and clients count their values up to it. The thresholds bisect the
order of all float32 numbers, not a range that a client would have to disclose, so that one value of 1e12 costs no precision.

Most frequent values are found from a count for each word of a column of words, and for each number of a column of at most `FEW`
different ones. Of a column of more numbers a client says just that, and the median takes its place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ints


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


STEPS = 32  # bits of a float32: after so many halvings one number is left
FEW = 100  # different numbers up to which a column is one of codes, whose most frequent one means something


def count_up_to(rows: Floats, thresholds: Floats) -> Ints:
    """What a client tells in a step: (quantiles, features), how many of its values are at most each threshold; a gap never is."""
    return np.stack([np.count_nonzero(rows <= each, axis=0) for each in thresholds])


def quantiles(rows: Sequence[Doubles], shares: Sequence[float]) -> Doubles:
    """(shares, features): the least float32 number up to which at least such a share of all values lies; 0 where there are none."""
    counts = np.sum([(~np.isnan(own)).sum(axis=0) for own in rows], axis=0).astype(np.float64)
    wanted = np.maximum(np.ceil(np.outer(shares, counts) - 1e-9), 1.0)
    rounded = [np.asfortranarray(own, dtype=np.float32) for own in rows]
    low = np.full(wanted.shape, -1, dtype=np.int64)  # too low, and high enough, in the order of numbers
    high = np.full(wanted.shape, 2**STEPS - 1, dtype=np.int64)
    for _ in range(STEPS):
        middle = (low + high) // 2
        enough = np.sum([count_up_to(own, _at(middle)) for own in rounded], axis=0) >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(counts > 0, _at(high).astype(np.float64), 0.0) + 0.0  # no negative zero


def most_frequent(rows: Sequence[Doubles], blocks: Sequence[tuple[int, int]], numbers: Array, otherwise: Doubles) -> Doubles:
    """(features,): of a column of numbers the most frequent one, of several the least; of one of words the indicators of the most
    frequent word. A column of more than `FEW` different numbers, or without any, has what stands in `otherwise`."""
    made = otherwise.copy()
    for first, end in blocks:
        if not numbers[first]:
            counts = np.sum([own[:, first:end].sum(axis=0) for own in rows], axis=0)
            made[first:end] = np.arange(end - first) == counts.argmax()
            continue
        told = [np.unique(own[~np.isnan(own[:, first]), first], return_counts=True) for own in rows]
        if any(len(values) > FEW for values, _ in told):
            continue
        values, places = np.unique(np.concatenate([values for values, _ in told]), return_inverse=True)
        if 0 < len(values) <= FEW:
            made[first] = values[np.bincount(places, np.concatenate([counts for _, counts in told])).argmax()]
    return made


def _at(places: Ints) -> Floats:
    """The float32 numbers at these places of the order of all: from the bits of negative ones, turned round, to those of positive."""
    bits = np.where(places >= 2**31, places - 2**31, 2**32 - 1 - places).astype(np.uint32)
    found = bits.view(np.float32)
    # what is no number lies beyond the infinities at either end
    return np.where(np.isnan(found), np.where(places >= 2**31, np.float32(np.inf), np.float32(-np.inf)), found)
