"""The interval of a difference over test clients and samples, for models that are given: other clients or patients, same models.

Both methods answer for the same test samples, so clients are pairs: everything is made of one difference a client, in right answers, and
its test samples. What can be known from counts:

- **Other clients** (and their samples): clients are the clusters. A client's difference holds the chance of its own few samples, so nothing
  has to be known about samples. The variance is the jackknife's, one client left out at a time; its degrees of freedom are those of as many
  clients as the largest ones leave (Bell and McCaffrey, 2002, variances taken as in proportion to samples). The plain cluster
  bootstrap, percentiles of resampled clients, covered 88 to 95 % in the same trials, the jackknife 93 to 96 % (docs/statistics.md).
- **Other samples of the same clients**: with few clients (four hospitals) clusters say little, and whoever runs four hospitals asks about
  their patients. The variance within a client needs the samples that only one of the two methods got right. Where only counts
  of each method are known, it is bounded: of a class with m samples, of which the methods got a and b right, at most
  min(a + b, 2 m - a - b) differ. The interval is then at least as wide as it should be, and says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles
from coterie.statistics.intervals import Interval

MANY_CLIENTS = 10  # with fewer, an interval over other clients is not tried: four clusters are no sample of clusters
BOUND = "it is the widest that counts allow, since who was right on the same sample is not known"


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


def over_test(draws: Sequence[Hits], *, overlap: float = 1.0) -> Interval | str:
    """Over test clients where there are many, else over test samples; the mean over draws.

    `overlap` is the share of one draw's test part that is expected in another's: 1 where all draws are tested on the same clients or
    samples (then the mean over draws is as uncertain as one of them), 0 where every draw has data of its own (synthetic), and where a
    pool is shared out anew each time, the share of the pool that is tested. Errors of two draws are correlated by so much.
    """
    if any(not hits.ours.size or not hits.samples.sum() for hits in draws) or not draws:
        return "no test samples: nothing is known of other clients or samples"
    many = min(int((hits.samples.sum(axis=1) > 0).sum()) for hits in draws) >= MANY_CLIENTS
    found = [over_clients(hits) if many else over_samples(hits) for hits in draws]
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


def over_clients(hits: Hits) -> Interval:
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
    return Interval(float(mean), float(error) if error > 1e-12 else 0.0, _degrees_of(sizes), over)


def _degrees_of(sizes: Doubles) -> float:
    """tr(A V)^2 / tr(A V A V), A the squared residuals of a ratio to sizes as a form of the values, V diagonal and in proportion to sizes.

    With g = sizes / sum and q = g'g, A = I - g 1' - 1 g' + q 1 1': both traces are sums. N - 1 for equal sizes.
    """
    g = sizes / sizes.sum()
    q, squares = float((g**2).sum()), float((g**3).sum())
    diagonal = 1 + q - 2 * g
    first = float((g * diagonal).sum())
    cross = q**2 + 2 * squares + 2 * q**2 - 4 * q * q  # sum over all pairs of v v' (q - g - g')^2, v = g
    return first**2 / (cross + float((g**2 * (diagonal**2 - (q - 2 * g) ** 2)).sum()))


def over_samples(hits: Hits) -> Interval:
    """Other samples of the same clients: the sum of the clients' variances, bounded where the samples that differ are not known."""
    sizes, weights = hits.samples.sum(axis=1), hits.weights()
    counted = sizes > 1  # of one sample no variance can be told: it counts in the mean
    gains = (hits.ours - hits.theirs).sum(axis=2)  # (S, N)
    differing = most_differing(hits.ours, hits.theirs, hits.samples) if hits.differing is None else hits.differing
    share = np.where(sizes > 0, weights / np.maximum(sizes, 1), 0.0)
    spread = differing - gains**2 / np.maximum(sizes, 1)  # (S, N) sum of squares about the client's mean
    variance = (np.where(counted, spread * sizes / np.maximum(sizes - 1, 1), differing) * share**2).sum(axis=1)
    error = float(np.sqrt(np.maximum(variance, 0.0)).mean())  # runs share the samples: their mean is as uncertain as one of them
    total, clients = int(sizes.sum()), int((sizes > 0).sum())
    caveat = f"these {clients} clients: this says nothing about others" + ("" if hits.differing is not None else f"; {BOUND}")
    mean, over = float((gains * share).sum(axis=1).mean()), f"{total} test samples of {clients} clients"
    return Interval(mean, error, float(max(total - clients, 1)), over, caveat, bound=hits.differing is None)


def most_differing(ours: Doubles, theirs: Doubles, samples: Doubles) -> Doubles:
    """(...) the most samples on which exactly one of two methods can have been right, from counts (..., C) by class."""
    right = ours + theirs
    return np.asarray(np.minimum(right, 2 * samples - right).sum(axis=-1))
