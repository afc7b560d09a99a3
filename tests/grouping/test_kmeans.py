"""k-means from all starts at once finds what scikit-learn finds one start after the other; trimmed k-means by hand, and of many points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.metrics import adjusted_rand_score

from coterie._util.threads import use_one_thread
from coterie.core.arrays import Doubles, Ids
from coterie.grouping import kmeans as kmeans_module
from coterie.grouping.kmeans import find_best_start, kmeans, renumber_labels, trimmed_kmeans


def some_points(n: int, r: int, k: int, apart: float, seed: int) -> Doubles:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, r)) + apart * rng.standard_normal((k, r))[rng.integers(k, size=n)]


def scikit_learns(points: Doubles, k: int, restarts: int, state: int) -> Ids:
    return renumber_labels(KMeans(k, n_init=restarts, random_state=state).fit(points).labels_.astype(np.int64))


@settings(max_examples=120, deadline=None)
@given(st.integers(3, 120), st.integers(1, 30), st.integers(2, 9), st.floats(0, 5), st.integers(1, 10), st.integers(0, 2**31 - 1))
def test_labels_are_those_of_scikit_learn(n: int, r: int, k: int, apart: float, restarts: int, seed: int) -> None:
    points, k = some_points(n, r, k, apart, seed), min(k, n - 1)
    with use_one_thread():
        found = find_best_start(points, k, restarts, seed)
        if found is not None:
            assert renumber_labels(found).tolist() == scikit_learns(points, k, restarts, seed).tolist()


def test_most_cases_are_decided_here() -> None:
    found = [find_best_start(some_points(100, 20, 5, 1.0, seed), 5, 10, seed) for seed in range(40)]
    assert sum(labels is not None for labels in found) >= 36


def test_starts_are_drawn_as_scikit_learn_draws_them() -> None:
    points, generator = some_points(80, 6, 4, 2.0, 3), np.random.RandomState(11)
    expected = [points[kmeans_plusplus(points, 5, random_state=generator)[1]] for _ in range(4)]
    np.testing.assert_array_equal(kmeans_module._init_plus_plus(points, 5, 4, 11, float((points**2).sum())), expected)


@pytest.mark.parametrize(
    "points",
    [
        np.array([[0.0], [2.0], [4.0], [10.0]]),  # 2 is as far from 0 as from 4
        np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]]),  # a square can be halved two ways
        np.repeat([[0.0], [1e-9], [1.0]], 4, axis=0),  # what is left to draw from is rounding
    ],
)
def test_where_rounding_would_decide_scikit_learn_does(points: Doubles) -> None:
    k = 3 if len(points) == 12 else 2
    assert any(find_best_start(points, k, 10, state) is None for state in range(10))
    for seed in range(10):
        state = int(np.random.default_rng(seed).integers(2**31))
        assert kmeans(points, 2, np.random.default_rng(seed)).tolist() == scikit_learns(points, 2, 10, state).tolist()


def test_steps_that_did_not_settle_end_with_labels_of_the_last_centres(monkeypatch: pytest.MonkeyPatch) -> None:
    points = some_points(100, 2, 5, 0.3, 8)
    monkeypatch.setattr(kmeans_module, "MAX_STEPS", 2)
    fitted = KMeans(5, n_init=3, max_iter=2, random_state=4).fit(points)
    found = find_best_start(points, 5, 3, 4)
    assert found is not None
    assert renumber_labels(found).tolist() == renumber_labels(fitted.labels_.astype(np.int64)).tolist()


def test_kmeans_asks_scikit_learn_only_when_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    points = some_points(60, 4, 3, 5.0, 1)
    usual = kmeans(points, 3, np.random.default_rng(0)).tolist()
    monkeypatch.setattr(kmeans_module, "find_best_start", lambda *given: None)
    assert kmeans(points, 3, np.random.default_rng(0)).tolist() == usual


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
