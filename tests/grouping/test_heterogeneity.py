"""Indices by hand, and against SciPy where it has them."""

import numpy as np
import pytest
from scipy.stats import ks_2samp

from coterie.grouping.heterogeneity import (
    INDICES,
    compute_earth_mover,
    compute_gini,
    compute_hellinger,
    compute_jensen_shannon,
    compute_kolmogorov_smirnov,
    compute_label_indices,
    compute_update_indices,
)

COUNTS = np.array([[8, 0], [0, 3], [2, 2]])


def test_label_distances_by_hand() -> None:
    """Clients of one class each are at distance 1; from one class to half and half: Hellinger sqrt(1 - sqrt(1/2)), a half has to move."""
    for distances in (compute_hellinger, compute_jensen_shannon, compute_earth_mover):
        table = distances(COUNTS)
        assert table[0, 1] == pytest.approx(1)
        assert np.allclose(table, table.T)
        assert np.diag(table).tolist() == [0, 0, 0]
    assert compute_hellinger(COUNTS)[0, 2] == pytest.approx(np.sqrt(1 - np.sqrt(0.5)))
    assert compute_earth_mover(COUNTS)[0, 2] == pytest.approx(0.5)
    # mixture (3/4, 1/4): divergence = 1/2 log2(4/3) + 1/2 (1/2 log2(2/3) + 1/2 log2(2))
    assert compute_jensen_shannon(COUNTS)[0, 2] ** 2 == pytest.approx(0.5 * np.log2(4 / 3) + 0.25 * np.log2(2 / 3) + 0.25)


def test_equal_clients_have_distance_zero_whatever_their_size() -> None:
    assert compute_label_indices(np.array([[2, 4], [1, 2]])) == pytest.approx(
        {"hellinger": 0, "jensen_shannon": 0, "earth_mover": 0}, abs=1e-7
    )


def test_kolmogorov_smirnov_is_scipys() -> None:
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(m, 2)).round(1) for m in (5, 9, 14)]
    table = compute_kolmogorov_smirnov(clients)
    expected = np.mean([ks_2samp(clients[0][:, f], clients[2][:, f]).statistic for f in (0, 1)])
    assert table[0, 2] == pytest.approx(expected)
    assert compute_kolmogorov_smirnov([np.zeros(3), np.ones(4)])[0, 1] == 1.0


def test_gini() -> None:
    assert compute_gini(np.array([5, 5, 5])) == 0
    assert compute_gini(np.array([0, 0, 0, 8])) == pytest.approx(0.75)  # 1 - 1/n
    assert compute_gini(np.array([1, 3])) == pytest.approx(0.25)


def test_gradients() -> None:
    alike = np.ones((4, 3), dtype=np.float32)
    assert compute_update_indices(alike) == pytest.approx({"gradient_coherence": 1, "cosine_spread": 0})
    assert compute_update_indices(np.eye(4, dtype=np.float32)) == pytest.approx({"gradient_coherence": 0.25, "cosine_spread": 0})
    two = np.array([[1, 0], [1, 0], [-1, 0]], dtype=np.float32)  # cosines 1, -1, -1
    assert compute_update_indices(two)["cosine_spread"] == pytest.approx(np.std([1, -1, -1]))


def test_each_says_what_must_leave_the_client() -> None:
    assert [name for name, index in INDICES.items() if index.leaves == "label counts"] == ["hellinger", "jensen_shannon", "earth_mover"]
    assert INDICES["pni"].leaves == "errors"
    assert INDICES["gradient_coherence"].leaves == "gradients"
