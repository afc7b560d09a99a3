"""What label counts tell of clients."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency
from scipy.stats.contingency import association

from coterie.inspect.differences import compute_label_spread


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_the_class_and_the_clients_that_differ_most_are_named() -> None:
    found = compute_label_spread(np.array([[50, 50, 0], [45, 55, 0], [2, 98, 0]]), rng())
    assert found is not None
    assert (found.p, found.label) == (0.001, 0)
    assert (found.low, found.high) == ((0.02, 2), (0.5, 0))


def test_the_test_agrees_with_scipys_where_samples_are_many() -> None:
    counts = np.array([[40, 60, 30], [52, 55, 33], [36, 70, 41], [47, 52, 20]])
    found = compute_label_spread(counts, rng())
    assert found is not None
    assert found.p == pytest.approx(chi2_contingency(counts).pvalue, abs=0.04)
    assert found.association == pytest.approx(association(counts, "cramer"))


def test_equal_labels_are_told_to_be_so_about_as_often_as_they_should() -> None:
    drawn = [np.random.default_rng(seed).multinomial(6, [0.7, 0.2, 0.1], size=12) for seed in range(40)]
    p = [found.p for counts in drawn if (found := compute_label_spread(counts, rng())) is not None]
    assert len(p) == 40
    assert sum(value <= 0.05 for value in p) <= 6
    assert np.mean(p) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("counts", [[[3, 0], [5, 0]], [[3, 4]]])
def test_one_class_or_one_client_has_nothing_to_tell(counts: list[list[int]]) -> None:
    assert compute_label_spread(np.array(counts), rng()) is None


def test_many_clients_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.random.default_rng(1).integers(1, 9, size=(20, 3))
    whole = compute_label_spread(counts, rng())
    monkeypatch.setattr("coterie.inspect.differences.BATCH_CELLS", 700)
    assert whole is not None
    parts = compute_label_spread(counts, rng())
    assert parts is not None
    assert parts.p == pytest.approx(whole.p, abs=0.06)
