"""Statistics against worked examples: small numbers with their derivations, and textbook values."""

from math import exp, isnan, nan, sqrt

import numpy as np
import pytest
from scipy import stats

from coterie.core.rng import make_generator, make_key
from coterie.statistics import (
    ClaimTests,
    compare_pairs,
    compare_rounds,
    compute_critical_difference,
    compute_interval,
    compute_partial_conjunction,
    compute_t_bands,
    correct_claims,
    correct_holm,
    judge,
    rank_methods,
)
from coterie.statistics.paired import compute_t_p, compute_wilcoxon_p

# Student (1908), hours of sleep gained: the second drug minus the first, ten patients. R's t.test(paired=TRUE) gives t = 4.0621,
# p = 0.002833 two-sided, 95 % interval 0.7001142 to 2.4598858.
SLEEP = np.array([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])


def test_eight_differences_by_hand() -> None:
    test = compare_pairs(np.array([8.0, -3, 5, 6, 2, -1, 7, 4]))
    # Ranks of |d| are |d| themselves. Against: 1 + 3 = 4; for: 36 - 4 = 32. Of the 256 sign patterns, those with a sum against of at most 4
    # are {}, 1, 2, 3, 4, 1+2, 1+3: 7.
    assert test.wilcoxon_p == pytest.approx(7 / 256)
    assert test.rank_biserial == pytest.approx((32 - 4) / 36)
    # Sum 28, sum of squares 204: variance (204 - 28**2 / 8) / 7 = 106 / 7.
    assert test.mean == 3.5
    assert test.sd == pytest.approx(sqrt(106 / 7))
    assert test.d == pytest.approx(3.5 / sqrt(106 / 7))
    assert test.t_p == pytest.approx(stats.t.sf(3.5 / sqrt(106 / 7 / 8), 7))
    assert (test.wins, test.ties, test.losses, test.n, test.missing) == (6, 0, 2, 8, 0)
    # Eight values are few: Student's interval, t(.975, 7) = 2.3646.
    assert (test.low, test.high) == pytest.approx((3.5 - 2.3646 * sqrt(106 / 56), 3.5 + 2.3646 * sqrt(106 / 56)), abs=1e-3)


def test_students_sleep() -> None:
    test = compare_pairs(SLEEP)
    assert test.t_p == pytest.approx(0.002833 / 2, abs=5e-7)
    mean, low, high = compute_t_bands(SLEEP)
    assert (mean, low, high) == pytest.approx((1.58, 0.7001142, 2.4598858))
    # One zero is left out; 1.3 twice shares ranks. All nine others are positive: of 2**9 patterns only that one is as extreme.
    assert test.wilcoxon_p == pytest.approx(2**-9)
    assert test.rank_biserial == 1
    assert test.ties == 1
    assert (test.low, test.high) == pytest.approx((low, high))  # ten values are few


def test_ties_are_exact_for_few_pairs() -> None:
    # Three ranks of 2: the sum for is 2 k with k positive signs; k >= 2 in 4 of the 8 patterns.
    assert compare_pairs(np.array([1.0, 1.0, -1.0])).wilcoxon_p == pytest.approx(4 / 8)
    # Rounding does not break ties: 0.3 - 0.2 and 0.2 - 0.1 differ in their last bits.
    assert compare_pairs(np.array([0.3 - 0.2, 0.2 - 0.1, 0.1 - 0.2])).wilcoxon_p == pytest.approx(4 / 8)


def test_many_tied_pairs_follow_the_normal_approximation() -> None:
    values = np.array([1.0] * 12 + [-1.0] * 8)
    # 20 ranks of 10.5: W+ = 126, mean 105, variance with ties = 20 * 10.5**2 / 4.
    assert compare_pairs(values).wilcoxon_p == pytest.approx(stats.norm.sf((126 - 105) / sqrt(20 * 10.5**2 / 4)))


def test_odd_cases_are_defined() -> None:
    nothing, one = compare_pairs(np.array([])), compare_pairs(np.array([0.5, nan]))
    assert (nothing.n, one.n, one.missing) == (0, 1, 1)
    for untestable in (nothing, one):
        assert not untestable.testable
        assert all(isnan(value) for value in (untestable.wilcoxon_p, untestable.t_p, untestable.low, untestable.high))
    zero = compare_pairs(np.zeros(7))
    assert (zero.wilcoxon_p, zero.t_p, zero.d, zero.rank_biserial, zero.low, zero.high) == (1, 1, 0, 0, 0, 0)
    equal = compare_pairs(np.full(5, 0.1))
    assert equal.wilcoxon_p == pytest.approx(2**-5)
    assert isnan(equal.t_p)
    assert isnan(equal.d)
    assert (equal.low, equal.high) == (0.1, 0.1)


def test_four_pairs_cannot_reach_five_percent() -> None:
    assert compare_pairs(np.array([1.0, 2, 3, 4])).wilcoxon_p == 1 / 16


def test_the_bootstraps_interval_is_keyed_and_leans_to_the_long_side() -> None:
    values = np.arange(20.0) ** 4
    low, high = compute_interval(values)
    assert compute_interval(values) == (low, high)
    assert high - values.mean() > values.mean() - low > 0  # Student's is symmetric
    assert compute_interval(values, 0.5)[0] > low


def test_holm() -> None:
    # Sorted .005 .01 .03 .04 times 4 3 2 1: .02 .03 .06 .04, and the last may not fall below .06.
    assert correct_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert correct_holm([0.5, 0.9]) == [1, 1]
    assert correct_holm([]) == []
    corrected = correct_holm([nan, 0.02, 0.03])  # what was no test does not count
    assert isnan(corrected[0])
    assert corrected[1:] == pytest.approx([0.04, 0.04])


def test_friedman_by_hand() -> None:
    # Four federations agree on the order: mean ranks 1, 2, 3. 12 * 4 / (3 * 4) * (1 + 4 + 9 - 3 * 16 / 4) = 8, and for 2 degrees of
    # freedom p = exp(-8 / 2).
    found = rank_methods(np.array([[0.9, 0.8, 0.7]] * 4), ["a", "b", "c"])
    assert found is not None
    assert found.ranks == (1, 2, 3)
    assert found.statistic == pytest.approx(8)
    assert found.p == pytest.approx(exp(-4))


def test_critical_differences_of_demsar() -> None:
    # Demšar (2006), Table 5: q at 5 % for 2, 3, 4, 5 and 10 methods; Section 3.2.3: CD = 2.569 sqrt(4 * 5 / (6 * 14)) = 1.25.
    for methods, q in ((2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)):
        assert compute_critical_difference(methods, 14) == pytest.approx(q * sqrt(methods * (methods + 1) / 84), abs=5e-4)
    assert compute_critical_difference(4, 14) == pytest.approx(1.25, abs=5e-3)


def test_cliques_are_what_lies_within_a_critical_difference() -> None:
    scores = np.array([[4.0, 3, 2, 1]] * 12)  # ranks 1 2 3 4, critical difference 1.35
    found = rank_methods(scores, ["a", "b", "c", "d"])
    assert found is not None
    assert found.cliques == [("a", "b"), ("b", "c"), ("c", "d")]
    few = rank_methods(scores[:2], ["a", "b", "c", "d"])  # critical difference 3.3
    assert few is not None
    assert few.cliques == [("a", "b", "c", "d")]


def test_ranking_needs_federations_and_methods_and_ranks_the_diverged_last() -> None:
    assert rank_methods(np.ones((1, 3)), "abc") is None
    assert rank_methods(np.ones((3, 2)), "ab") is None
    same = rank_methods(np.ones((3, 3)), "abc")
    assert same is not None
    assert (same.p, same.ranks) == (1, (2, 2, 2))
    gone = rank_methods(np.array([[nan, 0.1, 0.2], [nan, 0.3, 0.2]]), "abc")
    assert gone is not None
    assert gone.ranks == (3, 1.5, 1.5)


def test_rounds_are_tested_one_by_one() -> None:
    better, worse = np.linspace(0.01, 0.02, 6), np.linspace(-0.02, -0.01, 6)
    differences = np.stack([worse, better, better, worse, better], axis=1)  # (seeds, rounds)
    tests = compare_rounds(differences, np.arange(1, 6))
    assert tests.wilcoxon_p == pytest.approx([1, 2**-6, 2**-6, 1, 2**-6])
    assert tests.rounds[~tests.significant].tolist() == [1, 4]
    assert tests.share == 0.6
    one_seed = compare_rounds(differences[:1], np.arange(1, 6))
    assert not one_seed.significant.any()


@pytest.mark.parametrize("counts", [False, True])
def test_null_studies_reject_as_often_as_they_should(counts: bool) -> None:
    """200 studies of 35 pairs with no difference: normal scores, and accuracies of 50 test samples, which tie."""
    rng = make_generator(make_key(0, "null studies", int(counts)))
    shape = (2, 200, 35)
    scores = rng.binomial(50, 0.8, shape) / 50 if counts else rng.normal(size=shape)
    wilcoxon, student = (
        np.array([p(np.round(a - b, 12)) for a, b in zip(*scores, strict=True)]) for p in (compute_wilcoxon_p, compute_t_p)
    )
    least, most = stats.binom.interval(0.95, 200, 0.05)
    assert least <= np.sum(wilcoxon < 0.05) <= most
    assert least <= np.sum(student < 0.05) <= most


@pytest.mark.parametrize("n", [5, 35])
def test_intervals_cover_the_truth(n: int) -> None:
    """Of 100 samples with mean 0 (differences of exponentials), about 95 intervals hold it; binomial limits at 99.9 %."""
    one, two = make_generator(make_key(0, "coverage", n)).exponential(size=(2, 100, n))
    covered = sum(low <= 0 <= high for low, high in map(compute_interval, one - two))
    assert 86 <= covered <= 100


@pytest.mark.parametrize("n", [2, 5, 8, 11])
def test_wilcoxon_with_ties_is_scipys_permutation_test(n: int) -> None:
    rng = np.random.default_rng(n)
    values = rng.integers(1, 4, n) * rng.choice([-1.0, 1.0], n)
    values[:2] = values[0]  # at least one tie
    expected = stats.wilcoxon(values, alternative="greater", method=stats.PermutationMethod(n_resamples=2**n)).pvalue
    assert compute_wilcoxon_p(values) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("count", "expected"), [(1, 4 * 0.001), (2, 3 * 0.01), (3, 2 * 0.02), (4, 0.5)])
def test_the_count_th_smallest_p_times_what_is_left(count: int, expected: float) -> None:
    assert compute_partial_conjunction(np.array([0.5, 0.01, 0.001, 0.02]), count) == pytest.approx(expected)


def test_what_cannot_be_tested_is_not_shown() -> None:
    assert compute_partial_conjunction(np.array([0.001, np.nan]), 2) == 1.0
    with pytest.raises(ValueError, match="from 1 to the number of tests"):
        compute_partial_conjunction(np.array([0.5]), 2)


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_its_size_is_kept_however_rounds_hang_together(shared: float) -> None:
    """Five of ten rounds are better beyond doubt, the others are nothing: that six are is claimed at most 5 times in 100."""
    rng = make_generator(make_key(7, "rounds", int(10 * shared)))
    common, own = rng.standard_normal((2000, 1)), rng.standard_normal((2000, 5))
    nothing = stats.norm.sf(np.sqrt(shared) * common + np.sqrt(1 - shared) * own)
    claimed = [compute_partial_conjunction(np.concatenate([np.full(5, 1e-9), p]), 6) < 0.05 for p in nothing]
    assert np.mean(claimed) < 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5


def test_judgements_rest_on_the_corrected_p_values() -> None:
    claims = [ClaimTests(0.01, 0.99, True), ClaimTests(0.5, 0.5, True, run=False), ClaimTests(0.98, 0.02, False)]
    pairs = correct_claims(claims)
    assert pairs[0] == pytest.approx((0.04, 1.0))
    assert np.isnan(pairs[1]).all()
    assert pairs[2] == pytest.approx((1.0, 0.06))
    assert judge(claims) == ["replicates", "not run", "inconclusive"]
