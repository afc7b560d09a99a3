"""Has an error risen? A sequential test of many units (clients, groups, sites) that are looked at again and again.

A look at a unit is a mean over n samples of numbers between 0 and 1: wrong answers, or losses divided by their limit. The reference is
such a look from before. The null hypothesis: the expected error is at most that of the reference plus a margin.

- The statistic of a reference and the looks after a possible change is an e-value: the likelihood of two coins of unknown errors, averaged
  over these by Krichevsky and Trofimov's prior (1981), divided by the largest likelihood under the null (Wasserman, Ramdas and
  Balakrishnan, "Universal inference", 2020). Its expectation under the null is at most 1, for coins and for any independent numbers between
  0 and 1 with the same means, since a likelihood ratio is convex in them (Hoeffding 1963). Nothing is assumed about losses.
- The change may have come before the last look or earlier, so the e-values of the last 1, 2 and 4 looks are averaged, as in an e-detector
  (Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change detection", 2024).
- Of the U units of a look the k with the largest e-values have changed, k being the largest number for which all of them reach U / (k rate)
  (Wang and Ramdas, "False discovery rate control with e-values", 2022). While nothing has changed, a look has a false alarm with
  probability `rate` at most, however the units depend on each other, however many looks there are, and although all looks share their
  references. After a change, at most the share `rate` of the units that are named is expected to be named wrongly.

A CUSUM (Page 1954) holds its rate of false alarms for one known distribution before the change. Errors have none that is known.
"""

from dataclasses import dataclass
from math import log

import numpy as np
from scipy.special import betaln, xlogy

from coterie.core.arrays import Bools, Doubles

WINDOWS = (1, 2, 4)  # the last looks that are taken as those after the change
KEPT = max(WINDOWS)  # looks that are remembered


@dataclass(frozen=True)
class ChangeTest:
    """The test with its settings."""

    rate: float  # false alarms in a look at all units together, at most
    margin: float = 0.0  # a rise that is no change

    def compute_statistics(self, means: Doubles, samples: Doubles, sums: Doubles, counts: Doubles) -> Doubles:
        """(u,) the log of each unit's statistic.

        Args:
            means: (u,) the errors of the references.
            samples: (u,) the numbers of samples that these are means of.
            sums: (u, KEPT) sums of the errors in the last looks, the latest first.
            counts: (u, KEPT) the numbers of samples in them; 0 where there was no look.
        """
        ends = np.array(WINDOWS) - 1
        late, n = np.cumsum(sums, axis=1)[:, ends], np.cumsum(counts, axis=1)[:, ends]
        early = np.repeat((means * samples)[:, None], len(WINDOWS), axis=1)
        values = compute_log_evalues(early, np.repeat(samples[:, None], len(WINDOWS), axis=1), late, n, self.margin)
        return np.asarray(np.logaddexp.reduce(values, axis=1) - log(len(WINDOWS)))

    def find_changed(self, statistics: Doubles) -> tuple[Bools, float]:
        """(u,) which units have changed, and the log of what a statistic had to reach for that."""
        ranked = np.sort(statistics)[::-1]
        thresholds = np.log(len(ranked) / (np.arange(1, len(ranked) + 1) * self.rate))
        reached = np.flatnonzero(ranked >= thresholds)
        threshold = float(thresholds[reached[-1] if len(reached) else 0])
        return np.asarray(statistics >= threshold), threshold


def compute_log_evalues(early: Doubles, samples: Doubles, late: Doubles, counts: Doubles, margin: float) -> Doubles:
    """(...) log e-values against an error that has risen by the margin at most: sums of the errors of the reference and after it."""
    mixed = _compute_log_mixture(early, samples) + _compute_log_mixture(late, counts)
    return np.asarray(mixed - compute_largest_likelihood(early, samples, late, counts, margin))


def _compute_log_mixture(sums: Doubles, counts: Doubles) -> Doubles:
    """(...) the log likelihood of coins, averaged over their errors by a Beta(1/2, 1/2) prior."""
    return np.asarray(betaln(sums + 0.5, counts - sums + 0.5) - betaln(0.5, 0.5))


def compute_largest_likelihood(early: Doubles, samples: Doubles, late: Doubles, counts: Doubles, margin: float) -> Doubles:
    """(...) the largest log likelihood of errors p, and at most p + margin after: where the margin binds, at the root of its derivative."""

    def derive(p: Doubles) -> Doubles:
        """The derivative in p where the error after is p + margin: it falls, and bisection finds where it is 0."""
        q = p + margin
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = _divide(early, p) - _divide(samples - early, 1 - p) + _divide(late, q) - _divide(counts - late, 1 - q)
        return np.asarray(slope)

    low, high = np.zeros_like(early), np.full_like(early, 1 - margin)
    for _ in range(40):
        middle = (low + high) / 2
        rises = derive(middle) > 0
        low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    bound = (low + high) / 2
    first, second = _divide(early, samples), _divide(late, counts)
    binds = second > first + margin
    p, q = np.where(binds, bound, first), np.where(binds, np.minimum(bound + margin, 1.0), second)
    return np.asarray(xlogy(early, p) + xlogy(samples - early, 1 - p) + xlogy(late, q) + xlogy(counts - late, 1 - q))


def _divide(a: Doubles, b: Doubles) -> Doubles:
    """(...) a / b, and 0 where there is nothing to divide."""
    return np.divide(a, b, out=np.zeros_like(a), where=(a != 0) & (b != 0))


def pool_references(means: Doubles, samples: Doubles, now: Doubles) -> tuple[float, float]:
    """The reference of clients together, each counting as it counts `now`: its mean, and the samples that it is worth."""
    weights = now / now.sum()
    return float(weights @ means), float(1 / np.sum(weights**2 / samples))
