"""Cross-fitted scores: gains, the gate, and the shrinkage of single clients' gains, with numbers worked by hand."""

import numpy as np
import pytest
from scipy import stats

from coterie.statistics.cross_fitting import CrossFitted, Gain, choose_by_client, compute_gain, shrink_gains


def make_scores(*options: list[list[float]], sizes: int = 10) -> CrossFitted:
    credits = np.array(options, dtype=np.float64)
    return CrossFitted(np.arange(credits.shape[2]), np.full(credits.shape[1:], sizes, dtype=np.int64), credits)


def test_a_gain_counts_clients_as_units() -> None:
    # Differences 2, 0, 2, 0, ... of 10 samples each: mean 8 / 80 = 0.1, residuals +-1, error sqrt(8 / 7 * 8) / 80.
    gain = compute_gain(np.tile([7, 5], 4), np.full(8, 5), np.full(8, 10))
    assert gain.mean == pytest.approx(0.1)
    assert gain.error == pytest.approx(np.sqrt(8 / 7 * 8) / 80)
    assert gain.p == pytest.approx(stats.t.sf(0.1 / gain.error, 7))


def test_of_few_clients_samples_are_the_units() -> None:
    # 60 and 50 right of 100, as if unpaired: the variance is (0.6 * 0.4 + 0.5 * 0.5) / 100.
    gain = compute_gain(np.array([30, 30]), np.array([25, 25]), np.array([50, 50]))
    assert gain.error == pytest.approx(np.sqrt(0.49 / 100))
    assert gain.p == pytest.approx(stats.norm.sf(0.1 / gain.error))


def test_log_likelihoods_of_few_clients_have_clients_as_units() -> None:
    # Differences 2, 0, 4 of 10 samples each: mean 0.2, residuals 0, -2, 2, error sqrt(3 / 2 * 8) / 30.
    gain = compute_gain(np.array([-8.0, -10, -6]), np.full(3, -10.0), np.full(3, 10), are_shares=False)
    assert gain.mean == pytest.approx(0.2)
    assert gain.error == pytest.approx(np.sqrt(12) / 30)
    assert gain.p == pytest.approx(stats.t.sf(0.2 / gain.error, 2))
    assert compute_gain(np.array([-8.0]), np.array([-10.0]), np.array([10]), are_shares=False).p == 1.0


def test_the_gate_admits_the_best_option_only_below_its_level() -> None:
    better = [[6.0, 5, 6, 5, 6, 5, 6, 5]] * 2
    scores = make_scores([[5.0] * 8] * 2, better)
    p = scores.gain(1).p
    assert scores.choose(p * 1.01) == 1
    assert scores.choose(p * 0.99) == 0
    assert make_scores(better, [[5.0] * 8] * 2).choose(1.0) == 0  # the baseline is the best


def test_noise_is_what_folds_of_one_client_differ_by() -> None:
    # Client 0: gains of 3 and 1 in 10 samples; about its mean of 2 each, residuals +-1: 2 * 1 / 10 for one degree of freedom.
    gains, noise = make_scores([[0.0], [0.0]], [[3.0], [1.0]]).client_gains(1, 0)
    assert gains == pytest.approx([0.2])
    assert noise == pytest.approx(0.2)


def test_gains_are_shrunk_by_the_noise_of_the_clients_own_samples() -> None:
    # Weights 1 / (1 / 10) = 10 each; Q = 10 (1 + 1) = 20, slack = 20 - 200 / 20 = 10, so between = (20 - 1) / 10 = 1.9.
    belief = shrink_gains(np.array([1.0, -1.0]), np.array([10, 10]), Gain(0.0, 0.0, 0.5), noise=1.0)
    own = 1.9 / (1.9 + 0.1)
    assert belief.mean == pytest.approx([own, -own])
    assert belief.deviation == pytest.approx(np.sqrt(1.9 * (1 - own)) * np.ones(2))
    assert belief.harm[0] == pytest.approx(stats.norm.cdf(-own / np.sqrt(1.9 * (1 - own))))


def test_clients_that_differ_by_noise_alone_all_have_the_federations_gain() -> None:
    belief = shrink_gains(np.array([0.11, 0.09]), np.array([10, 10]), Gain(0.1, 0.05, 0.02), noise=1.0)
    assert belief.mean == pytest.approx([0.1, 0.1])
    assert belief.harm == pytest.approx(stats.norm.cdf(-2.0) * np.ones(2))  # no surer than the federation


def test_what_the_gate_refuses_no_client_gets_without_evidence_of_its_own() -> None:
    """A small gain that is as likely as not by chance, the same for all clients but for noise: none leaves the baseline."""
    rng = np.random.default_rng(1)
    base = np.full((2, 30), 50.0)
    other = base + 0.3 + rng.normal(0, 5, (2, 30))
    scores = CrossFitted(np.arange(30), np.full((2, 30), 100), np.stack([base, other]))
    assert scores.gain(1).mean > 0
    assert scores.choose(0.2) == 0
    assert not choose_by_client(scores, 0, 0.1, np.ones(2, dtype=np.bool_))[0].any()


def test_a_client_without_samples_has_the_federations_gain() -> None:
    belief = shrink_gains(np.array([1.0, -1.0, 0.0]), np.array([10, 10, 0]), Gain(0.25, 0.1, 0.01), noise=0.1)
    assert belief.mean[2] == pytest.approx(0.25)


def test_only_clients_that_hardly_risk_a_loss_leave_the_federations_option() -> None:
    rng = np.random.default_rng(0)
    base = np.full((2, 20), 50.0)
    other = base + rng.integers(-1, 2, (2, 20))
    other[:, :4] += 20  # four clients for which it is far better
    other[:, 4:] -= 15
    scores = CrossFitted(np.arange(20), np.full((2, 20), 100), np.stack([base, other]))
    rows, expected = choose_by_client(scores, 0, 0.1, np.ones(2, dtype=np.bool_))
    assert rows.tolist() == [1] * 4 + [0] * 16
    assert (expected[:4] > 0.1).all()
    assert (expected[4:] == 0).all()
    assert not choose_by_client(scores, 0, 0.1, np.array([True, False]))[0].any()  # an option that is not allowed


def test_of_few_clients_r2_has_clients_as_units() -> None:
    """Credits within 0 and the samples are not always right answers."""
    credits, others, judged = np.array([90.0, 91, 92]), np.array([86.0, 87, 86]), np.full(3, 100)
    unpaired, paired = compute_gain(credits, others, judged), compute_gain(credits, others, judged, are_shares=False)
    left = credits - others - 14 / 3
    assert paired.error == pytest.approx(np.sqrt(3 / 2 * np.sum(left**2)) / 300)
    assert unpaired.error > paired.error


def test_without_any_risk_no_client_has_an_option_of_its_own() -> None:
    base = np.full((2, 10), 50.0)
    better = base + 20.0
    better[:, 5:] -= 40
    scores = CrossFitted(np.arange(10), np.full((2, 10), 100), np.stack([base, better]))
    assert choose_by_client(scores, 0, 0.1, np.ones(2, dtype=np.bool_))[0].any()
    assert not choose_by_client(scores, 0, 0.0, np.ones(2, dtype=np.bool_))[0].any()


def test_p_is_corrected_for_the_best_of_many_options() -> None:
    """Options without any gain: the best of 20 has a small p in most federations, its corrected p in few. One option alone keeps its p."""
    rng = np.random.default_rng(0)
    plain, corrected = [], []
    for _ in range(60):
        credits = rng.normal(0, 1, (21, 1, 30))
        credits[0] = 0
        scores = CrossFitted(np.arange(30), np.full((1, 30), 10), credits, are_shares=False)
        best = scores.find_best(np.arange(21) > 0)
        plain.append(scores.gain(best).p)
        corrected.append(scores.adjust_p(best, rng))
        alone = CrossFitted(scores.clients, scores.sizes, credits[[0, best]], are_shares=False)
        assert alone.adjust_p(1, rng) == pytest.approx(plain[-1], abs=0.03)
    assert np.mean(np.array(plain) < 0.1) > 0.6
    assert np.mean(np.array(corrected) < 0.1) < 0.2
    assert scores.adjust_p(0, rng) == 1.0


def test_of_few_clients_p_is_multiplied_by_the_number_of_options() -> None:
    scores = make_scores([[5.0], [5], [5]], [[8.0], [8], [8]], [[5.0], [6], [5]])
    assert scores.adjust_p(1, np.random.default_rng(0)) == pytest.approx(2 * scores.gain(1).p)


def test_without_shrinkage_a_client_follows_its_own_gain() -> None:
    """Two clients of ten gain four samples of 20, which folds of others that differ by two make no surprise: shrunk, all stay."""
    base = [[5.0] * 10, [5.0] * 10]
    other = [[7.0, 7, 6, 4, 6, 4, 6, 4, 6, 4], [7.0, 7, 4, 6, 4, 6, 4, 6, 4, 6]]
    scores = make_scores(base, other)
    allowed = np.ones(2, dtype=np.bool_)
    assert np.flatnonzero(choose_by_client(scores, 0, 0.05, allowed, shrinkage=False)[0]).tolist() == [0, 1]
    assert not choose_by_client(scores, 0, 0.05, allowed)[0].any()
