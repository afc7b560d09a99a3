"""Grouping and its edges: capped numbers and ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.arrays import Doubles
from coterie.grouping.clustering import agglomerative_clustering, bipartition, compute_silhouette, find_nearest, spectral_clustering
from coterie.grouping.kmeans import compute_inertia, count_distinct, kmeans, renumber_labels
from coterie.grouping.similarity import compute_coordinates, compute_cosines, compute_distances, compute_gaussian, compute_gram
from grouping.blobs import blobs


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_canonical_labels_go_by_first_appearance() -> None:
    assert renumber_labels(np.array([7, 7, 2, -1, 7, 0, 2])).tolist() == [0, 0, 1, -1, 0, 2, 1]
    assert renumber_labels(np.zeros(0, dtype=np.int64)).tolist() == []


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 15), st.integers(0, 99))
def test_kmeans_never_uses_more_labels_than_points(n: int, different: int, k: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    points = draw.normal(size=(different, 3))[np.arange(n) % different]
    labels = kmeans(points, k, draw)
    used = min(k, different, n)
    assert sorted(set(labels.tolist())) == list(range(used))
    assert labels[0] == 0


def test_distinct_points_are_counted_up_to_rounding() -> None:
    points = np.array([[1.0, 0], [1 + 1e-12, 0], [0, 1], [0, 1]])
    assert count_distinct(points, 4) == 2
    assert count_distinct(points, 1) == 1
    assert count_distinct(np.zeros((5, 0)), 3) == 1
    assert count_distinct(np.zeros((0, 2)), 3) == 0


def test_all_clusterers_find_plain_groups() -> None:
    points, true = blobs(4)
    apart = compute_distances(points @ points.T)
    for labels in (
        kmeans(points, 4, rng()),
        spectral_clustering(compute_gaussian(apart), 4, rng()),
        spectral_clustering((1 + compute_cosines(points @ points.T)) / 2, 4, rng()),
        agglomerative_clustering(apart, groups=4, linkage="ward"),
        agglomerative_clustering(apart, groups=4, linkage="single"),
        agglomerative_clustering(apart, threshold=2.0, linkage="complete"),
    ):
        assert labels.tolist() == true.tolist()


def test_kmeans_on_coordinates_is_kmeans_on_rows() -> None:
    points, _ = blobs(3, noise=1.0, d=50)
    on_rows = kmeans(points, 3, rng(), restarts=50)
    on_coordinates = kmeans(compute_coordinates(compute_gram(points.astype(np.float32))), 3, rng(), restarts=50)
    assert on_rows.tolist() == on_coordinates.tolist()


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_identical_clients_are_one_group(k: int) -> None:
    same = np.ones((6, 4))
    assert set(kmeans(same, k, rng())) == {0}
    assert set(spectral_clustering(np.ones((6, 6)), k, rng())) == {0}
    assert set(agglomerative_clustering(np.zeros((6, 6)), groups=k)) == {0}
    assert not bipartition(np.ones((6, 6))).any()
    assert not bipartition(1 - rng().uniform(0, 3e-16, size=(6, 6))).any()  # rounding is no reason to split


def test_disconnected_affinities_are_separated() -> None:
    affinity: Doubles = np.kron(np.eye(3), np.ones((8, 8))).astype(np.float64)  # three blocks with nothing between them
    assert spectral_clustering(affinity, 3, rng()).tolist() == np.repeat([0, 1, 2], 8).tolist()


def test_agglomerative_by_hand() -> None:
    """Points 0, 1, 3, 7 on a line. Single linkage merges at 1 (0-1), 2 (01-3), 4 (013-7)."""
    line = np.array([0.0, 1, 3, 7])
    apart = np.abs(line[:, None] - line)
    assert agglomerative_clustering(apart, groups=2, linkage="single").tolist() == [0, 0, 0, 1]
    assert agglomerative_clustering(apart, groups=3, linkage="single").tolist() == [0, 0, 1, 2]
    assert agglomerative_clustering(apart, threshold=2.0, linkage="single").tolist() == [0, 0, 0, 1]
    assert agglomerative_clustering(apart, threshold=0.5, linkage="single").tolist() == [0, 1, 2, 3]
    # complete linkage: 0-1 at 1, then {0, 1}-3 at 3 before 3-7 at 4
    assert agglomerative_clustering(apart, threshold=2.9, linkage="complete").tolist() == [0, 0, 1, 2]
    assert agglomerative_clustering(apart, groups=9, linkage="average").tolist() == [0, 1, 2, 3]  # more groups than clients
    assert agglomerative_clustering(np.zeros((1, 1)), groups=2).tolist() == [0]
    with pytest.raises(ValueError, match="number of groups or a threshold"):
        agglomerative_clustering(apart)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.integers(0, 999))
def test_bipartition_minimises_the_largest_cosine_across(n: int, seed: int) -> None:
    """Against all 2^(n-1) - 1 ways to cut, which is how CFL states the problem."""
    similar = compute_cosines(compute_gram(np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)))
    best = min(
        similar[np.ix_(side, ~side)].max() for code in range(1, 2 ** (n - 1)) for side in [np.array([code >> i & 1 for i in range(n)]) == 1]
    )
    found = bipartition(similar)
    assert 0 < found.sum() < n
    assert similar[np.ix_(found, ~found)].max() == pytest.approx(best, abs=1e-12)


def test_nearest_takes_the_first_of_equals() -> None:
    centres = np.array([[0.0, 0], [2, 0]])
    assert find_nearest(np.array([[0.9, 5], [1, 0], [1.1, -5]]), centres).tolist() == [0, 0, 1]
    assert find_nearest(np.zeros((0, 2)), centres).tolist() == []


def test_inertia_and_silhouette_by_hand() -> None:
    # Groups 0, 2 and 10: means 1 and 10, so 1 + 1 + 0. Of 0 and 2: own 2, other 10 and 8: .8 and .75; a group of one counts 0.
    points, labels = np.array([[0.0], [2.0], [10.0]]), np.array([0, 0, 1])
    assert compute_inertia(points, labels) == 2.0
    assert compute_silhouette(points, labels) == pytest.approx((0.8 + 0.75 + 0) / 3)
    assert np.isnan(compute_silhouette(points, np.zeros(3, dtype=np.int64)))  # one group
    assert np.isnan(compute_silhouette(points, np.arange(3)))  # each its own
