"""Whether clients differ, on numbers made by hand."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency
from scipy.stats.contingency import association

from coterie.inspect.differences import Difference, combine_tests, compare_halves, compare_halves_by_class, compute_label_spread
from grouping.made_probes import made, proportions_alone


def test_two_halves_that_agree_and_that_do_not() -> None:
    rng = np.random.default_rng(0)
    own, counts = rng.normal(size=(1, 20, 2, 5)), np.full((2, 20, 2), 4)
    same = made(np.repeat(own, 2, axis=0), counts)
    assert compare_halves(same, rng).p == 0.001
    assert compare_halves(same, rng).agreement == pytest.approx(1)
    assert compare_halves_by_class(same, rng).p == 0.001
    other = made(rng.normal(size=(2, 20, 2, 5)), counts)
    assert abs(compare_halves(other, rng).agreement) < 0.35


def test_label_proportions_alone_do_not_count_as_beyond_labels() -> None:
    rng, probes = np.random.default_rng(1), proportions_alone()
    assert compare_halves(probes, rng).p == 0.001
    assert compare_halves_by_class(probes, rng).p > 0.05


def test_clients_differ_when_any_test_says_so() -> None:
    whole = Difference(0.4, 0.1, 20)
    assert combine_tests(whole, 0.01) == Difference(0.02, 0.1, 20)
    assert combine_tests(whole) == whole
    assert combine_tests(whole, 0.9).p == 0.8
    assert combine_tests(whole, 0.9, 0.01).p == pytest.approx(0.03)
    assert combine_tests(whole, float("nan"), 0.01).p == pytest.approx(0.02)  # a test that could not be made is none


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
