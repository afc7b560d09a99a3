"""Nearest clients by cosine: in blocks as exactly as from all pairs, in cells nearly so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.arrays import Floats, Ids
from coterie.grouping import neighbours
from coterie.grouping.neighbours import find_nearest_clients, find_nearest_in_blocks, find_nearest_in_cells
from coterie.grouping.similarity import compute_cosines, compute_gram


def by_all_pairs(rows: Floats, asking: Ids, count: int) -> Ids:
    alike = compute_cosines(compute_gram(rows))
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike[asking], axis=1, kind="stable")[:, :count]


def on_a_surface(n: int, dimensions: int, d: int = 80) -> Floats:
    """Updates of clients that differ in a few ways, and a little noise in all the others."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((n, dimensions)) @ rng.standard_normal((dimensions, d)) / np.sqrt(dimensions)
    return np.asarray(rows + 0.05 * rng.standard_normal((n, d)), dtype=np.float32)


def recall(found: Ids, exact: Ids) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), exact.tolist(), strict=True)]))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 60), d=st.integers(1, 8), count=st.integers(1, 5), piece=st.integers(1, 200), seed=st.integers(0, 1000))
def test_blocks_find_what_all_pairs_find(n: int, d: int, count: int, piece: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)).astype(np.float32)
    asking, count = np.flatnonzero(rng.random(n) < 0.6), min(count, n - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "PIECE", piece)
        found = find_nearest_in_blocks(rows, asking, count)
    alike = compute_cosines(compute_gram(rows))
    np.testing.assert_allclose(alike[asking[:, None], found], alike[asking[:, None], by_all_pairs(rows, asking, count)], atol=1e-12)
    assert not (found == asking[:, None]).any()
    assert all(len(set(row)) == count for row in found.tolist())


def test_of_equals_the_first_are_taken() -> None:
    rows = np.tile(np.array([[3, 4]], np.float32), (50, 1))
    assert find_nearest_in_blocks(rows, np.array([0, 20]), 3).tolist() == [[1, 2, 3], [0, 1, 2]]


def test_cells_find_nearly_what_all_pairs_find() -> None:
    rows, asking = on_a_surface(2500, 8), np.arange(0, 2500, 5)
    found, cells = find_nearest_in_cells(rows, asking, 3, np.random.default_rng(0))
    assert cells == 50
    assert recall(found, by_all_pairs(rows, asking, 3)) > 0.9
    assert not (found == asking[:, None]).any()
    assert found.min() >= 0
    assert found.tolist() == find_nearest_in_cells(rows, asking, 3, np.random.default_rng(0))[0].tolist()


def test_with_all_cells_opened_and_all_finalists_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "OPENED", 30)
    monkeypatch.setattr(neighbours, "FINALISTS", 300)
    rows, asking = on_a_surface(300, 60), np.arange(300)
    assert recall(find_nearest_in_cells(rows, asking, 4, np.random.default_rng(0))[0], by_all_pairs(rows, asking, 4)) == 1.0


def test_the_way_follows_the_number_and_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, asking = on_a_surface(400, 3), np.arange(100)
    noted = []
    for many, pairs in ((400, 0), (399, 40_000), (399, 39_999)):
        monkeypatch.setattr(neighbours, "MANY", many)
        monkeypatch.setattr(neighbours, "PAIRS", pairs)
        found, notes = find_nearest_clients(rows, asking, 2, np.random.default_rng(0))
        noted.append(notes)
        assert recall(found, by_all_pairs(rows, asking, 2)) > 0.9
    assert noted == [{}, {"compared_with": 400}, {"landmarks": 20}]
