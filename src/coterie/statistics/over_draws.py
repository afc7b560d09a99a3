"""The interval of a mean difference over draws: what another draw of the data, with other seeds, would show.

Every draw counts alike, however many of its seeds are there. The variance of the mean of the draws' means is a B-th of their own variance,
which is right on average also when some draws have fewer seeds than others. In a table without gaps and with seeds of its own in every
draw this is Student's t on the draws' means, B - 1 degrees of freedom, and exact for normal differences; with gaps Satterthwaite's
degrees are those of means with unequal variances.

Seeds that all draws share do not show in the variance of the draws' means: a lucky initial model is lucky in every draw. Their variance is
found between seeds and added, and Satterthwaite's approximation gives the degrees of the sum, never fewer than the lesser number of
draws or seeds allows. Without this, ten draws of three seeds cover 74 % where seeds matter as much as draws (docs/statistics.md).
"""

import numpy as np

from coterie.core.arrays import Doubles
from coterie.statistics.intervals import Interval
from coterie.statistics.spread import Fitted, fitted, present


def over_draws(differences: Doubles, *, shared: bool = True) -> Interval | str:
    """The interval from differences (draws, seeds), nan for a pair that is missing; a sentence where it cannot be had.

    `shared`: the columns are the same seeds in every draw. If not, each draw has seeds of its own, in any order.
    """
    table = present(differences)
    draws, seeds = table.shape
    if draws < 2:
        return "one draw: this says nothing about other splits of the data" if draws else "no pair of runs reached the end"
    fit = fitted(table, shared)
    variance, degrees = fit.between / draws, _degrees(fit)
    caveat = ""
    if shared and not fit.seed_degrees:
        caveat = "one seed for all draws: this says nothing about other seeds" if seeds == 1 else "too many gaps to tell seeds from chance"
    if fit.seed_degrees:
        variance, degrees = _with_seeds(fit, variance, degrees, min(draws, seeds) - 1)
    return Interval(float(fit.means.mean()), variance**0.5, degrees, f"{draws} draws x {_seeds(fit)}", caveat)


def _degrees(fit: Fitted) -> float:
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


def _with_seeds(fit: Fitted, variance: float, degrees: float, least: int) -> tuple[float, float]:
    """The variance with that of shared seeds, where they have any, and the degrees of freedom of the sum."""
    times = fit.weight - fit.mixed / len(fit.means)  # how often a seed's variance is in the mean's but not yet in the draws'
    scale = times * fit.seed_degrees / fit.seed_factor
    extra = scale * (fit.seed_squares - fit.rest_squares)
    if extra <= 0:
        return variance, degrees
    parts = (variance**2 / degrees, (scale * fit.seed_squares) ** 2 / fit.seed_degrees, (scale * fit.rest_squares) ** 2 / fit.rest_degrees)
    return variance + extra, max((variance + extra) ** 2 / sum(parts), float(least))


def _seeds(fit: Fitted) -> str:
    fewest, most = int(fit.counts.min()), int(fit.counts.max())
    return f"{fewest} to {most} seeds" if fewest < most else f"{most} seed{'s' if most > 1 else ''}"
