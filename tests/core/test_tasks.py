"""What tasks are scored by, worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, r2_score

from coterie.core.asks import Evaluated
from coterie.core.tasks import (
    CLASSIFICATION,
    MAX_SQUARED_ERROR,
    Task,
    compute_credits,
    compute_pooled_variance,
    compute_squared_credit,
    count_correct_labels,
)

NOTHING = np.zeros((2, 0), dtype=np.int64)


def test_credits_of_a_regression_by_hand() -> None:
    """Targets 1, 3 of one client and 5 of another, all guessed as 3, 3 and 4: errors 2, 0 and -1.

    Mean 3, squares about it 4 + 0 + 4 = 8, variance 8/3. Credits: 2 - 4 / (8/3) = 0.5 and 1 - 1 / (8/3) = 0.625; together 1.125 of three
    samples, R2 = 0.375 = 1 - 5/8.
    """
    sums = np.array([[2, 4.0, 2.0, 2.0, 2.0, 4.0], [1, 1.0, 1.0, 5.0, 0.0, 1.0]])
    reply = Evaluated(np.arange(2), NOTHING, NOTHING, NOTHING, np.ones(2), np.full(2, np.nan), sums=sums)
    found = compute_credits(reply, Task("regression", 3.0, 1.0))
    np.testing.assert_allclose(found, [0.5, 0.625])
    assert found.sum() / reply.sizes.sum() == pytest.approx(r2_score([1, 3, 5], [3, 3, 4])) == pytest.approx(1 - 5 / 8)


def test_credits_of_several_labels_by_hand() -> None:
    """Two samples with three labels, (1,0,1) and (0,0,1), answered (1,1,1) and (0,0,0): 2 and 2 of 3 right, so 4/3 of two samples."""
    hits, predicted, actual = (np.array([row]) for row in ([1, 0, 1], [1, 1, 1], [1, 0, 2]))
    assert count_correct_labels(hits, predicted, actual, np.array([2])).tolist() == [4]
    reply = Evaluated(np.array([0]), hits, predicted, actual, np.ones(1), np.full(1, np.nan), sums=np.array([[2.0, 0.0]]))
    assert compute_credits(reply, Task("multilabel")).tolist() == pytest.approx([4 / 3])
    assert reply.sizes.tolist() == [2]


def test_a_classification_counts_right_answers_and_needs_no_sums() -> None:
    counts = np.array([[2, 1], [0, 3]])
    reply = Evaluated(np.arange(2), counts, counts, counts + 1, np.ones(2), np.full(2, np.nan))
    assert reply.sums.shape == (2, 0)
    assert compute_credits(reply, CLASSIFICATION).tolist() == [3, 3]
    assert reply.take(np.array([1])).sums.shape == (1, 0)
    assert accuracy_score([0] * 5 + [1] * 5, [0] * 5 + [0, 0, 0, 1, 1]) == 0.7  # what it is a share of


def test_what_cannot_be_explained_is_as_bad_as_can_be() -> None:
    assert compute_squared_credit(np.array([0.0, 1.0]), np.array([3, 3]), 0.0).tolist() == [3, 3 - 3 * MAX_SQUARED_ERROR]
    assert compute_squared_credit(np.array([np.nan, np.inf]), np.array([1, 2]), 1.0).tolist() == [
        1 - MAX_SQUARED_ERROR,
        2 - 2 * MAX_SQUARED_ERROR,
    ]
    assert compute_pooled_variance(np.zeros(2), np.zeros(2), np.zeros(2)) == 0


@given(arrays(np.float64, st.integers(2, 20), elements=st.floats(-100, 100)), st.integers(1, 19))
def test_the_variance_of_all_is_had_from_each_clients_own(targets: np.ndarray, cut: int) -> None:
    parts = [part for part in (targets[:cut], targets[cut:]) if len(part)]
    told = np.array([[len(part), part.mean(), ((part - part.mean()) ** 2).sum()] for part in parts])
    assert compute_pooled_variance(*told.T) == pytest.approx(targets.var(), abs=1e-8)


def test_units_lead_back() -> None:
    assert Task("regression", 10, 2).in_units(np.array([-1.0, 0.5], dtype=np.float32)).tolist() == [8, 11]
