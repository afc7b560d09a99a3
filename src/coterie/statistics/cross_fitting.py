"""Cross-fitted scores: several ways to serve the same clients, each judged on samples that did not train it, and what to choose by them.

A way (an option) has a credit for every fold and client: right answers, or what else the task counts. Two decisions follow. One option for
the federation: the best, if its gain over the baseline passes a one-sided test. Then an option for a single client, by empirical Bayes: the
client's own gain is shrunk towards the federation's by the noise of its own samples, and it leaves the federation's option only where the
posterior probability of a loss is small.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from coterie.core.arrays import Array, Bools, Doubles, Ids, Ints

SIGN_DRAWS = 999
FEW_CLIENTS = 8  # of fewer, samples are the units of a test


@dataclass(frozen=True)
class Gain:
    """One option less another in the score, with its standard error and the one-sided p of no gain."""

    mean: float
    error: float
    p: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        return self.mean - 1.96 * self.error, self.mean + 1.96 * self.error


def compute_gain(credits: Array, others: Array, judged: Array, *, are_shares: bool = True) -> Gain:
    """The gain in the score over all samples judged. Clients are the units; of fewer than eight, samples are, as if unpaired: on the
    safe side. That needs credits that are shares of right answers (`are_shares`): of others, such as R2 or log-likelihoods, clients are
    the units in any case. Arguments are (n,): credits of two options, and samples."""
    n, total = len(judged), float(np.sum(judged))
    if total <= 0:
        return Gain(0.0, 0.0, 1.0)
    difference = np.asarray(credits, np.float64) - others
    mean = float(difference.sum() / total)
    if n < FEW_CLIENTS and are_shares:
        shares = np.array([np.sum(credits) / total, np.sum(others) / total])
        error, freedom = float(np.sqrt(np.sum(shares * (1 - shares)) / total)), np.inf
    elif n < 2:
        return Gain(mean, 0.0, 1.0)  # nothing shows how sure it is
    else:
        left = difference - mean * judged
        error, freedom = float(np.sqrt(n / (n - 1) * np.sum(left**2)) / total), float(n - 1)
    if error == 0:
        return Gain(mean, 0.0, 0.0 if mean > 0 else 1.0)
    return Gain(mean, error, float(stats.t.sf(mean / error, freedom)))


@dataclass(frozen=True)
class CrossFitted:
    """The credits of all options; option 0 is the baseline."""

    clients: Ids  # (n,) judged in every option
    sizes: Ints  # (folds, n) samples judged
    credits: Doubles  # (options, folds, n)
    are_shares: bool = True  # whether credits are right answers

    @property
    def judged(self) -> Ints:
        """(n,) samples."""
        return np.asarray(self.sizes.sum(axis=0))

    def score(self, option: int) -> float:
        """The score over all samples judged; nan without any."""
        total = float(self.sizes.sum())
        return float(self.credits[option].sum() / total) if total else float("nan")

    def gain(self, option: int, over: int = 0) -> Gain:
        """One option against another, over the federation."""
        return compute_gain(self.credits[option].sum(axis=0), self.credits[over].sum(axis=0), self.judged, are_shares=self.are_shares)

    def find_best(self, allowed: Bools | None = None) -> int:
        """The option with the highest score; the first of equals."""
        scores = np.array([self.score(option) for option in range(len(self.credits))])
        scores = np.where(np.isnan(scores), -np.inf, scores)
        return int(np.argmax(scores if allowed is None else np.where(allowed, scores, -np.inf)))

    def choose(self, level: float) -> int:
        """The option of the federation: the best, if its gain over the baseline has p below `level`; else the baseline."""
        best = self.find_best()
        return best if best and self.gain(best).p < level else 0

    def adjust_p(self, option: int, rng: np.random.Generator) -> float:
        """The p of an option's gain over the baseline, corrected for its being the best of all: the probability that the largest t of all
        options is as high where none gains (single-step max-t; signs of clients' gains are drawn). Of few clients, Bonferroni's."""
        gains = [self.gain(other) for other in range(1, len(self.credits))]
        tested = [gain for gain in gains if gain.error > 0]
        own = self.gain(option)
        if option == 0 or own.error == 0 or len(self.clients) < FEW_CLIENTS:
            return min(1.0, own.p * max(len(tested), 1))
        differences = (self.credits[1:] - self.credits[0]).sum(axis=1)[[gain.error > 0 for gain in gains]]  # (tested, n)
        judged, n = self.judged.astype(np.float64), len(self.clients)
        signs = np.concatenate([np.ones((1, n)), rng.choice(np.array([-1.0, 1.0]), (SIGN_DRAWS, n))])  # the first: as it was
        sums = signs @ differences.T  # (draws, tested)
        means = sums / judged.sum()
        squares = (differences**2).sum(axis=1) - 2 * means * (signs @ (differences * judged).T) + means**2 * np.sum(judged**2)
        t = sums / np.sqrt(np.maximum(n / (n - 1) * squares, 1e-300))  # each as `compute_gain` has it
        return float(np.mean(t.max(axis=1) >= own.mean / own.error * (1 - 1e-9)))

    def client_gains(self, option: int, over: int) -> tuple[Doubles, float]:
        """(n,) each client's own gain, and the variance of one sample's: how far folds of one client differ, pooled over clients.

        That holds for any task, and counts what another half of the training samples changes.
        """
        difference = self.credits[option] - self.credits[over]  # (folds, n)
        own = difference.sum(axis=0) / np.maximum(self.judged, 1)
        left = difference - own * self.sizes
        inverse = 1 / np.maximum(self.sizes, 1)
        seen = (self.sizes > 0).sum(axis=0)
        freedom = float(np.maximum(seen - 1, 0).sum())
        return np.asarray(own), float((left**2 * inverse)[self.sizes > 0].sum() / freedom) if freedom else float("nan")


@dataclass(frozen=True)
class Posterior:
    """What is believed of each client's gain by one option over another."""

    mean: Doubles  # (n,)
    deviation: Doubles  # (n,)

    @property
    def harm(self) -> Doubles:
        """(n,) the probability of a loss."""
        certain = np.where(self.mean > 0, 0.0, 1.0)
        scale = np.where(self.deviation > 0, self.deviation, 1.0)
        return np.asarray(np.where(self.deviation > 0, stats.norm.cdf(-self.mean / scale), certain))


def believe_gains(gains: Doubles, judged: Ints, noise: float) -> Posterior:
    """Without shrinkage: each client's own gain, with the noise of its own samples. For comparison with `shrink_gains`."""
    return Posterior(gains, np.where(judged > 0, np.sqrt(noise / np.maximum(judged, 1)), np.inf))


def shrink_gains(gains: Doubles, judged: Ints, federation: Gain, noise: float) -> Posterior:
    """Empirical Bayes: clients' true gains are normal about the federation's with a variance that is estimated by moments (DerSimonian and
    Laird), a client's own gain is normal about its true one with variance `noise` / samples. The federation's gain has an error, too: a
    client of whom little is known can be no surer of a gain than the federation is."""
    centre = federation.mean
    known = judged > 0
    variance = noise / np.maximum(judged, 1)
    weights = np.where(known, 1 / np.maximum(variance, 1e-12), 0.0)
    spread = float(np.sum(weights * (gains - centre) ** 2))
    slack = float(weights.sum() - (weights**2).sum() / max(weights.sum(), 1e-12))
    between = max(0.0, (spread - (np.count_nonzero(known) - 1)) / slack) if slack > 0 else 0.0
    own = np.where(known, between / np.maximum(between + variance, 1e-300), 0.0)  # 0 where clients differ by no more than noise
    return Posterior(centre + own * (gains - centre), np.sqrt(between * (1 - own) + ((1 - own) * federation.error) ** 2))


def choose_by_client(scores: CrossFitted, leader: int, harm: float, allowed: Bools, *, shrinkage: bool = True) -> tuple[Ids, Doubles]:
    """(n,) the option of each client, and its expected gain over the baseline.

    A client leaves the federation's option for the one with the highest posterior gain over it, among those whose probability of a loss
    is at most `harm`, and that are `allowed` (options,). With few clients nothing can be said of the variance between them, and all stay.
    """
    n, options = len(scores.clients), len(scores.credits)
    rows, best = np.full(n, leader, dtype=np.int64), np.zeros(n)
    for option in range(options):
        if harm == 0 or option == leader or not allowed[option] or n < FEW_CLIENTS:
            continue
        gains, noise = scores.client_gains(option, leader)
        if not np.isfinite(noise):
            continue
        federation = scores.gain(option, leader)
        belief = shrink_gains(gains, scores.judged, federation, noise) if shrinkage else believe_gains(gains, scores.judged, noise)
        better = (belief.harm <= harm) & (belief.mean > best)
        rows[better], best[better] = option, belief.mean[better]
    return rows, best + _expect(scores, leader)


def _expect(scores: CrossFitted, option: int) -> Doubles:
    """(n,) each client's expected gain over the baseline by one option, shrunk."""
    gains, noise = scores.client_gains(option, 0)
    federation = scores.gain(option)
    if option == 0 or len(gains) < FEW_CLIENTS or not np.isfinite(noise):
        return np.full(len(gains), federation.mean)
    return shrink_gains(gains, scores.judged, federation, noise).mean
