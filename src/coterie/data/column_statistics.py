"""Statistics of columns with gaps, computed from sums and counts that clients report, and the scaling of features by them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ints


def compute_moments(rows: Sequence[Doubles]) -> tuple[Doubles, Doubles]:
    """The mean and the deviation of each feature, from what each client reports of its rows: counts and sums, then squares about the mean.

    Both are 0 for a feature without any value.
    """
    known = [~np.isnan(own) for own in rows]
    counts = np.sum([each.sum(0) for each in known], axis=0).astype(np.float64)
    totals = np.sum([np.where(each, own, 0.0).sum(0) for each, own in zip(known, rows, strict=True)], axis=0)
    mean = np.divide(totals, counts, out=np.zeros_like(totals), where=counts > 0)
    squares = np.sum([(np.where(each, own - mean, 0.0) ** 2).sum(0) for each, own in zip(known, rows, strict=True)], axis=0)
    return mean, np.sqrt(np.divide(squares, counts, out=np.zeros_like(squares), where=counts > 0))


STEPS = 32  # bits of a float32: after so many halvings one number is left
FAR, FEW_ROWS = 10.0, 0.001  # times the deviation of the others that an outlier is away; the share of rows that are a few
MIN_ROWS = 10  # of which outliers can be found
FEW = 100  # different numbers up to which a column is one of codes, whose most frequent one means something


def compute_quantiles(rows: Sequence[Doubles], shares: Sequence[float]) -> Doubles:
    """(shares, features): the least float32 number up to which at least such a share of all values lies; 0 where there are none."""
    counts = np.sum([(~np.isnan(own)).sum(axis=0) for own in rows], axis=0).astype(np.float64)
    wanted = np.maximum(np.ceil(np.outer(shares, counts) - 1e-9), 1.0)
    rounded = [np.asfortranarray(own, dtype=np.float32) for own in rows]
    low = np.full(wanted.shape, -1, dtype=np.int64)  # too low, and high enough, in the order of numbers
    high = np.full(wanted.shape, 2**STEPS - 1, dtype=np.int64)
    for _ in range(STEPS):
        middle = (low + high) // 2
        thresholds = _float_at_rank(middle)  # a client reports how many of its values are at most each; a gap never is
        reported = [np.stack([np.count_nonzero(own <= each, axis=0) for each in thresholds]) for own in rounded]
        enough = np.sum(reported, axis=0) >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(counts > 0, _float_at_rank(high).astype(np.float64), 0.0) + 0.0  # no negative zero


def find_most_frequent(rows: Sequence[Doubles], blocks: Sequence[tuple[int, int]], numbers: Array, otherwise: Doubles) -> Doubles:
    """(features,): of a column of numbers the most frequent one, of several the least; of one of words the indicators of the most
    frequent word. A column of more than `FEW` different numbers, or without any, has what stands in `otherwise`."""
    made = otherwise.copy()
    for first, end in blocks:
        if not numbers[first]:
            counts = np.sum([own[:, first:end].sum(axis=0) for own in rows], axis=0)
            made[first:end] = np.arange(end - first) == counts.argmax()
            continue
        stored = [np.unique(own[~np.isnan(own[:, first]), first], return_counts=True) for own in rows]
        if any(len(values) > FEW for values, _ in stored):
            continue
        values, places = np.unique(np.concatenate([values for values, _ in stored]), return_inverse=True)
        if 0 < len(values) <= FEW:
            made[first] = values[np.bincount(places, np.concatenate([counts for _, counts in stored])).argmax()]
    return made


def _float_at_rank(places: Ints) -> Floats:
    """The float32 numbers at these places of the order of all: from the bits of negative ones, turned round, to those of positive."""
    bits = np.where(places >= 2**31, places - 2**31, 2**32 - 1 - places).astype(np.uint32)
    found = bits.view(np.float32)
    # what is no number lies beyond the infinities at either end
    return np.where(np.isnan(found), np.where(places >= 2**31, np.float32(np.inf), np.float32(-np.inf)), found)


@dataclass(frozen=True)
class Scaling:
    """A mean and a deviation for each feature; a feature that was constant has the deviation 0 and becomes 0, whatever its value.

    A robust scaling has the median and the interquartile range in their places, and a bound beyond which values are clipped.
    """

    mean: Doubles  # (features,) what is subtracted
    deviation: Doubles  # (features,) what is divided by
    fill: Doubles | None = None  # (features,) what stands for a gap; default: the mean
    bound: float | None = None  # the largest absolute value after scaling; default: none

    @classmethod
    def from_rows(cls, rows: Doubles) -> "Scaling":
        """The scaling that these rows ask for."""
        constant = rows.max(axis=0) == rows.min(axis=0)
        return cls(rows.mean(axis=0), np.where(constant, 0.0, rows.std(axis=0)))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Scaling":
        mean, deviation, fill = (
            np.array(stored[name], dtype=np.float64) if name in stored else None for name in ("mean", "deviation", "fill")
        )
        if mean is None or deviation is None:
            raise ValueError("a scaling without a mean or a deviation")
        bound = stored.get("bound")
        return cls(mean, deviation, fill, None if bound is None else float(bound))

    def to_dict(self) -> dict[str, Any]:
        """For a federation's provenance: plain numbers, which keep their bits as JSON."""
        made: dict[str, Any] = {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}
        made |= {} if self.fill is None else {"fill": self.fill.tolist()}
        return made if self.bound is None else {**made, "bound": self.bound}

    def select(self, kept: Sequence[int], places: Ints, width: int) -> "Scaling":
        """The scaling of `width` features, of which those at `places` are the features `kept` of this one; the others stay as they are."""

        def put(values: Doubles, rest: float) -> Doubles:
            made = np.full(width, rest)
            made[places] = values[list(kept)]
            return made

        fill = None if self.fill is None else put(self.fill, 0.0)
        return Scaling(put(self.mean, 0.0), put(self.deviation, 1.0), fill, self.bound)

    def apply(self, rows: Doubles) -> Floats:
        """(n, features) rows in the units that a model is trained in."""
        constant = self.deviation == 0
        made = np.where(constant, 0.0, (rows - self.mean) / np.where(constant, 1.0, self.deviation))
        if self.bound is not None:  # of what is scaled: indicators and other features with the deviation 1 lie within it
            made = np.clip(made, -self.bound, self.bound)
        return made.astype(np.float32)


def find_outliers(values: Doubles) -> tuple[Ints, float] | None:
    """The places of a few values that stretch a column, the furthest first, and by what factor they enlarge its deviation."""
    if len(values) < MIN_ROWS:
        return None
    away = np.abs(values - np.median(values))
    few = min(max(3, int(FEW_ROWS * len(values))), len(values) // 4)
    last = np.argpartition(away, len(values) - few)[len(values) - few :]
    rest = np.delete(away, last)
    typical, spread = (float(np.sqrt(np.mean(some**2))) for some in (rest, away))
    if not typical > 0 or spread < FAR * typical:
        return None
    far = last[away[last] > FAR * max(typical, float(rest.max()))]
    return (far[np.argsort(-away[far])], spread / typical) if len(far) else None


def compute_correlation(one: Doubles, other: Doubles) -> float:
    """The absolute correlation of two columns, by the rows in which the first is known; 0 where one of them is constant."""
    known = np.isfinite(one)
    if not known.any():
        return 0.0
    one, other = one[known] - one[known].mean(), other[known] - other[known].mean()
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return abs(float((one * other).sum())) / size if size > 0 else 0.0
