"""Test clients and samples: the interval of a difference over them, and which clients are clearly worse off (statistics.md).

Both methods answer for the same test samples, so everything is made of one difference a client, in right answers. Over other clients the
variance is the jackknife's, with the degrees of freedom of Bell and McCaffrey (2002); it covered 93 to 96 % where the cluster bootstrap
covered 88 to 95 %. With few clients the interval is over other samples of the same clients; where only counts are known, it is bounded: of
m samples, of which the methods got a and b right, at most min(a + b, 2 m - a - b) differ.

A client is clearly worse off when its difference over runs is below 0 and its loss is more than a sign test of its samples leaves to
chance; its p is the larger of the two, and the false discovery rate over clients (Benjamini and Hochberg, 1995) is kept at 5 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from coterie.core.arrays import Bools, Doubles
from coterie.statistics.intervals import Interval, compute_draw_interval, compute_seed_interval
from coterie.statistics.paired import CONFIDENCE, LEVEL
from coterie.statistics.variance_components import NOTHING

MANY_CLIENTS = 10  # with fewer, an interval over other clients is not computed: four clusters are no sample of clusters
BOUND = "the interval is the widest that the counts allow, since results of single samples are not known"


@dataclass(frozen=True)
class Hits:
    """Right answers of two methods on one draw's test samples, by run (seed), client and class; one class where they are not known apart.

    Means over rounds are right answers, too. `differing` are the samples on which exactly one method was right, where that is known.
    """

    ours: Doubles  # (S, N, C)
    theirs: Doubles  # (S, N, C)
    samples: Doubles  # (N, C)
    differing: Doubles | None = None  # (S, N)
    alike: bool = False  # each client counts alike (a macro score), not by its samples

    def weights(self) -> Doubles:
        """(N,) how much a client's accuracy counts; they sum to 1."""
        sizes = self.samples.sum(axis=1)
        counted = (sizes > 0).astype(np.float64) if self.alike else sizes
        return np.asarray(counted / counted.sum())


def compute_test_interval(draws: Sequence[Hits], *, overlap: float = 1.0) -> Interval | str:
    """Over test clients where there are many, else over test samples; the mean over draws.

    `overlap` is the share of one draw's test part that is expected in another's: 1 where all draws are tested on the same clients or
    samples (then the mean over draws is as uncertain as one of them), 0 where every draw has data of its own (synthetic), and where a
    pool is partitioned again each time, the share of the pool that is tested. Errors of two draws are correlated by so much.
    """
    if any(not hits.ours.size or not hits.samples.sum() for hits in draws) or not draws:
        return "no test samples: no estimate for other clients or samples"
    many = min(int((hits.samples.sum(axis=1) > 0).sum()) for hits in draws) >= MANY_CLIENTS
    found = [compute_client_interval(hits) if many else compute_sample_interval(hits) for hits in draws]
    errors, degrees = np.array([one.error for one in found]), np.array([one.degrees for one in found])
    apart, same = float((errors**2).sum()), float(errors.sum()) ** 2
    variance = ((1 - overlap) * apart + overlap * same) / len(found) ** 2
    least = float(degrees.min())
    welch = apart**2 / float((errors**4 / degrees).sum()) if apart > 0 else least
    over = found[0].over if len(found) == 1 else f"{found[0].over}, {len(found)} draws"
    mean = float(np.mean([one.mean for one in found]))
    return Interval(
        mean, float(variance**0.5), float(least + (1 - overlap) * max(welch - least, 0.0)), over, found[0].caveat, found[0].bound
    )


def compute_client_interval(hits: Hits) -> Interval:
    """Other clients like these, with samples of their own: the jackknife over clients of two or more."""
    counted = hits.samples.sum(axis=1) > 0
    sizes = hits.samples.sum(axis=1)[counted]
    gains = (hits.ours - hits.theirs).sum(axis=2).mean(axis=0)[counted]  # (N,) in right answers, mean over runs
    if hits.alike:
        gains, sizes = gains / sizes, np.ones(len(sizes))
    n, total = len(sizes), sizes.sum()
    mean = gains.sum() / total
    without = (gains.sum() - gains) / (total - sizes)
    error = ((n - 1) / n * ((without - mean) ** 2).sum()) ** 0.5
    over = f"{n} test clients, {int(hits.samples.sum())} samples"
    return Interval(float(mean), float(error) if error > 1e-12 else 0.0, _compute_client_degrees(sizes), over)


def _compute_client_degrees(sizes: Doubles) -> float:
    """tr(A V)^2 / tr(A V A V), A the squared residuals of a ratio to sizes as a form of the values, V diagonal and in proportion to sizes.

    With g = sizes / sum and q = g'g, A = I - g 1' - 1 g' + q 1 1': both traces are sums. N - 1 for equal sizes.
    """
    g = sizes / sizes.sum()
    q, squares = float((g**2).sum()), float((g**3).sum())
    diagonal = 1 + q - 2 * g
    first = float((g * diagonal).sum())
    cross = q**2 + 2 * squares + 2 * q**2 - 4 * q * q  # sum over all pairs of v v' (q - g - g')^2, v = g
    return first**2 / (cross + float((g**2 * (diagonal**2 - (q - 2 * g) ** 2)).sum()))


def compute_sample_interval(hits: Hits) -> Interval:
    """Other samples of the same clients: the sum of the clients' variances, bounded where the samples that differ are not known."""
    sizes, weights = hits.samples.sum(axis=1), hits.weights()
    counted = sizes > 1  # one sample has no variance: it counts in the mean
    gains = (hits.ours - hits.theirs).sum(axis=2)  # (S, N)
    differing = count_most_differing(hits.ours, hits.theirs, hits.samples) if hits.differing is None else hits.differing
    share = np.where(sizes > 0, weights / np.maximum(sizes, 1), 0.0)
    spread = differing - gains**2 / np.maximum(sizes, 1)  # (S, N) sum of squares about the client's mean
    variance = (np.where(counted, spread * sizes / np.maximum(sizes - 1, 1), differing) * share**2).sum(axis=1)
    error = float(np.sqrt(np.maximum(variance, 0.0)).mean())  # runs share the samples: their mean is as uncertain as one of them
    total, clients = int(sizes.sum()), int((sizes > 0).sum())
    caveat = f"these {clients} clients: no estimate for other clients" + ("" if hits.differing is not None else f"; {BOUND}")
    mean, over = float((gains * share).sum(axis=1).mean()), f"{total} test samples of {clients} clients"
    return Interval(mean, error, float(max(total - clients, 1)), over, caveat, bound=hits.differing is None)


def count_most_differing(ours: Doubles, theirs: Doubles, samples: Doubles) -> Doubles:
    """(...) the most samples on which exactly one of two methods can have been right, from counts (..., C) by class."""
    right = ours + theirs
    return np.asarray(np.minimum(right, 2 * samples - right).sum(axis=-1))


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
    def significant(self) -> Bools:
        return np.asarray(self.corrected < LEVEL)  # nan is not clear

    @property
    def tested(self) -> int:
        return int(np.isfinite(self.p).sum())


def find_worse_off(
    ours: Doubles, theirs: Doubles, samples: Doubles, *, differing: Doubles | None = None, shared: bool = True, whole: bool = True
) -> WorseOff:
    """From right answers (draws, seeds, clients) of two methods and test samples (draws, clients); nan for a run that is missing.

    Where credits are not `whole` (a regression's), `differing` are squares of single samples' differences, and their mean is tested.

    A client has to be the same holder of data in all draws: where the partition is redrawn it is not, and each draw is asked alone.
    """
    rates = np.where(samples > 0, samples, np.nan)[:, None, :]
    numbers = _compute_run_intervals(np.moveaxis((ours - theirs) / rates, 2, 0), shared)
    if differing is None:
        differing = count_most_differing(ours[..., None], theirs[..., None], samples[:, None, :, None])
    lost, apart = _compute_run_mean(theirs - ours), _compute_run_mean(differing)
    by_samples = compute_sign_p(lost, apart) if whole else compute_shift_p(lost, apart, _compute_run_mean(rates))
    p = np.maximum(numbers[:, 3], by_samples)
    corrected = np.full(len(p), np.nan)
    known = np.isfinite(p)
    if known.any():
        corrected[known] = stats.false_discovery_control(p[known])
    return WorseOff(numbers[:, 0], numbers[:, 1], numbers[:, 2], _compute_run_mean(rates), p, corrected)


def _compute_run_intervals(tables: Doubles, shared: bool) -> Doubles:
    """(N, 4) mean, ends of the interval and p of each client's differences (N, B, S), over draws or, of one draw, over seeds.

    Where nothing is missing and draws share no seeds both are Student's over one number a draw or seed: all clients at once, since one
    by one ten thousand of them would take longer than the rest of a report.
    """
    draws = tables.shape[1]
    whole = np.asarray(np.isfinite(tables).all(axis=(1, 2)))
    units = tables[:, 0] if draws == 1 else tables.mean(axis=2)  # (N, U)
    if (draws > 1 and shared) or units.shape[1] < 2:
        whole[:] = False
    numbers = np.array(
        [_compute_run_interval(table, shared) if not known else (np.nan,) * 4 for table, known in zip(tables, whole, strict=True)]
    )
    if whole.any():
        numbers[whole] = _compute_student_intervals(units[whole])
    return numbers.reshape(-1, 4)


def _compute_run_interval(table: Doubles, shared: bool) -> tuple[float, ...]:
    found = compute_draw_interval(table, shared=shared) if len(table) > 1 else compute_seed_interval(table)
    return (np.nan,) * 4 if isinstance(found, str) else (found.mean, found.low, found.high, found.p_below())


def _compute_student_intervals(units: Doubles) -> Doubles:
    """(n, 4) as `compute_student_interval` of each row; the p of equal values is a sign test's."""
    n = units.shape[1]
    mean = units.mean(axis=1)
    error = np.where(np.ptp(units, axis=1) <= NOTHING, 0.0, units.std(axis=1, ddof=1)) / n**0.5
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)) * error
    spread = stats.t.sf(np.divide(-mean, error, out=np.zeros_like(mean), where=error > 0), n - 1)
    p = np.where(error > 0, spread, np.where(mean < 0, 0.5**n, 1.0))
    return np.stack([mean, mean - half, mean + half, p], axis=1)


def compute_sign_p(lost: Doubles, differing: Doubles) -> Doubles:
    """One-sided sign test that so many right answers are lost net, of so many samples on which one method alone was right.

    b = (differing + lost) / 2 of them went against us; P(X >= b), X binomial with 1/2, is the incomplete beta function, which also
    takes the fractions that means over rounds and seeds give.
    """
    against = (differing + lost) / 2
    possible = against > 0
    p = special.betainc(np.where(possible, against, 1.0), np.where(possible, differing - against + 1, 1.0), 0.5)
    return np.asarray(np.where(np.isfinite(lost), np.where(possible, p, 1.0), np.nan))


def compute_shift_p(lost: Doubles, squares: Doubles, samples: Doubles) -> Doubles:
    """One-sided t test that so much is lost net over so many samples, whose differences have these squares in all."""
    n = np.maximum(samples, 1.0)
    spread = np.sqrt(np.maximum(squares - lost**2 / n, 0.0) * n / np.maximum(n - 1, 1.0))
    t = np.divide(lost, spread, out=np.where(lost > 0, np.inf, np.where(lost < 0, -np.inf, 0.0)), where=spread > NOTHING)
    p = np.where(n >= 2, stats.t.sf(t, np.maximum(n - 1, 1.0)), 1.0)
    return np.asarray(np.where(np.isfinite(lost), p, np.nan))


def _compute_run_mean(runs: Doubles) -> Doubles:
    """(N,) mean over the draws and seeds that are there."""
    known = np.isfinite(runs)
    count = known.sum(axis=(0, 1))
    return np.asarray(np.where(count > 0, np.where(known, runs, 0.0).sum(axis=(0, 1)) / np.maximum(count, 1), np.nan))
