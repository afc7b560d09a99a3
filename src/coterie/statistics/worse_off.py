"""Which clients are clearly worse off: not those whose number is lower, which with five test samples is a coin toss.

A client is clearly worse off when both kinds of chance are ruled out, and the false discovery rate over all clients (Benjamini and
Hochberg, 1995) is kept at 5 %:

- **runs**: its paired difference over draws and seeds is below 0, by the interval over draws, or over seeds where there is one draw;
- **samples**: its loss, in right answers, is more than a sign test of its test samples leaves to chance. Only samples on which exactly one
  method was right say anything. Where only counts of each method are known, as many as possible are taken to be such samples, which
  gives the largest p that the counts allow.

A client's p is the larger of the two.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from coterie.core.arrays import Bools, Doubles
from coterie.statistics.over_clients import most_differing
from coterie.statistics.over_draws import over_draws
from coterie.statistics.over_seeds import over_seeds
from coterie.statistics.paired import CONFIDENCE, LEVEL
from coterie.statistics.spread import NOTHING


@dataclass(frozen=True)
class WorseOff:
    """Clients one by one; nan for one that could not be tested (no samples, or a single run)."""

    mean: Doubles  # (N,) difference of accuracies
    low: Doubles  # (N,) its 95 % interval over draws and seeds
    high: Doubles
    samples: Doubles  # (N,) test samples in a draw, mean over draws
    p: Doubles  # (N,) one-sided, uncorrected
    corrected: Doubles  # (N,) by the false discovery rate

    @property
    def clearly(self) -> Bools:
        return np.asarray(self.corrected < LEVEL)  # nan is not clear

    @property
    def tested(self) -> int:
        return int(np.isfinite(self.p).sum())


def worse_off(
    ours: Doubles, theirs: Doubles, samples: Doubles, *, differing: Doubles | None = None, shared: bool = True, whole: bool = True
) -> WorseOff:
    """From right answers (draws, seeds, clients) of two methods and test samples (draws, clients); nan for a run that is missing.

    Where credits are not `whole` (a regression's), `differing` are squares of single samples' differences, and their mean is tested.

    A client has to be the same holder of data in all draws: where the partition is redrawn it is not, and each draw is asked alone.
    """
    rates = np.where(samples > 0, samples, np.nan)[:, None, :]
    numbers = _over_runs(np.moveaxis((ours - theirs) / rates, 2, 0), shared)
    if differing is None:
        differing = most_differing(ours[..., None], theirs[..., None], samples[:, None, :, None])
    lost, apart = _mean(theirs - ours), _mean(differing)
    by_samples = loss_p(lost, apart) if whole else shift_p(lost, apart, _mean(rates))
    p = np.maximum(numbers[:, 3], by_samples)
    corrected = np.full(len(p), np.nan)
    known = np.isfinite(p)
    if known.any():
        corrected[known] = stats.false_discovery_control(p[known])
    return WorseOff(numbers[:, 0], numbers[:, 1], numbers[:, 2], _mean(rates), p, corrected)


def _over_runs(tables: Doubles, shared: bool) -> Doubles:
    """(N, 4) mean, ends of the interval and p of each client's differences (N, B, S), over draws or, of one draw, over seeds.

    Where nothing is missing and draws share no seeds both are Student's over one number a draw or seed: all clients at once, since one
    by one ten thousand of them would take longer than the rest of a report.
    """
    draws = tables.shape[1]
    whole = np.asarray(np.isfinite(tables).all(axis=(1, 2)))
    units = tables[:, 0] if draws == 1 else tables.mean(axis=2)  # (N, U)
    if (draws > 1 and shared) or units.shape[1] < 2:
        whole[:] = False
    numbers = np.array([_of_one(table, shared) if not known else (np.nan,) * 4 for table, known in zip(tables, whole, strict=True)])
    if whole.any():
        numbers[whole] = _students(units[whole])
    return numbers.reshape(-1, 4)


def _of_one(table: Doubles, shared: bool) -> tuple[float, ...]:
    found = over_draws(table, shared=shared) if len(table) > 1 else over_seeds(table)
    return (np.nan,) * 4 if isinstance(found, str) else (found.mean, found.low, found.high, found.p_below())


def _students(units: Doubles) -> Doubles:
    """(n, 4) what `intervals.student` says of each row; equal values are no proof beyond a sign test's."""
    n = units.shape[1]
    mean = units.mean(axis=1)
    error = np.where(np.ptp(units, axis=1) <= NOTHING, 0.0, units.std(axis=1, ddof=1)) / n**0.5
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)) * error
    spread = stats.t.sf(np.divide(-mean, error, out=np.zeros_like(mean), where=error > 0), n - 1)
    p = np.where(error > 0, spread, np.where(mean < 0, 0.5**n, 1.0))
    return np.stack([mean, mean - half, mean + half, p], axis=1)


def loss_p(lost: Doubles, differing: Doubles) -> Doubles:
    """One-sided sign test that so many right answers are lost net, of so many samples on which one method alone was right.

    b = (differing + lost) / 2 of them went against us; P(X >= b), X binomial with 1/2, is the incomplete beta function, which also
    takes the fractions that means over rounds and seeds give.
    """
    against = (differing + lost) / 2
    possible = against > 0
    p = special.betainc(np.where(possible, against, 1.0), np.where(possible, differing - against + 1, 1.0), 0.5)
    return np.asarray(np.where(np.isfinite(lost), np.where(possible, p, 1.0), np.nan))


def shift_p(lost: Doubles, squares: Doubles, samples: Doubles) -> Doubles:
    """One-sided t test that so much is lost net over so many samples, whose differences have these squares in all."""
    n = np.maximum(samples, 1.0)
    spread = np.sqrt(np.maximum(squares - lost**2 / n, 0.0) * n / np.maximum(n - 1, 1.0))
    t = np.divide(lost, spread, out=np.where(lost > 0, np.inf, np.where(lost < 0, -np.inf, 0.0)), where=spread > NOTHING)
    p = np.where(n >= 2, stats.t.sf(t, np.maximum(n - 1, 1.0)), 1.0)
    return np.asarray(np.where(np.isfinite(lost), p, np.nan))


def _mean(runs: Doubles) -> Doubles:
    """(N,) mean over the draws and seeds that are there."""
    known = np.isfinite(runs)
    count = known.sum(axis=(0, 1))
    return np.asarray(np.where(count > 0, np.where(known, runs, 0.0).sum(axis=(0, 1)) / np.maximum(count, 1), np.nan))
