"""Whether clients differ, on numbers made by hand."""

import numpy as np
import pytest

from coterie.inspect.differences import Difference, combine_tests, compare_halves, compare_halves_by_class
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
