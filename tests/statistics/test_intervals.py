"""Draws x seeds: variances and intervals against a table worked by hand, and against identities that hold for any table with gaps."""

from math import isnan, nan

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from coterie.statistics import Interval, compute_draw_interval, compute_seed_interval, estimate_variance_components
from coterie.statistics.variance_components import fit_variances

# Draws' means 2, 4, 6; seeds' means 3, 5; mean 4. Sums of squares: draws 2 (4 + 0 + 4) = 16 on 2 degrees, seeds 3 (1 + 1) = 6 on 1, all
# 9 + 1 + 4 + 4 + 4 + 4 = 26, so 4 on 2 are left. Mean squares 8, 6, 2.
TABLE = np.array([[1.0, 3.0], [2.0, 6.0], [6.0, 6.0]])


def estimated(found: Interval | str) -> Interval:
    assert isinstance(found, Interval), found
    return found


def test_shared_seeds_by_hand() -> None:
    spread = estimate_variance_components(TABLE)
    assert (spread.draws, spread.seeds, spread.rest) == pytest.approx(((8 - 2) / 2, (6 - 2) / 3, 2))
    assert spread.shares == pytest.approx({"draws": 9 / 19, "seeds": 4 / 19, "rest": 6 / 19})
    found = estimated(compute_draw_interval(TABLE))
    # Variance of the mean: (MS draws + MS seeds - MS rest) / 6; Satterthwaite: 12^2 / (8^2 / 2 + 6^2 / 1 + 2^2 / 2).
    assert (found.mean, found.error**2, found.degrees) == pytest.approx((4, 12 / 6, 144 / 70))
    half = stats.t.ppf(0.975, 144 / 70) * 2**0.5
    assert (found.low, found.high, found.width) == pytest.approx((4 - half, 4 + half, 2 * half))
    assert found.over == "3 draws x 2 seeds"


def test_seeds_of_its_own_in_every_draw_by_hand() -> None:
    # Within draws 2, 8, 0 on one degree each: 10 / 3; draws 4 - 10 / 3 / 2.
    spread = estimate_variance_components(TABLE, shared=False)
    assert (spread.draws, spread.rest) == pytest.approx((4 - 10 / 6, 10 / 3))
    assert isnan(spread.seeds)
    assert "seeds" not in spread.shares
    found = estimated(compute_draw_interval(TABLE, shared=False))
    low, high = stats.ttest_1samp([2, 4, 6], 0).confidence_interval(0.95)
    assert (found.low, found.high, found.degrees) == pytest.approx((low, high, 2))
    assert found.p_above() == pytest.approx(stats.ttest_1samp([2, 4, 6], 0, alternative="greater").pvalue)
    assert found.p_below(5) == pytest.approx(stats.ttest_1samp([2, 4, 6], 5, alternative="less").pvalue)


def test_fixed_draws_by_hand() -> None:
    shared = estimated(compute_seed_interval(TABLE))
    assert (shared.mean, shared.error, shared.degrees) == pytest.approx((4, 1, 1))  # two seeds' means, 3 and 5
    own = estimated(compute_seed_interval(TABLE, shared=False))
    # Variances 2, 8, 0 by two seeds and 3^2: 1/9, 4/9, 0. Welch: (5/9)^2 / ((1 + 16) / 81 / 3) - 2.
    assert (own.error**2, own.degrees) == pytest.approx((5 / 9, 75 / 17 - 2))


def test_one_draw_is_students_interval_over_seeds() -> None:
    values = np.array([[0.3, nan, 0.1, 0.4]])
    low, high = stats.ttest_1samp([0.3, 0.1, 0.4], 0).confidence_interval(0.95)
    for shared in (True, False):
        found = estimated(compute_seed_interval(values, shared=shared))
        assert (found.low, found.high) == pytest.approx((low, high))
        assert compute_draw_interval(values, shared=shared) == "one draw: no estimate for other splits of the data"


def test_what_cannot_be_estimated_is_said() -> None:
    column = np.array([[1.0], [2.0], [4.0]])
    found = estimated(compute_draw_interval(column))
    assert found.caveat == "one seed for all draws: no estimate for other seeds"
    assert estimated(compute_draw_interval(column, shared=False)).caveat == ""
    assert (found.mean, found.degrees) == pytest.approx((7 / 3, 2))
    assert found.over == "3 draws x 1 seed"
    assert compute_seed_interval(column) == "one seed: no estimate for other seeds"
    assert "cannot be separated" in str(compute_seed_interval(column, shared=False))
    assert isnan(estimate_variance_components(column).rest)
    for nothing in (np.zeros((0, 3)), np.full((2, 2), nan)):
        assert compute_draw_interval(nothing) == compute_seed_interval(nothing) == "no pair of runs reached the end"
        assert isnan(estimate_variance_components(nothing).draws)
    gaps = np.array([[1.0, 2.0, nan], [nan, nan, 3.0]])  # no seed is in two draws
    assert estimated(compute_draw_interval(gaps)).caveat == "too many gaps to separate seeds from chance"
    assert "one seed only" in str(compute_seed_interval(gaps))


def test_equal_differences_have_no_error_and_the_p_of_a_sign_test() -> None:
    table = np.full((4, 2), 0.1)
    for found in (compute_draw_interval(table), compute_draw_interval(table, shared=False)):
        assert (estimated(found).low, estimated(found).high) == pytest.approx((0.1, 0.1))
        assert estimated(found).p_above() == pytest.approx(2.0**-4)  # four draws agree
        assert estimated(found).p_below() == 1
    assert estimated(compute_seed_interval(table)).error == 0
    assert estimated(compute_seed_interval(table, shared=False)).error == 0
    assert estimate_variance_components(table).shares == {"draws": 0, "seeds": 0, "rest": 0}


def test_a_draw_with_fewer_seeds_counts_as_much_as_another() -> None:
    table = np.array([[1.0, 3.0], [5.0, nan]])
    found = estimated(compute_draw_interval(table, shared=False))
    assert found.mean == pytest.approx((2 + 5) / 2)
    assert found.error**2 == pytest.approx(4.5 / 2)  # means 2 and 5
    # The mean of one seed varies more than that of two: fewer degrees than one, tr(AV)^2 / tr(AVAV) with two variances a and b is 1.
    assert found.degrees == pytest.approx(1)
    three = estimated(compute_draw_interval(np.array([[1.0, 3.0], [5.0, nan], [4.0, 4.2]]), shared=False))
    assert 1 < three.degrees < 2


@st.composite
def layouts(draw: st.DrawFn) -> np.ndarray:
    """Which pairs are there: every draw at least one, every seed at least one."""
    shape = draw(st.tuples(st.integers(2, 5), st.integers(2, 5)))
    known = draw(arrays.arrays(np.bool_, shape, elements=st.sampled_from([True, True, True, False])))
    assume(known.any(axis=0).all() and known.any(axis=1).all())
    return known


@given(layouts(), st.booleans())
def test_variances_are_unbiased_whatever_is_missing(known: np.ndarray, shared: bool) -> None:
    """An estimate is a quadratic form D'QD, so its mean under an effect of variance 1 is tr(Z'QZ): the sum over the effect's columns."""
    gaps = np.where(known, 0.0, nan)
    fit = fit_variances(gaps, shared)
    assume(fit.rest_degrees > 0 and (fit.seed_degrees > 0 or not shared))
    draws, seeds = known.shape
    effects = {
        "draws": [gaps + np.eye(draws)[:, [i]] for i in range(draws)],
        "rest": [gaps + (np.arange(known.size).reshape(known.shape) == place) for place in np.flatnonzero(known)],
    }
    if shared:
        effects["seeds"] = [gaps + np.eye(seeds)[[j]] for j in range(seeds)]
    counted = known / known.sum(axis=1, keepdims=True) / draws  # (B, S) the weights of the mean over draws
    truth = {"draws": 1 / draws, "seeds": (counted.sum(axis=0) ** 2).sum(), "rest": (counted**2).sum()}
    for name, tables in effects.items():
        fits = [fit_variances(table, shared) for table in tables]
        for part in effects:
            assert sum(getattr(own.spread, part) for own in fits) == pytest.approx(float(part == name), abs=1e-9)
        of_mean = [own.between / draws + ((own.weight - own.mixed / draws) * own.spread.seeds if shared else 0.0) for own in fits]
        assert sum(of_mean) == pytest.approx(truth[name], abs=1e-9)


@given(layouts(), st.integers(0, 99), st.booleans())
def test_intervals_move_with_the_values_and_not_with_their_order(known: np.ndarray, seed: int, shared: bool) -> None:
    rng = np.random.default_rng(seed)
    table = np.where(known, rng.normal(size=known.shape), nan)
    for over in (compute_draw_interval, compute_seed_interval):
        found = over(table, shared=shared)
        moved = over(10 - 2 * table[::-1][:, rng.permutation(known.shape[1])], shared=shared)
        if isinstance(found, str):
            assert moved == found
        else:
            other = estimated(moved)
            expected = (10 - 2 * found.mean, 2 * found.error, found.degrees)
            assert (other.mean, other.error, other.degrees) == pytest.approx(expected, rel=1e-6)
            assert found.degrees > 0


def test_shared_seeds_widen_the_interval_over_draws() -> None:
    """A seed that is lucky in every draw: the draws' means agree, and still another seed would show something else."""
    table = np.array([[0.0, 3.0, 6.0]] * 4) + np.arange(4)[:, None] / 100
    assert estimated(compute_draw_interval(table, shared=False)).width < 0.1
    assert estimated(compute_draw_interval(table)).width > 10
