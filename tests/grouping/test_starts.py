"""k-means from all starts at once finds what scikit-learn finds one start after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans, kmeans_plusplus

from coterie._util.threads import use_one_thread
from coterie.core.arrays import Doubles, Ids
from coterie.grouping import clustering
from coterie.grouping import kmeans as kmeans_module
from coterie.grouping.kmeans import find_best_start, kmeans, renumber_labels


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
    monkeypatch.setattr(clustering, "find_best_start", lambda *given: None)
    assert kmeans(points, 3, np.random.default_rng(0)).tolist() == usual
