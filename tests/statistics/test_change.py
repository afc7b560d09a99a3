"""The test of a change: e-values by hand, their expectation counted out, and which units are named."""

from itertools import product
from math import comb, exp, log

import numpy as np
import pytest

from coterie.statistics.change import KEPT, ChangeTest, compute_largest_likelihood, compute_log_evalues, pool_references


def evalue(early: float, samples: float, late: float, counts: float, margin: float = 0.0) -> float:
    a, n, b, m = (np.array([float(value)]) for value in (early, samples, late, counts))
    return exp(compute_log_evalues(a, n, b, m, margin)[0])


def test_evalues_by_hand() -> None:
    # The mixture gives two like answers 1/2 * 3/4 = 3/8 each time; the best single coin p^2 (1 - p)^2 = 1/16: 9/64 * 16.
    assert evalue(0, 2, 2, 2) == pytest.approx(2.25)
    assert evalue(0, 1, 1, 1) == pytest.approx(1.0)  # 1/2 * 1/2 over 1/4
    assert evalue(2, 2, 0, 2) == pytest.approx(9 / 64)  # a fall is no rise: errors of 1 and 0 are within the null
    assert evalue(0, 2, 2, 2, margin=0.5) == pytest.approx(9 / 64 / (0.75**4))  # the best pair is 1/4 and 3/4
    assert evalue(1.5, 4, 0, 0) < 1  # no look


def test_the_largest_likelihood_is_that_of_a_search() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        n, m, margin = rng.integers(1, 30), rng.integers(1, 30), rng.uniform(0, 0.3)
        a, b = rng.uniform(0, n), rng.uniform(0, m)
        p = np.linspace(1e-6, 1 - 1e-6, 801)
        q = p[:, None]
        likely = a * np.log(p) + (n - a) * np.log(1 - p) + b * np.log(q) + (m - b) * np.log(1 - q)
        arrays = [np.array([float(value)]) for value in (a, n, b, m)]
        found = compute_largest_likelihood(arrays[0], arrays[1], arrays[2], arrays[3], margin)[0]
        assert found == pytest.approx(likely[q - p[None, :] <= margin].max(), abs=2e-2)
        assert found >= likely[q - p[None, :] <= margin].max() - 1e-6


@pytest.mark.parametrize(("p", "rise"), [(0.1, 0.0), (0.5, 0.0), (0.3, 0.1), (0.9, 0.1), (0.01, 0.0)])
def test_the_expectation_is_at_most_one(p: float, rise: float) -> None:
    """Counted out over all results of coins at the border of the null; with a window of two looks, too."""
    n, margin = 6, 0.1
    a, b, c = np.array(list(product(range(n + 1), repeat=3)), dtype=np.float64).T
    chance = np.prod(
        [[comb(n, int(k)) * e**k * (1 - e) ** (n - k) for k in part] for part, e in ((a, p), (b, p + rise), (c, p + rise))], axis=0
    )
    sums, counts = np.zeros((len(a), KEPT)), np.zeros((len(a), KEPT))
    sums[:, 0], sums[:, 1], counts[:, :2] = c, b, n
    values = np.exp(ChangeTest(0.05, margin).compute_statistics(a / n, np.full(len(a), float(n)), sums, counts))
    assert chance.sum() == pytest.approx(1)
    assert 0 < chance @ values <= 1


def test_units_are_named_by_the_number_that_reach_it_together() -> None:
    test = ChangeTest(rate=0.1)  # thresholds of four units: 40, 20, 13.3 and 10
    changed, threshold = test.find_changed(np.log([15.0, 1.0, 14.0, 30.0]))
    assert changed.tolist() == [True, False, True, True]  # none reaches 40, and three reach 13.3
    assert threshold == pytest.approx(log(40 / 3))
    changed, threshold = test.find_changed(np.log([39.0, 19.0, 1.0, 1.0]))
    assert not changed.any()
    assert threshold == pytest.approx(log(40))


def test_references_of_clients_together() -> None:
    # Clients count by now's 30 and 10: .75 * .2 + .25 * .4; worth 1 / (.5625 / 30 + .0625 / 10).
    assert pool_references(np.array([0.2, 0.4]), np.array([30.0, 10.0]), np.array([30.0, 10.0])) == pytest.approx((0.25, 40.0))
    assert pool_references(np.array([0.2, 0.4]), np.array([30.0, 10.0]), np.array([10.0, 30.0]))[1] == pytest.approx(
        1 / (0.0625 / 30 + 0.05625)
    )
