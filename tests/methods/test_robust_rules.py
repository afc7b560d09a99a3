"""The robust rules: numbers worked by hand, and the geometric median against a general minimiser."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from coterie.methods.robust_rules import compute_clipped_mean, compute_geometric_median, compute_krum, compute_median, compute_trimmed_mean

COLUMN = np.array([[1.0], [2.0], [3.0], [100.0]], np.float32)
ALIKE = np.full(4, 0.25)


def test_trimmed_by_hand() -> None:
    # a quarter at each end leaves 2 and 3
    mean, shares = compute_trimmed_mean(COLUMN, ALIKE, 0.25)
    np.testing.assert_allclose(mean, [2.5])
    np.testing.assert_allclose(shares, [0, 0.5, 0.5, 0])
    # an eighth at each end: (1/8 * 1 + 1/4 * 2 + 1/4 * 3 + 1/8 * 100) / (3/4) = 13.875 / 0.75
    mean, _ = compute_trimmed_mean(COLUMN, ALIKE, 0.125)
    np.testing.assert_allclose(mean, [18.5])
    # weights .1 .2 .3 .4: cutting .2 at each end leaves .1 of 2, .3 of 3 and .2 of 100
    mean, shares = compute_trimmed_mean(COLUMN, np.array([0.1, 0.2, 0.3, 0.4]), 0.2)
    np.testing.assert_allclose(mean, [(0.1 * 2 + 0.3 * 3 + 0.2 * 100) / 0.6])
    np.testing.assert_allclose(shares, np.array([0, 0.1, 0.3, 0.2]) / 0.6)


def test_each_coordinate_is_trimmed_by_itself() -> None:
    vectors = np.array([[0, 9], [1, 1], [2, 0]], np.float32)
    mean, shares = compute_trimmed_mean(vectors, np.full(3, 1 / 3), 1 / 3)
    np.testing.assert_allclose(mean, [1, 1])
    np.testing.assert_allclose(shares, [0, 1, 0], atol=1e-12)


def test_median_by_hand() -> None:
    middle, shares = compute_median(COLUMN, ALIKE)
    np.testing.assert_allclose(middle, [2.5])
    np.testing.assert_allclose(shares, [0, 0.5, 0.5, 0])
    middle, _ = compute_median(COLUMN, np.array([0.1, 0.2, 0.3, 0.4]))  # .1, .3, .6: half is reached at 3
    np.testing.assert_allclose(middle, [3])
    middle, _ = compute_median(COLUMN[:3], np.full(3, 1 / 3))
    np.testing.assert_allclose(middle, [2])


def test_krum_by_hand() -> None:
    # f = 1 of 5: each is scored by its 2 nearest. 0: 1 + 4 = 5, 1: 1 + 1 = 2, 2: 1 + 1 = 2, 3: 1 + 4 = 5, 50: 47^2 + 48^2. All but 50 stay.
    vectors = np.array([[0.0], [1.0], [2.0], [3.0], [50.0]], np.float32)
    mean, shares = compute_krum(vectors, np.full(5, 0.2), 1)
    np.testing.assert_allclose(mean, [1.5])
    np.testing.assert_allclose(shares, [0.25, 0.25, 0.25, 0.25, 0])
    mean, shares = compute_krum(
        vectors, np.array([0.4, 0.1, 0.1, 0.1, 0.3]), 3
    )  # two stay, the first of equals: scored by their nearest alone
    np.testing.assert_allclose(shares, [0.8, 0.2, 0, 0, 0])
    np.testing.assert_allclose(mean, [0.2])


def test_geometric_by_hand() -> None:
    # the geometric median of a triangle's corners is its Fermat point; of an equilateral one the centre
    corners = np.array([[0, 0], [2, 0], [1, np.sqrt(3)]], np.float32)
    middle, shares = compute_geometric_median(corners, np.full(3, 1 / 3))
    np.testing.assert_allclose(middle, [1, 1 / np.sqrt(3)], atol=1e-6)
    np.testing.assert_allclose(shares, np.full(3, 1 / 3), atol=1e-6)
    middle, _ = compute_geometric_median(COLUMN, np.array([0.1, 0.1, 0.7, 0.1]))  # a row with most of the weight is the median
    np.testing.assert_allclose(middle, [3], atol=1e-6)
    middle, _ = compute_geometric_median(np.ones((3, 2), np.float32), np.full(3, 1 / 3))
    np.testing.assert_allclose(middle, [1, 1])


@pytest.mark.parametrize("seed", range(5))
def test_geometric_is_the_least_sum_of_distances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, weights = rng.normal(size=(7, 3)).astype(np.float32), rng.dirichlet(np.ones(7))

    def total(point: np.ndarray) -> float:
        return float(weights @ np.linalg.norm(vectors.astype(np.float64) - point, axis=1))

    found = minimize(
        total, vectors.mean(axis=0, dtype=np.float64), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 5000}
    )
    middle, shares = compute_geometric_median(vectors, weights)
    assert total(middle) <= found.fun + 1e-9
    np.testing.assert_allclose(middle, shares @ vectors, atol=1e-6)  # it is an average: its weights say all


def test_clipped_by_hand() -> None:
    # middle 2 (weights alike, 5 rows 0 1 2 3 100), distances 2 1 0 1 98, their median 1. At 2 medians 100 is drawn in to 4: mean 2.
    vectors = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]], np.float32)
    mean, shares = compute_clipped_mean(vectors, np.full(5, 0.2), 2.0)
    np.testing.assert_allclose(mean, [2.0])
    np.testing.assert_allclose(shares, [0.2, 0.2, 0.2, 0.2, 0.2 * 2 / 98])
    mean, _ = compute_clipped_mean(vectors, np.full(5, 0.2), 1000.0)
    np.testing.assert_allclose(mean, [106 / 5])


@settings(deadline=None, max_examples=60)
@given(st.integers(5, 12), st.integers(0, 10_000), st.floats(1e2, 1e12))
def test_a_minority_moves_no_rule_far(n: int, seed: int, far: float) -> None:
    """Fewer than a quarter of the rows anywhere: every rule stays within reach of the honest rows."""
    rng = np.random.default_rng(seed)
    honest, few = rng.normal(size=(n, 3)), (n - 1) // 4
    vectors = np.concatenate([honest, far * rng.normal(size=(few, 3))]).astype(np.float32)
    weights = np.full(len(vectors), 1 / len(vectors))
    for made, _ in (
        compute_trimmed_mean(vectors, weights, 0.3),
        compute_median(vectors, weights),
        compute_krum(vectors, weights, few),
        compute_geometric_median(vectors, weights),
        compute_clipped_mean(vectors, weights, 2.0),
    ):
        assert np.linalg.norm(made) < 25


@given(n=st.integers(12, 60), d=st.integers(1, 9), seed=st.integers(0, 999))
def test_rules_of_many_rows_are_those_of_few(n: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, weights = rng.normal(loc=30.0, size=(n, d)).astype(np.float32), rng.random(n) + 0.1
    weights /= weights.sum()

    def found() -> list[tuple[np.ndarray, np.ndarray]]:
        return [
            compute_trimmed_mean(vectors, weights, 0.2),
            compute_median(vectors, weights),
            compute_geometric_median(vectors, weights),
            compute_clipped_mean(vectors, weights, 1.2),
        ]

    few = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.methods.robust_rules.MANY", 5)
        patch.setattr("coterie.methods.robust_rules.MAX_SORTED", 1)
        many = found()
    for (mean, shares), (mean_of_many, shares_of_many) in zip(few, many, strict=True):
        np.testing.assert_allclose(mean_of_many, mean, rtol=1e-6)
        np.testing.assert_allclose(shares_of_many, shares, atol=1e-6)


def test_krum_of_many_leaves_the_same_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(loc=30.0, size=(300, 5)).astype(np.float32)
    far = rng.permutation(300)[:30]
    vectors[far] += 25 * np.sign(rng.normal(size=(30, 5))).astype(np.float32)
    weights = np.full(300, 1 / 300)
    exact = compute_krum(vectors, weights, 30)
    monkeypatch.setattr("coterie.methods.robust_rules.MANY", 10)
    monkeypatch.setattr("coterie.methods.robust_rules.LANDMARKS", 100)
    found = compute_krum(vectors, weights, 30)
    assert np.flatnonzero(exact[1] == 0).tolist() == np.sort(far).tolist() == np.flatnonzero(found[1] == 0).tolist()
    np.testing.assert_allclose(found[0], exact[0], rtol=1e-6)
