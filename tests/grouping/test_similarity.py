"""Similarity from one Gram matrix, against direct formulas on the rows."""

import tracemalloc

import numpy as np
import pytest
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from coterie._util.threads import count_cores
from coterie.core import vectors
from coterie.core.arrays import Floats
from coterie.core.vectors import BLOCK
from coterie.grouping.similarity import (
    combine_similarities,
    compute_coordinates,
    compute_cosines,
    compute_distances,
    compute_dot_products,
    compute_gaussian,
    compute_gram,
    compute_mean_distance,
    compute_norms,
    compute_ternary_cosines,
    shift_gram,
)


def rows(n: int, d: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


@pytest.mark.parametrize("d", [1, 7, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_gram_over_blocks_is_the_product(d: int) -> None:
    x, origin = rows(4, d), rows(1, d, 1)[0]
    wide = x.astype(np.float64)
    np.testing.assert_allclose(compute_gram(x), wide @ wide.T, rtol=1e-12, atol=1e-12)
    moved = wide - origin
    np.testing.assert_allclose(compute_gram(x, origin), moved @ moved.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(compute_dot_products(x, origin, origin), moved @ origin.astype(np.float64), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(compute_norms(x, origin), np.linalg.norm(moved, axis=1), rtol=1e-12)


def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(120, 2 * BLOCK)
    with threadpool_limits(1):
        alone = compute_gram(x)
    with threadpool_limits(2):
        assert compute_gram(x).tobytes() == alone.tobytes()
    monkeypatch.setattr(vectors, "LARGE", 0)  # blocks side by side
    monkeypatch.setattr(vectors, "count_cores", lambda: 3)
    assert compute_gram(x).tobytes() == alone.tobytes()


def test_differences_from_the_model_keep_what_raw_weights_lose() -> None:
    """Updates of 1e-4 on weights of norm 1e3. In the Gram matrix of raw weights, ||w||^2 = 1e6 leaves squares of 1e-8 to rounding."""
    w = np.full(10_000, 10.0, dtype=np.float32)
    x = np.stack([w, w])
    x[0, 0] = np.nextafter(np.float32(10), np.float32(11))  # the smallest step there is
    x[1, 1] = np.nextafter(np.float32(10), np.float32(11))
    step = float(x[0, 0]) - 10.0
    assert compute_distances(compute_gram(x, w))[0, 1] == pytest.approx(np.sqrt(2) * step, rel=1e-9)
    assert compute_cosines(compute_gram(x, w))[0, 1] == pytest.approx(0.0, abs=1e-12)
    assert compute_cosines(compute_gram(x))[0, 1] == pytest.approx(1.0, abs=1e-12)


def test_weights_are_updates_and_rank_one_terms() -> None:
    x, w = rows(5, 30), rows(1, 30, 1)[0]
    square = float(np.dot(w.astype(np.float64), w))
    np.testing.assert_allclose(
        shift_gram(compute_gram(x, w), compute_dot_products(x, w, w), square), compute_gram(x), rtol=1e-10, atol=1e-10
    )


def test_cosines_by_hand() -> None:
    x = np.array([[3, 4], [4, 3], [0, 0], [-3, -4]], dtype=np.float32)
    # 24/25 between the first two; a zero vector is like nobody but itself
    expected = np.array([[1, 0.96, 0, -1], [0.96, 1, 0, -0.96], [0, 0, 1, 0], [-1, -0.96, 0, 1]])
    np.testing.assert_allclose(compute_cosines(compute_gram(x)), expected, atol=1e-15)


def test_distances_by_hand() -> None:
    x = np.array([[0, 0], [3, 4], [3, 4]], dtype=np.float32)
    np.testing.assert_allclose(compute_distances(compute_gram(x)), [[0, 5, 5], [5, 0, 0], [5, 0, 0]], atol=1e-15)


def test_equal_rows_are_at_distance_zero_exactly() -> None:
    x = np.repeat(rows(1, 1001), 6, axis=0)
    assert np.all(compute_distances(compute_gram(x)) == 0.0)


@pytest.mark.parametrize(("n", "d"), [(6, 40), (12, 5)])
def test_coordinates_are_principal_components(n: int, d: int) -> None:
    x = rows(n, d) * np.linspace(3, 0.1, d, dtype=np.float32)
    expected = PCA(svd_solver="full").fit(x.astype(np.float64))
    ours = compute_coordinates(compute_gram(x))
    assert ours.shape == (n, min(n - 1, d))
    np.testing.assert_allclose((ours**2).sum(0) / (n - 1), expected.explained_variance_[: min(n - 1, d)], rtol=1e-9)
    np.testing.assert_allclose(compute_distances(ours @ ours.T), compute_distances(compute_gram(x)), rtol=1e-7, atol=1e-7)
    theirs = PCA(n_components=0.95, svd_solver="full").fit_transform(x.astype(np.float64))
    kept = compute_coordinates(compute_gram(x), variance=0.95)
    assert kept.shape == theirs.shape
    np.testing.assert_allclose(np.abs(kept), np.abs(theirs), rtol=1e-6, atol=1e-8)


def test_identical_rows_have_no_coordinates() -> None:
    assert compute_coordinates(compute_gram(np.repeat(rows(1, 333), 5, axis=0))).shape == (5, 0)
    assert compute_coordinates(compute_gram(np.zeros((3, 4), dtype=np.float32)), variance=0.95).shape == (3, 0)
    assert compute_coordinates(compute_gram(rows(1, 9))).shape == (1, 0)


def test_gaussian_by_hand() -> None:
    """SimProx, Eq. 7-8: distances 1, 2, 3 have the mean 2, so S = exp(-d^2 / 8)."""
    d = np.array([[0, 1, 2], [1, 0, 3], [2, 3, 0]], dtype=np.float64)
    assert compute_mean_distance(d) == 2.0
    np.testing.assert_allclose(compute_gaussian(d), np.exp(-(d**2) / 8))
    assert np.all(compute_gaussian(np.zeros((3, 3))) == 1)
    assert compute_mean_distance(np.zeros((1, 1))) == 0.0
    assert combine_similarities(np.array([[0.5]]), np.array([[0.1]]), 0.7)[0, 0] == pytest.approx(0.38)  # .7 * .5 + .3 * .1


def test_ternary_cosines_by_hand() -> None:
    """FedGroup, Eq. 7-8. Updates (2, 0), (0, 1), (-2, 0) have the singular directions e1 (value sqrt 8) and e2 (value 1), up to sign.

    Cosines with e1 are 1, 0, -1, so M is 0, 1/2, 1 in the first column (or 1, 1/2, 0); with e2 they are 0, 1, 0: 1/2, 0, 1/2.
    """
    x = np.array([[2, 0], [0, 1], [-2, 0]], dtype=np.float32)
    found = compute_ternary_cosines(x, 3)  # the rank, 2, caps it
    assert found.shape == (3, 2)
    assert found[1, 0] == pytest.approx(0.5)
    assert sorted(found[[0, 2], 0]) == pytest.approx([0, 1])
    np.testing.assert_allclose(found[:, 1], [0.5, 0, 0.5], atol=1e-12)
    np.testing.assert_allclose(compute_ternary_cosines(x, 1), found[:, :1])


def test_ternary_cosines_are_those_of_the_svd() -> None:
    x, w = rows(8, 60), rows(1, 60, 1)[0]
    updates = x.astype(np.float64) - w
    v = np.linalg.svd(updates.T, full_matrices=False)[0][:, :3]
    cosine = updates @ v / np.linalg.norm(updates, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(1 - 2 * compute_ternary_cosines(x, 3, w)), np.abs(cosine), atol=1e-9)
    assert np.all(compute_ternary_cosines(np.array([[1, 0], [0, 0]], dtype=np.float32), 1)[1] == 0.5)  # a zero update


def test_the_stack_is_never_copied_whole() -> None:
    x = rows(200, 60_000)  # 48 MB: large enough for threads
    tracemalloc.start()
    compute_gram(x, x[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 2 * max(count_cores() / 2, 1)  # a block a core
