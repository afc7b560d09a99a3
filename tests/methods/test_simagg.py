"""SimAgg: weights by nearness to the mean, tensor by tensor, worked by hand."""

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.methods.simagg import SimAgg
from coterie.testing.fakes import make_context, make_layout, make_model, make_trained, remove_clients, run_dialogue
from methods.noted import mixing_of


def test_one_tensor_by_hand() -> None:
    """Values 0, 1, 5 have the mean 2 and distances 2, 1, 3 from it, 6 in all: u = 6/2, 6/1, 6/3 = 3, 6, 2, over 11 (epsilon aside).

    Samples 1, 1, 2: v = 1/4, 1/4, 1/2. The weights are (u + v) / 2, the new value their sum with 0, 1, 5.
    """
    ctx = make_context([1, 1, 2], 1)
    state, _ = run_dialogue(SimAgg(epsilon=1e-12).round(make_model(0), ctx), make_trained([0, 1, 2], [[0], [1], [5]], [1, 1, 2]))
    weights = (np.array([3, 6, 2]) / 11 + [0.25, 0.25, 0.5]) / 2
    np.testing.assert_allclose(mixing_of(ctx).replies[0], weights, rtol=1e-9)
    np.testing.assert_allclose(ctx.notes.named["weights"], weights, rtol=1e-9)
    assert state.models[0, 0] == pytest.approx(weights @ [0, 1, 5], rel=1e-6)


def test_epsilon_is_added_to_each_distance() -> None:
    """d = 2, 1, 3 with epsilon 1: u = 6/3, 6/2, 6/4 = 2, 3, 1.5, over 6.5."""
    np.testing.assert_allclose(
        SimAgg(epsilon=1.0).compute_similarity(np.array([[0], [1], [5]], dtype=np.float32)), np.array([2, 3, 1.5]) / 6.5
    )


def test_every_tensor_has_weights_of_its_own() -> None:
    """In the second tensor clients 0 and 1 change places; the record shows the mean of both tensors, by size."""
    ctx = make_context([1, 1, 1], make_layout((1, "weight"), (3, "weight")))
    vectors = np.array([[0, 1, 1, 1], [1, 0, 0, 0], [5, 5, 5, 5]], dtype=np.float32)
    state, _ = run_dialogue(SimAgg(epsilon=1e-12).round(make_model(0, 0, 0, 0), ctx), make_trained([0, 1, 2], vectors, [1, 1, 1]))
    first = (np.array([3, 6, 2]) / 11 + 1 / 3) / 2
    second = (np.array([6, 3, 2]) / 11 + 1 / 3) / 2
    expected = [first @ [0, 1, 5], *[second @ [1, 0, 5]] * 3]
    np.testing.assert_allclose(state.models[0], expected, rtol=1e-6)
    np.testing.assert_allclose(ctx.notes.named["weights"], first / 4 + 3 * second / 4)


def test_sums_do_not_see_what_cancels() -> None:
    """The authors' code compares sums: (3, -3), (0, 0), (1, 1) have sums 0, 0, 2, so d = 2/3, 2/3, 4/3 and u = 4, 4, 2, over 10."""
    vectors = np.array([[3, -3], [0, 0], [1, 1]], dtype=np.float32)
    np.testing.assert_allclose(SimAgg(distance="sums", epsilon=1e-12).compute_similarity(vectors), [0.4, 0.4, 0.2])
    assert SimAgg(epsilon=1e-12).compute_similarity(vectors)[0] < 0.25


def test_defined_cases() -> None:
    same = make_trained([0, 1], [[2, 3], [2, 3]], [1, 3])
    ctx = make_context([1, 3])
    state, _ = run_dialogue(SimAgg().round(make_model(0, 0), ctx), same)
    np.testing.assert_allclose(ctx.notes.named["weights"], [(0.5 + 0.25) / 2, (0.5 + 0.75) / 2])
    assert state.models.tolist() == [[2, 3]]
    state, _ = run_dialogue(SimAgg().round(make_model(0, 0), make_context([1])), make_trained([0], [[2, 3]], [1]))
    assert state.models.tolist() == [[2, 3]]
    before = make_model(0, 0)
    assert run_dialogue(SimAgg().round(before, make_context([1, 3])), remove_clients(same))[0] is before


def test_statistics_are_averaged_with_the_mean_weight() -> None:
    ctx = make_context([1, 1, 1], make_layout((1, "weight"), (1, "weight"), (1, "statistic")))
    vectors = [[0, 1, 10], [1, 0, 20], [5, 5, 60]]
    state, _ = run_dialogue(SimAgg(epsilon=1e-12).round(make_model(0, 0, 1), ctx), make_trained([0, 1, 2], vectors, [1, 1, 1]))
    both = (np.array([4.5, 4.5, 2]) / 11 + 1 / 3) / 2  # the mean of the two tensors' weights
    assert state.models[0, 2] == pytest.approx(both @ [10, 20, 60], rel=1e-6)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UserError, match="epsilon"):
        SimAgg(epsilon=0.0)
