"""Trimmed k-means by hand, and of many points beside that of few."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.grouping.kmeans import trimmed_kmeans


def test_trimmed_kmeans_leaves_the_odd_one_out_of_its_centres() -> None:
    # Two tight groups and one far away: k-means with k = 2 gives the far one a cluster and merges the others.
    points = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [100.0]])
    labels, odd = trimmed_kmeans(points, 2, 1, np.random.default_rng(0))
    assert odd.tolist() == [False] * 6 + [True]
    assert len(set(labels[:3])) == len(set(labels[3:6])) == 1
    assert labels[0] != labels[3] == labels[6]  # it joins the nearest
    plain, none = trimmed_kmeans(points, 2, 0, np.random.default_rng(0))
    assert plain[0] == plain[3] != plain[6]
    assert not none.any()


def test_trimmed_kmeans_with_few_points() -> None:
    labels, _ = trimmed_kmeans(np.zeros((4, 1)), 3, 1, np.random.default_rng(0))
    assert labels.tolist() == [0] * 4
    labels, _ = trimmed_kmeans(np.array([[0.0], [1.0]]), 5, 1, np.random.default_rng(0))
    assert sorted(labels) == [0, 1]


def test_of_many_points_the_same_groups_are_found_and_the_same_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(2)
    truth = draw.choice(3, size=900, p=[0.5, 0.3, 0.2])
    points = 8 * np.eye(3)[truth] + draw.standard_normal((900, 3))
    far = draw.permutation(900)[:40]
    points[far] += 12 * np.sign(draw.standard_normal((40, 3)))
    exact, odd = trimmed_kmeans(points, 3, 40, np.random.default_rng(0))
    monkeypatch.setattr("coterie.grouping.kmeans.MANY", 100)
    monkeypatch.setattr("coterie.grouping.kmeans.START_SAMPLE", 300)
    found, left = trimmed_kmeans(points, 3, 40, np.random.default_rng(0))
    near = np.setdiff1d(np.arange(900), far)
    assert adjusted_rand_score(found[near], truth[near]) == 1.0 == adjusted_rand_score(found, exact)
    assert left.tolist() == odd.tolist()
    assert np.flatnonzero(left).tolist() == np.sort(far).tolist()


@pytest.mark.parametrize(("points", "leave"), [(np.zeros((9, 2)), 2), (np.arange(9.0)[:, None], 0)])
def test_of_many_points_that_are_one_or_of_whom_nobody_is_left_out(points: np.ndarray, leave: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.grouping.kmeans.MANY", 3)
    labels, odd = trimmed_kmeans(points, 2, leave, np.random.default_rng(0))
    assert len(set(labels.tolist())) == len(np.unique(points)[:2])
    assert not odd.any()
