"""Several rounds tested together: the partial conjunction of Benjamini and Heller, by hand and on null rounds that hang together."""

import numpy as np
import pytest
from scipy import stats

from coterie.core.rng import make_generator, make_key
from coterie.statistics import ClaimTests, compute_partial_conjunction, correct_claims, judge


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
