"""Points of many clients: the same as those of few where both can be had, and nothing that depends on the cores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core import vectors
from coterie.core.vectors import map_row_chunks
from coterie.grouping import similarity as module
from coterie.grouping.clustering import compute_silhouette
from coterie.grouping.landmarks import MAX_DIRECTIONS, compute_short_points, sample_landmarks
from coterie.grouping.similarity import compute_coordinates, compute_distances, compute_dot_products, compute_gram, compute_principal_points


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(2, 40), d=st.integers(1, 12), rank=st.integers(1, 12), seed=st.integers(0, 1000), share=st.sampled_from([None, 0.95, 1.0])
)
def test_the_small_side_gives_the_coordinates_of_the_large(n: int, d: int, rank: int, seed: int, share: float | None) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))).astype(np.float32)
    origin = rng.standard_normal(d).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAIRS", 0)
        small = compute_principal_points(rows, origin, share)
    large = compute_coordinates(compute_gram(rows, origin), share)
    if small.shape == large.shape:  # where a share falls on a tie, either may keep one more
        scale = np.abs(large).max(initial=1e-30)
        np.testing.assert_allclose(small @ small.T, large @ large.T, atol=1e-9 * scale**2)
    else:
        assert share is not None or rank > min(n, d)


def test_equal_rows_have_no_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS", 0)
    rows = np.full((9, 3), 0.3, dtype=np.float32)
    assert compute_principal_points(rows).shape == (9, 0)
    assert compute_short_points(rows, None, np.random.default_rng(0)).shape == (9, 0)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(3, 60), d=st.integers(1, 200), seed=st.integers(0, 100))
def test_with_everybody_a_landmark_points_keep_all_distances_of_few_directions(n: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((n, 5)) @ rng.standard_normal((5, d))).astype(np.float32)
    points = compute_short_points(rows, rows[0], np.random.default_rng(0))
    assert points.shape[1] <= MAX_DIRECTIONS
    np.testing.assert_allclose(compute_distances(points @ points.T), compute_distances(compute_gram(rows, rows[0])), rtol=1e-4, atol=1e-4)


def test_landmarks_are_drawn_once_each_and_by_key() -> None:
    drawn = sample_landmarks(10_000, np.random.default_rng(1), 100)
    assert len(np.unique(drawn)) == 100
    assert drawn.tolist() == sample_landmarks(10_000, np.random.default_rng(1), 100).tolist()
    assert sample_landmarks(5, np.random.default_rng(1), 100).tolist() == [0, 1, 2, 3, 4]


def test_pieces_of_rows_do_not_depend_on_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, matrix = np.random.default_rng(0).standard_normal((501, 70)), np.random.default_rng(1).standard_normal((70, 3))
    monkeypatch.setattr(vectors, "PIECE", 7000)
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(vectors, "count_cores", lambda cores=cores: cores)
        found.append(map_row_chunks(lambda block: block @ matrix, rows))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(found[0], rows @ matrix, rtol=1e-12)


def test_products_with_several_directions_are_those_with_each() -> None:
    rng = np.random.default_rng(0)
    rows, along, origin = rng.standard_normal((9, 5000)), rng.standard_normal((4, 5000)), rng.standard_normal(5000)
    rows32, origin32 = rows.astype(np.float32), origin.astype(np.float32)
    each = np.stack([compute_dot_products(rows32, one, origin32) for one in along], axis=1)
    np.testing.assert_allclose(compute_dot_products(rows32, along, origin32), each, rtol=1e-12, atol=1e-9)


def test_a_silhouette_of_many_is_that_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=900)
    points = 3 * np.eye(3)[labels] + rng.standard_normal((900, 3))
    whole = compute_silhouette(points, labels)
    monkeypatch.setattr("coterie.grouping.clustering.MANY", 800)
    monkeypatch.setattr("coterie.grouping.clustering.LANDMARKS", 500)
    assert compute_silhouette(points, labels) == pytest.approx(whole, abs=0.03)
    assert compute_silhouette(points, labels) != whole
