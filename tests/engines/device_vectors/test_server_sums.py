"""What a server makes of held rows (distances to centres, trimmed means, differences, neurons in order) equals what it makes of arrays."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from coterie.core.model import make_layout
from coterie.core.vectors import Vectors, as_vectors
from coterie.engines import device_vectors
from coterie.methods import fesem_ma
from coterie.methods.fesem_ma import align_models, build_layer_chain, compute_matching_costs
from coterie.methods.robust import compute_trimmed_mean
from engines.device_vectors.test_rows import DEVICES, held, some
from methods.test_fesem_ma_matching import KINDS, made, shuffled


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 300), st.integers(1, 4), st.integers(0, 99))
def test_distances_to_centres_are_those_of_arrays(device: str, n: int, d: int, k: int, seed: int) -> None:
    vectors, centres = some(n, d, seed), some(k, d, seed + 1)
    there = held(vectors, device=device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_vectors, "COLUMNS", 64)
        assert_allclose(as_vectors(there.as_array()).squared_distances(centres), as_vectors(vectors).squared_distances(centres), rtol=1e-12)
    assert there._fetched is None


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 300), st.booleans(), st.integers(0, 99))
def test_rows_less_a_row_are_those_of_arrays(device: str, n: int, d: int, flat: bool, seed: int) -> None:
    vectors, row = some(n, d, seed), some(1, d, seed + 1)
    there = held(vectors, device=device)
    found = as_vectors(there.as_array()).subtract(row[0] if flat else row)
    assert there._fetched is None
    assert isinstance(found, Vectors)
    assert_array_equal(np.asarray(found), vectors - row)
    assert found.update_norms is not None
    assert_allclose(found.update_norms, np.linalg.norm(vectors - row, axis=1), rtol=1e-6)
    assert_array_equal(as_vectors(vectors).subtract(row), vectors - row)


def test_a_difference_that_a_method_writes_itself_is_an_array_to_write_in() -> None:
    vectors, row = some(3, 4), some(1, 4, 1)
    moved = held(vectors).as_array() - row
    moved *= 2
    moved[0] = 0
    assert type(moved) is np.ndarray
    assert_array_equal(moved[1:], 2 * (vectors - row)[1:])


def test_distances_between_near_models_keep_their_digits() -> None:
    """As products, ||w||^2 + ||c||^2 - 2 <w, c>, they would be lost in the rounding of a model's length."""
    centre = 1e4 + some(1, 500)
    near = np.nextafter(centre, np.float32(np.inf))
    found = as_vectors(held(np.concatenate([near, centre])).as_array()).squared_distances(centre)
    assert found[0, 0] == as_vectors(near).squared_distances(centre)[0, 0] > 0
    assert found[1, 0] == 0.0


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.integers(1, 300), st.floats(0.0, 0.49), st.integers(1, 9), st.integers(0, 99))
def test_trimmed_means_are_those_of_arrays(device: str, n: int, d: int, share: float, values: int, seed: int) -> None:
    draw, cut = np.random.default_rng(seed), max(1, int(share * n))
    vectors = draw.integers(0, values, (n, d)).astype(np.float32) if seed % 2 else some(n, d, seed)  # many equals, or none
    there = held(vectors, device=device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_vectors, "MAX_SORTED", 16 * n)
        mean, shares = compute_trimmed_mean(there.as_array(), min(cut, (n - 1) // 2))
    expected, expected_shares = compute_trimmed_mean(vectors, min(cut, (n - 1) // 2))
    assert_allclose(mean, expected, rtol=1e-6, atol=1e-7)
    assert_allclose(shares, expected_shares, rtol=1e-12)
    assert there._fetched is None


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_less_held_rows_stays_where_they_are_and_has_the_bits_of_arrays(device: str) -> None:
    vectors, slope = some(5, 90), some(1, 90, 3)
    for row in (slope, slope[0]):
        there: Any = held(vectors, device=device)
        found: Any = row - there.as_array()
        assert there._fetched is None
        assert_allclose(found.update_norms, np.linalg.norm(slope - vectors, axis=1), rtol=1e-6)
        assert np.asarray(found).tobytes() == (row - vectors).tobytes()
    assert_array_equal(slope.astype(np.float64) - held(vectors).as_array(), slope.astype(np.float64) - vectors)  # no float32: as arrays do


def test_all_rows_are_no_second_stack() -> None:
    there: Any = held(some(5, 9))
    assert there[np.ones(5, np.bool_)] is there
    assert there[np.arange(5)] is there
    assert_array_equal(there[np.array([0, 1, 2, 4, 3])], some(5, 9)[[0, 1, 2, 4, 3]])
    assert len(there[np.zeros(5, np.bool_)]) == 0


@KINDS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("together", [1, 1 << 20])
def test_neurons_are_put_in_the_same_order(kind: type, device: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fesem_ma, "MATCHED", together)
    module, vector = made(kind)
    layout = make_layout(module)
    layers, (_, stranger) = build_layer_chain(layout), made(kind, seed=5)
    noise = np.float32(1e-3) * some(4, len(vector))
    vectors = np.stack([vector, shuffled(module, seed=1), vector, stranger]) + noise
    references, which = np.stack([vector, shuffled(module, seed=2)]), np.array([0, 0, 1, 1])
    there = held(vectors, device=device)
    found, changed = align_models(there.as_array(), references, which, layers)
    expected, expected_changed = align_models(vectors, references, which, layers)
    assert np.asarray(found).tobytes() == expected.tobytes()
    assert changed.tolist() == expected_changed.tolist() == [False, True, True, True]
    assert_allclose(
        compute_matching_costs(there.as_array(), references, layers, layout),
        compute_matching_costs(vectors, references, layers, layout),
        rtol=1e-9,
    )
    assert there._fetched is None


@KINDS
def test_of_models_near_their_reference_no_products_are_read(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a short training: nothing is searched on the host, and no second stack is made."""
    module, vector = made(kind)
    monkeypatch.setattr(fesem_ma, "find_best_assignment", lambda products: pytest.fail("an order was searched"))
    near = held(vector + np.float32(1e-4) * some(5, len(vector)))
    found, changed = align_models(near.as_array(), vector[None], np.zeros(5, np.int64), build_layer_chain(make_layout(module)))
    assert not changed.any()
    assert found is near  # type: ignore[comparison-overlap]
