"""Two methods over the same seeds: one-sided tests, effect sizes, an interval, and the correction for testing several methods.

The seeds are pairs (same initial model, cohorts and batches), so everything is made of one difference a seed. Defined cases:

- a pair in which either run has no score (it diverged) is nan; it is left out and counted in `missing`;
- fewer than two pairs cannot be tested: p-values and interval are nan, and the caller has to say so;
- zero differences say nothing about a direction: Wilcoxon's test leaves them out; where all are zero, p is 1 and the effects are 0;
- equal differences have no spread: the t test and Cohen's d are nan, Wilcoxon's test still holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from scipy import stats

from coterie.core.arrays import Array, Doubles
from coterie.core.rng import generator, key

LEVEL = 0.05
CONFIDENCE = 0.95
FEW = 20  # values below which Student's interval is used: of 10 normal ones, the bootstrap's 95 % hold the mean 90 times in 100
RESAMPLES = 9999
EXACT = 13  # differences up to which all 2**n signs are tried when some are tied
DIGITS = 12  # differences of accuracies that agree to these are ties: the rest is rounding


@dataclass(frozen=True)
class Paired:
    """One method minus another over the same seeds; the alternative of both tests is that the first is better."""

    n: int  # pairs compared
    missing: int  # pairs left out: a run of the pair has no score
    mean: float
    sd: float
    low: float  # the 95 % interval of the mean
    high: float
    wilcoxon_p: float
    t_p: float
    d: float  # Cohen's d of paired differences: mean / sd
    rank_biserial: float  # share of the ranks for the first minus the share against it, -1 to 1
    wins: int
    ties: int
    losses: int

    @property
    def testable(self) -> bool:
        return self.n >= 2

    @property
    def smallest_p(self) -> float:
        """The least p-value that Wilcoxon's test can give with so many pairs: 2 ** -n, above 5 % for fewer than five."""
        return 2.0**-self.n


def paired(differences: Array) -> Paired:
    """Everything about one difference a seed, in the order of the seeds."""
    given = np.asarray(differences, dtype=np.float64)
    values = np.round(given[np.isfinite(given)], DIGITS)
    n = len(values)
    low, high = interval(values)
    sd = float(values.std(ddof=1)) if n >= 2 else nan
    mean = float(values.mean()) if n else nan
    return Paired(
        n,
        len(given) - n,
        mean,
        sd,
        low,
        high,
        wilcoxon_p(values),
        t_p(values),
        _cohen(mean, sd),
        _rank_biserial(values),
        int((values > 0).sum()),
        int((values == 0).sum()),
        int((values < 0).sum()),
    )


def wilcoxon_p(values: Doubles) -> float:
    """Wilcoxon's signed-rank test, one-sided: exact where that can be had, else the normal approximation with the variance for ties."""
    moved = values[values != 0]
    if len(values) < 2:
        return nan
    if not len(moved):
        return 1.0
    if len(moved) <= EXACT and len(np.unique(np.abs(moved))) < len(moved):
        return _exact_p(moved)
    return float(stats.wilcoxon(moved, alternative="greater").pvalue)


def _exact_p(moved: Doubles) -> float:
    """Wilcoxon's p with ties: the share of all signs whose rank sum is as high. SciPy's permutation test finds the same in 1000 x the time,
    too long for a test in every round."""
    ranks = stats.rankdata(np.abs(moved))
    positive = np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1  # (2**n, n)
    return float(np.mean(positive @ ranks >= ranks[moved > 0].sum()))  # ranks are halves: sums are exact


def t_p(values: Doubles) -> float:
    """The paired t test, one-sided."""
    if len(values) < 2:
        return nan
    if not values.any():
        return 1.0
    if _equal(values):
        return nan
    return float(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)


def interval(values: Doubles, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the mean: bias-corrected and accelerated bootstrap; with few values, where that is too narrow, Student's."""
    values = values[np.isfinite(values)]
    n = len(values)
    if n < 2:
        return nan, nan
    if _equal(values):
        return float(values[0]), float(values[0])
    if n < FEW:
        half = float(stats.t.ppf(0.5 + confidence / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
        return float(values.mean()) - half, float(values.mean()) + half
    found = stats.bootstrap(
        (values,), np.mean, confidence_level=confidence, n_resamples=RESAMPLES, method="BCa", rng=generator(key(0, "bootstrap", n))
    ).confidence_interval
    return float(found.low), float(found.high)


def t_bands(values: Doubles, axis: int = 0, confidence: float = CONFIDENCE) -> tuple[Doubles, Doubles, Doubles]:
    """Mean, low and high along an axis of seeds for whole curves at once; nan where fewer than two values are defined."""
    n = np.isfinite(values).sum(axis)
    filled = np.where(np.isfinite(values), values, 0.0)
    mean = np.where(n > 0, filled.sum(axis) / np.maximum(n, 1), nan)
    squares = np.where(np.isfinite(values), (values - np.expand_dims(mean, axis)) ** 2, 0.0).sum(axis)
    enough = n >= 2
    half = np.full(mean.shape, nan)
    degrees = np.maximum(n - 1, 1)
    half[enough] = (stats.t.ppf(0.5 + confidence / 2, degrees) * np.sqrt(squares / degrees / np.maximum(n, 1)))[enough]
    return mean, mean - half, mean + half


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm (1979): p-values corrected for having tested all of them; those that are nan were no tests and do not count.

    The i-th smallest of m is multiplied by m - i + 1; a corrected value is never below that of a smaller p, nor above 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    corrected = np.full(len(p), nan)
    tests = np.flatnonzero(np.isfinite(p))
    order = tests[np.argsort(p[tests], kind="stable")]
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return [float(value) for value in corrected]


def _cohen(mean: float, sd: float) -> float:
    if mean == 0:
        return 0.0
    return mean / sd if sd > 10.0**-DIGITS else nan  # equal differences: rounding leaves a spread of nothing


def _rank_biserial(values: Doubles) -> float:
    moved = values[values != 0]
    if not len(moved):
        return 0.0 if len(values) else nan
    ranks = stats.rankdata(np.abs(moved))
    return float((ranks * np.sign(moved)).sum() / ranks.sum())


def _equal(values: Doubles) -> bool:
    return bool(np.ptp(values) <= 10.0**-DIGITS)
