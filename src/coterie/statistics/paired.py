"""Two methods over the same seeds: one-sided tests, effect sizes, intervals, Holm's correction, trends; and ranks of several methods.

The seeds are pairs (same initial model, cohorts and batches), so everything is made of one difference a seed. A pair with a run without a
score is nan and counted in `missing`; fewer than two pairs cannot be tested. Zero differences carry no direction: Wilcoxon's test leaves
them out; where all are zero, p is 1. Equal differences have no spread: the t test and Cohen's d are nan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from scipy import stats

from coterie.core.arrays import Array, Bools, Doubles, Ints
from coterie.core.rng import make_generator, make_key

LEVEL = 0.05
CONFIDENCE = 0.95
FEW = 20  # values below which Student's interval is used: of 10 normal ones, the bootstrap's 95 % hold the mean 90 times in 100
RESAMPLES = 9999
EXACT = 13  # differences up to which all 2**n signs are enumerated when some are tied
DIGITS = 12  # differences of accuracies that agree to these are ties: the rest is rounding


@dataclass(frozen=True)
class PairedTest:
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


def compare_pairs(differences: Array) -> PairedTest:
    """Everything about one difference a seed, in the order of the seeds."""
    given = np.asarray(differences, dtype=np.float64)
    values = np.round(given[np.isfinite(given)], DIGITS)
    n = len(values)
    low, high = compute_interval(values)
    sd = float(values.std(ddof=1)) if n >= 2 else nan
    mean = float(values.mean()) if n else nan
    return PairedTest(
        n,
        len(given) - n,
        mean,
        sd,
        low,
        high,
        compute_wilcoxon_p(values),
        compute_t_p(values),
        _compute_cohen_d(mean, sd),
        _compute_rank_biserial(values),
        int((values > 0).sum()),
        int((values == 0).sum()),
        int((values < 0).sum()),
    )


def compute_wilcoxon_p(values: Doubles) -> float:
    """Wilcoxon's signed-rank test, one-sided: exact where that can be had, else the normal approximation with the variance for ties."""
    moved = values[values != 0]
    if len(values) < 2:
        return nan
    if not len(moved):
        return 1.0
    if len(moved) <= EXACT and len(np.unique(np.abs(moved))) < len(moved):
        return _compute_exact_p(moved)
    return float(stats.wilcoxon(moved, alternative="greater").pvalue)


def _compute_exact_p(moved: Doubles) -> float:
    """Wilcoxon's p with ties: the share of all signs whose rank sum is as high. SciPy's permutation test finds the same in 1000 x the time,
    too long for a test in every round."""
    ranks = stats.rankdata(np.abs(moved))
    positive = np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1  # (2**n, n)
    return float(np.mean(positive @ ranks >= ranks[moved > 0].sum()))  # ranks are halves: sums are exact


def compute_t_p(values: Doubles) -> float:
    """The paired t test, one-sided."""
    if len(values) < 2:
        return nan
    if not values.any():
        return 1.0
    if _is_constant(values):
        return nan
    return float(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)


def compute_interval(values: Doubles, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the mean: bias-corrected and accelerated bootstrap; with few values, where that is too narrow, Student's."""
    values = values[np.isfinite(values)]
    n = len(values)
    if n < 2:
        return nan, nan
    if _is_constant(values):
        return float(values[0]), float(values[0])
    if n < FEW:
        half = float(stats.t.ppf(0.5 + confidence / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
        return float(values.mean()) - half, float(values.mean()) + half
    found = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=confidence,
        n_resamples=RESAMPLES,
        method="BCa",
        rng=make_generator(make_key(0, "bootstrap", n)),
    ).confidence_interval
    return float(found.low), float(found.high)


def compute_t_bands(values: Doubles, axis: int = 0, confidence: float = CONFIDENCE) -> tuple[Doubles, Doubles, Doubles]:
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


def correct_holm(p_values: Sequence[float]) -> list[float]:
    """Holm (1979): p-values corrected for having tested all of them; those that are nan were no tests and do not count.

    The i-th smallest of m is multiplied by m - i + 1; a corrected value is never below that of a smaller p, nor above 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    corrected = np.full(len(p), nan)
    tests = np.flatnonzero(np.isfinite(p))
    order = tests[np.argsort(p[tests], kind="stable")]
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return [float(value) for value in corrected]


def _compute_cohen_d(mean: float, sd: float) -> float:
    if mean == 0:
        return 0.0
    return mean / sd if sd > 10.0**-DIGITS else nan  # equal differences: rounding leaves a spread of nothing


def _compute_rank_biserial(values: Doubles) -> float:
    moved = values[values != 0]
    if not len(moved):
        return 0.0 if len(values) else nan
    ranks = stats.rankdata(np.abs(moved))
    return float((ranks * np.sign(moved)).sum() / ranks.sum())


def _is_constant(values: Doubles) -> bool:
    return bool(np.ptp(values) <= 10.0**-DIGITS)


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


def compare_rounds(differences: Doubles, rounds: Ints) -> RoundTests:
    """Tests of (seeds, rounds) differences, each round over its seeds."""
    columns = [np.round(column[np.isfinite(column)], DIGITS) for column in differences.T]
    return RoundTests(
        rounds,
        np.array([column.mean() if len(column) else np.nan for column in columns]),
        np.array([compute_wilcoxon_p(column) for column in columns]),
        np.array([compute_t_p(column) for column in columns]),
    )


def compute_partial_conjunction(p_values: Doubles, count: int) -> float:
    """p that at least `count` of these hypotheses are false: the partial conjunction of Benjamini and Heller (2008).

    Whatever depends on what: with all but count - 1 of them true, the count-th smallest p is at best the least of as many as are left.
    One that could not be tested (nan) has p = 1.
    """
    ordered = np.sort(np.where(np.isfinite(p_values), p_values, 1.0))
    if not 1 <= count <= len(ordered):
        raise ValueError("the count is from 1 to the number of tests")
    return float(min((len(ordered) - count + 1) * ordered[count - 1], 1.0))


def compute_trends(values: Doubles, points: Sequence[float] | None = None) -> Doubles:
    """(...) the change over the range of each run of values (K, ...) at K ordered points (default: 0, 1, ...); nan with a point missing.

    The slope is a contrast of the values: sum (x - mean) y / sum (x - mean)^2. With three points at equal distance the change is that
    between the ends.
    """
    at = np.arange(len(values), dtype=np.float64) if points is None else np.asarray(points, dtype=np.float64)
    if len(at) != len(values) or len(at) < 2 or not (np.diff(at) > 0).all():
        raise ValueError("a trend needs two or more points in rising order, one for each row of values")
    off = at - at.mean()
    numbers = np.asarray(values, dtype=np.float64)
    # The contrast sums to zero, so the first value may be taken off: a run of equal values then has no change, not one of rounding.
    return np.asarray(np.tensordot(off / (off**2).sum() * (at[-1] - at[0]), numbers - numbers[0], axes=1))


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

    Friedman's test and the critical difference of mean ranks (Demšar, 2006, Section 3.2). Federations, not seeds, are the blocks: seeds of
    one federation are no evidence about another. A method without a score in a federation (every run diverged) is ranked last there.
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
