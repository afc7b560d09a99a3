"""Intervals of a mean difference over seeds and over draws: a mean, its standard error and degrees of freedom (statistics.md).

Over draws, with other seeds: every draw counts alike; Student's t on the draws' means, with Satterthwaite's degrees where there are gaps.
Seeds that all draws share do not show in the variance of the draws' means, since a lucky initial model is lucky in every draw: their
variance is estimated between seeds and added. Without this, ten draws of three seeds cover 74 % where seeds matter as much as draws.

Over seeds, on these very draws: Student's t over seeds that draws share, Welch's degrees where every draw has seeds of its own.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from coterie.core.arrays import Doubles
from coterie.statistics.paired import CONFIDENCE
from coterie.statistics.variance_components import NOTHING, VarianceFit, drop_missing, fit_variances


@dataclass(frozen=True)
class Interval:
    """A mean, its standard error, and the degrees of freedom of Student's t that the error is worth.

    Where no value differs from another the error is 0. The interval is then the mean itself, and p-values are those of a
    sign test of `degrees` + 1 equal values, as Wilcoxon's least: three equal differences are not proof.
    """

    mean: float
    error: float
    degrees: float
    over: str  # what was counted: "10 draws x 3 seeds", "149 test samples of 4 clients"
    caveat: str = ""  # what it does not cover although its name might promise it
    bound: bool = False  # it is at least as wide as it should be: nothing is decided by it

    @property
    def low(self) -> float:
        return self.at()[0]

    @property
    def high(self) -> float:
        return self.at()[1]

    @property
    def width(self) -> float:
        return self.high - self.low

    def at(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The interval at some confidence."""
        half = float(stats.t.ppf(0.5 + confidence / 2, self.degrees)) * self.error
        return self.mean - half, self.mean + half

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p of "at most the bound": small where the truth is significantly above it."""
        return self._p(self.mean - bound)

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p of "at least the bound": small where the truth is significantly below it."""
        return self._p(bound - self.mean)

    def _p(self, beyond: float) -> float:
        if self.error > 0:
            return float(stats.t.sf(beyond / self.error, self.degrees))
        return float(0.5 ** (self.degrees + 1)) if beyond > 0 else 1.0


def compute_student_interval(values: Doubles, over: str, caveat: str = "") -> Interval:
    """Student's interval of the mean of two or more independent values."""
    n = len(values)
    sd = 0.0 if np.ptp(values) <= 1e-12 else float(values.std(ddof=1))
    return Interval(float(values.mean()), sd / n**0.5, n - 1, over, caveat)


def compute_draw_interval(differences: Doubles, *, shared: bool = True) -> Interval | str:
    """The interval from differences (draws, seeds), nan for a pair that is missing; a sentence where there is none.

    `shared`: the columns are the same seeds in every draw. If not, each draw has seeds of its own, in any order.
    """
    table = drop_missing(differences)
    draws, seeds = table.shape
    if draws < 2:
        return "one draw: no estimate for other splits of the data" if draws else "no pair of runs reached the end"
    fit = fit_variances(table, shared)
    variance, degrees = fit.between / draws, _compute_draw_degrees(fit)
    caveat = ""
    if shared and not fit.seed_degrees:
        caveat = "one seed for all draws: no estimate for other seeds" if seeds == 1 else "too many gaps to separate seeds from chance"
    if fit.seed_degrees:
        variance, degrees = _add_seed_variance(fit, variance, degrees, min(draws, seeds) - 1)
    return Interval(float(fit.means.mean()), variance**0.5, degrees, f"{draws} draws x {_format_seeds(fit)}", caveat)


def _compute_draw_degrees(fit: VarianceFit) -> float:
    """Satterthwaite's degrees of the variance of means with unequal variances: B - 1 where all draws have as many seeds.

    tr(A V)^2 / tr(A V A V) with A = I - 1/B and V the diagonal of the draws' variances.
    """
    draws, spread = len(fit.means), fit.spread
    if not fit.rest_degrees or np.ptp(fit.counts) == 0:
        return draws - 1
    variances = max(spread.draws, 0.0) + spread.rest / fit.counts
    if not variances.any():
        return draws - 1
    total, squares = variances.sum(), (variances**2).sum()
    return float((total * (1 - 1 / draws)) ** 2 / (squares * (1 - 2 / draws) + (total / draws) ** 2))


def _add_seed_variance(fit: VarianceFit, variance: float, degrees: float, least: int) -> tuple[float, float]:
    """The variance with that of shared seeds, where they have any, and the degrees of freedom of the sum."""
    times = fit.weight - fit.mixed / len(fit.means)  # how often a seed's variance is in the mean's but not yet in the draws'
    scale = times * fit.seed_degrees / fit.seed_factor
    extra = scale * (fit.seed_squares - fit.rest_squares)
    if extra <= 0:
        return variance, degrees
    parts = (variance**2 / degrees, (scale * fit.seed_squares) ** 2 / fit.seed_degrees, (scale * fit.rest_squares) ** 2 / fit.rest_degrees)
    return variance + extra, max((variance + extra) ** 2 / sum(parts), float(least))


def _format_seeds(fit: VarianceFit) -> str:
    fewest, most = int(fit.counts.min()), int(fit.counts.max())
    return f"{fewest} to {most} seeds" if fewest < most else f"{most} seed{'s' if most > 1 else ''}"


ONE_SEED = "one seed: no estimate for other seeds"


def compute_seed_interval(differences: Doubles, *, shared: bool = True) -> Interval | str:
    """The interval from differences (draws, seeds), nan for a pair that is missing; a sentence where there is none."""
    table = drop_missing(differences)
    draws, seeds = table.shape
    if not table.size:
        return "no pair of runs reached the end"
    if draws == 1:
        return compute_student_interval(table[0], f"{seeds} seeds") if seeds > 1 else ONE_SEED
    return _compute_shared_seed_interval(table) if shared else _compute_own_seed_interval(table)


def _compute_shared_seed_interval(table: Doubles) -> Interval | str:
    """Each seed's part in how far the mean would move: without gaps its mean over draws, less the mean of all, by the seeds."""
    draws, seeds = table.shape
    if seeds < 2:
        return ONE_SEED
    known = np.isfinite(table)
    counts = known.sum(axis=1)
    means = np.where(known, table, 0.0).sum(axis=1) / counts
    if (counts < 2).any():  # a lone seed has no deviation from its draw's mean: it would count as certain
        return "some draws have one seed only: no estimate for other seeds there"
    parts = (np.where(known, table - means[:, None], 0.0) / counts[:, None]).sum(axis=0) / draws  # (S,)
    variance = seeds / (seeds - 1) * float((parts**2).sum())
    error = variance**0.5 if variance > NOTHING**2 else 0.0
    return Interval(float(means.mean()), error, seeds - 1, f"{seeds} seeds on these {draws} draws")


def _compute_own_seed_interval(table: Doubles) -> Interval | str:
    """Sum of the draws' variances by their seeds; a draw with one seed has that of the others together.

    Degrees by Welch (1947): with few seeds a draw the squares of variances are too large by 1 + 2 / d, which his form takes out, so that
    equal variances of d degrees come to B d on average.
    """
    known = np.isfinite(table)
    counts = known.sum(axis=1)
    draws, several = len(table), counts > 1
    if not several.any():
        return "one seed a draw: the variances of seeds and of draws cannot be separated"
    means = np.where(known, table, 0.0).sum(axis=1) / counts
    squares = (np.where(known, table - means[:, None], 0.0) ** 2).sum(axis=1)
    total = float((counts - 1).sum())
    degrees = np.where(several, counts - 1, total)
    variances = np.where(several, squares / np.maximum(counts - 1, 1), squares.sum() / total) / counts / draws**2
    variance, over = float(variances.sum()), f"{int(counts.sum())} runs on these {draws} draws"
    if variance <= NOTHING**2:
        return Interval(float(means.mean()), 0.0, total, over)
    welch = variance**2 / float((variances**2 / (degrees + 2)).sum()) - 2
    return Interval(float(means.mean()), variance**0.5, min(max(welch, float(degrees.min())), total), over)
