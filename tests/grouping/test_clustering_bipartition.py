"""CFL's cut of many clients, beside the cut of all pairs; lengths of moves, which are exact."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from coterie.core import vectors
from coterie.core.arrays import Floats, Ids
from coterie.grouping import landmarks
from coterie.grouping.clustering import (
    Linkage,
    agglomerative_clustering_large,
    bipartition_by_cosines,
    bipartition_large,
    compute_mean_update_norm,
    summarize_updates,
)
from coterie.grouping.similarity import compute_cosines, compute_gram, compute_norms

LANDMARKS = 120


@pytest.fixture(autouse=True)
def few_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landmarks, "LANDMARKS", LANDMARKS)
    monkeypatch.setattr(landmarks, "MIN_LANDMARKS", 20)


def pulled_apart(noise: float, n: int = 500, d: int = 60) -> tuple[Floats, Floats, Ids]:
    """Models of clients that pull two ways from one model, three to one, in random order."""
    rng = np.random.default_rng(5)
    truth, way, origin = (rng.random(n) < 0.25).astype(np.int64), rng.standard_normal(d), 10 * rng.standard_normal(d)
    steps = np.where(truth, -1, 1)[:, None] * way + noise * rng.standard_normal((n, d))
    return (origin + 0.1 * steps).astype(np.float32), origin.astype(np.float32), truth


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_the_cut_is_that_of_all_pairs_where_groups_are_plain(linkage: Literal["single", "complete"]) -> None:
    rows, origin, truth = pulled_apart(noise=0.4)
    exact = bipartition_by_cosines(compute_cosines(compute_gram(rows, origin)), linkage)
    found = bipartition_large(rows, origin, np.random.default_rng(0), linkage)
    assert adjusted_rand_score(exact.leaves, found.leaves) == 1.0 == adjusted_rand_score(truth, found.leaves)
    assert found.across <= exact.across  # of fewer pairs
    assert found.across == pytest.approx(exact.across, abs=0.1)
    again = bipartition_large(rows, origin, np.random.default_rng(0), linkage)
    assert found.leaves.tolist() == again.leaves.tolist()


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_with_everybody_a_landmark_nothing_is_lost(linkage: Linkage) -> None:
    rows, origin, _ = pulled_apart(noise=3.0, n=LANDMARKS)
    exact = bipartition_by_cosines(compute_cosines(compute_gram(rows, origin)), linkage)
    found = bipartition_large(rows, origin, np.random.default_rng(0), linkage)
    assert found.leaves.tolist() == exact.leaves.tolist()
    assert found.across == exact.across


def test_clients_that_are_alike_are_not_cut() -> None:
    rows = np.tile(np.array([1, 2, 3], np.float32), (300, 1))
    assert not bipartition_large(rows, np.zeros(3, np.float32), np.random.default_rng(0), "single").leaves.any()


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 40), d=st.integers(1, 9), piece=st.integers(1, 60), seed=st.integers(0, 1000))
def test_lengths_of_moves_are_exact(n: int, d: int, piece: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, origin = rng.standard_normal((n, d)).astype(np.float32), rng.standard_normal((1, d)).astype(np.float32)
    share = rng.dirichlet(np.ones(n))
    with pytest.MonkeyPatch.context() as patch:
        exact = summarize_updates(rows, origin, share, np.random.default_rng(0))
        patch.setattr("coterie.grouping.clustering.PIECE", piece)
        patch.setattr("coterie.grouping.clustering.MANY", 0)
        patch.setattr("coterie.core.vectors.MANY_ROWS", 0)
        many = summarize_updates(rows, origin, share, np.random.default_rng(0))
    assert many.mean == pytest.approx(exact.mean, rel=1e-6, abs=1e-6)  # the exact form takes the root of a sum of products
    assert many.longest == pytest.approx(exact.longest, rel=1e-12)
    updates = rows.astype(np.float64) - origin
    assert many.mean == pytest.approx(float(np.linalg.norm(share @ updates)), rel=1e-9, abs=1e-12)
    assert compute_mean_update_norm(rows, origin, share) == pytest.approx(many.mean, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(compute_norms(rows, origin), np.linalg.norm(updates, axis=1), rtol=1e-12)


def test_the_nearest_landmark_is_found_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).standard_normal((400, 4))
    whole = agglomerative_clustering_large(rows, np.random.default_rng(1), groups=3, linkage="single")
    monkeypatch.setattr(vectors, "PIECE", 5 * LANDMARKS)  # so that landmarks, not columns, decide how many rows are one piece
    assert agglomerative_clustering_large(rows, np.random.default_rng(1), groups=3, linkage="single").tolist() == whole.tolist()
