"""Scores from counts, against scikit-learn on the predictions behind the counts."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score, recall_score

from coterie.analysis import metrics
from coterie.core.arrays import Array


def counts(y: Array, guess: Array, classes: int) -> tuple[Array, Array, Array]:
    hits = np.bincount(y[y == guess], minlength=classes)
    return hits, np.bincount(guess, minlength=classes), np.bincount(y, minlength=classes)


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, guess = rng.integers(0, 4, 30), rng.integers(0, 4, 30)
    hits, predicted, actual = counts(y, guess, 6)  # classes 4 and 5 are neither present nor predicted: they do not count
    assert metrics.accuracy(hits, actual) == pytest.approx(np.mean(y == guess))
    assert metrics.f1(hits, predicted, actual) == pytest.approx(f1_score(y, guess, average="macro", zero_division=0))
    assert metrics.precision(hits, predicted, actual) == pytest.approx(precision_score(y, guess, average="macro", zero_division=0))
    assert metrics.recall(hits, predicted, actual) == pytest.approx(recall_score(y, guess, average="macro", zero_division=0))


def test_a_client_without_samples_is_undefined_and_left_out_of_means() -> None:
    hits = np.array([[3, 0], [0, 0]])
    actual = np.array([[4, 0], [0, 0]])
    accuracy = metrics.accuracy(hits, actual)
    assert accuracy[0] == 0.75
    assert np.isnan(accuracy[1])
    assert metrics.mean(accuracy) == 0.75
    assert metrics.worst(accuracy) == 0.75
    assert np.isnan(metrics.worst(np.array([np.nan])))


def test_bottom_decile_is_the_mean_of_the_worst_tenth() -> None:
    values = np.arange(20, dtype=np.float64)
    assert metrics.bottom_decile(values) == pytest.approx(0.5)  # the two worst of twenty: 0 and 1
    assert metrics.bottom_decile(np.array([0.3, np.nan, 0.9])) == pytest.approx(0.3)  # at least one client
