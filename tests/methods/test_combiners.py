"""FedEx's combiners, on outputs small enough to follow by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.arrays import Doubles
from coterie.methods.combiners import AccuracyGate, ByRow, Mean, MostConfident, Online, OwnExpert

# Two experts, two classes, three inputs: (k, m, C).
OUTPUTS = np.array([[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9], [0.4, 0.6]]])


def test_online_layer_by_hand() -> None:
    # t=1: scores (.9+.5)/2, (.1+.5)/2 = .7, .3, so p = 0; c = (.9, .5)/1.4; w_.0 = ((.5, .5) * 1 + c) / 2.
    first = (0.5 + np.array([0.9, 0.5]) / 1.4) / 2
    # t=2: class 0 scores first . (.6, .1), class 1 (.4+.9)/2 = .65, so p = 1; c = (.4, .9)/1.3; w_.1 = ((.5, .5) * 2 + c) / 3.
    second = (np.array([1.0, 1.0]) + np.array([0.4, 0.9]) / 1.3) / 3
    # t=3: class 0 scores first . (.2, .4), class 1 second . (.8, .6): p = 1.
    expected = np.array([[0.7, 0.3], [first @ [0.6, 0.1], 0.65], [first @ [0.2, 0.4], second @ [0.8, 0.6]]])
    np.testing.assert_allclose(Online().combine(OUTPUTS, 0), expected, rtol=1e-12)
    third = (second * 3 + np.array([0.8, 0.6]) / 1.4) / 4
    np.testing.assert_allclose(Online().learned(OUTPUTS), np.column_stack([first, third]), rtol=1e-12)


def test_online_layer_counts_time_per_class() -> None:
    # Class 1 is first said at the second input: with its own clock t = 1 there, so w_.1 = ((.5, .5) * 1 + c) / 2; then t = 2.
    second = (0.5 + np.array([0.4, 0.9]) / 1.3) / 2
    third = (second * 2 + np.array([0.8, 0.6]) / 1.4) / 3
    np.testing.assert_allclose(Online(per_class=True).learned(OUTPUTS)[:, 1], third, rtol=1e-12)


def test_online_layer_begins_afresh_and_depends_on_order() -> None:
    layer = Online()
    assert layer.combine(OUTPUTS, 0).tobytes() == layer.combine(OUTPUTS, 7).tobytes()
    backwards = layer.combine(OUTPUTS[:, ::-1], 0)[::-1]
    assert not np.allclose(backwards, layer.combine(OUTPUTS, 0))


def test_frozen_layer() -> None:
    np.testing.assert_allclose(Online(frozen=True).combine(OUTPUTS, 0), Mean().combine(OUTPUTS, 0), rtol=1e-12)
    weights = Online().learned(OUTPUTS)
    held = Online(frozen=True, weights=weights)
    np.testing.assert_allclose(held.combine(OUTPUTS, 0)[0], (weights * OUTPUTS[:, 0]).sum(0), rtol=1e-12)
    assert held.learned(OUTPUTS).tobytes() == weights.tobytes()
    assert held.combine_each(OUTPUTS, np.array([1, 2])) is None  # nothing goes from input to input: it is combined client by client


def test_an_answer_that_no_expert_gives_any_probability() -> None:
    np.testing.assert_allclose(Online().learned(np.zeros((2, 3, 2))), 0.5)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(2, 5), st.integers(0, 999), st.booleans())
def test_columns_of_the_online_layer_keep_the_sum_one(k: int, m: int, classes: int, seed: int, per_class: bool) -> None:
    outputs: Doubles = np.random.default_rng(seed).dirichlet(np.ones(classes), (k, m))
    np.testing.assert_allclose(Online(per_class=per_class).learned(outputs).sum(0), 1.0, rtol=1e-12)


@given(
    k=st.integers(1, 10), classes=st.integers(2, 6), sizes=st.lists(st.integers(0, 5), min_size=1, max_size=9), seed=st.integers(0, 999),
    per_class=st.booleans(),
)  # fmt: skip
def test_many_clients_side_by_side_have_the_bits_of_each(k: int, classes: int, sizes: list[int], seed: int, per_class: bool) -> None:
    rng = np.random.default_rng(seed)
    outputs: Doubles = rng.dirichlet(np.ones(classes), (k, sum(sizes)))
    outputs[:, rng.random(sum(sizes)) < 0.2] = 0.0  # inputs that no expert gives any probability
    layer = Online(per_class=per_class, weights=rng.dirichlet(np.ones(k), classes).T if seed % 2 else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.methods.combiners.CLIENTS_AT_ONCE", 3)
        together = layer.combine_each(outputs, np.array(sizes))
    each = [layer.combine(part, 0) for part in np.split(outputs, np.cumsum(sizes)[:-1], axis=1)]
    assert together is not None
    assert together.tobytes() == np.concatenate(each).tobytes()


def test_one_expert_is_itself_under_every_combiner() -> None:
    one = OUTPUTS[:1]
    gate = AccuracyGate.from_counts(np.array([[3, 0]]), np.array([[4, 9]]))
    for combiner in (Online(), Mean(), MostConfident(), gate, OwnExpert(np.array([0]))):
        np.testing.assert_allclose(combiner.combine(one, 0), one[0], rtol=1e-12)


def test_mean_and_most_confident_by_hand() -> None:
    np.testing.assert_allclose(Mean().combine(OUTPUTS, 0), [[0.7, 0.3], [0.35, 0.65], [0.3, 0.7]])
    # The surest experts are: the first (.9 > .5), the second (.9 > .6), the first (.8 > .6).
    np.testing.assert_allclose(MostConfident().combine(OUTPUTS, 0), [[0.9, 0.1], [0.1, 0.9], [0.2, 0.8]])


def test_accuracy_gate_by_hand() -> None:
    # Expert 0: class 0 said 8 times, 7 right -> 8/10; class 1 never -> 1/2. Expert 1: 2 of 8 right -> 3/10; 4 of 4 right -> 5/6.
    gate = AccuracyGate.from_counts(np.array([[7, 0], [2, 4]]), np.array([[8, 0], [8, 4]]))
    expected = np.array([[8 / 11, 0.5 / (0.5 + 5 / 6)], [3 / 11, (5 / 6) / (0.5 + 5 / 6)]])
    np.testing.assert_allclose(gate.weights, expected, rtol=1e-12)
    np.testing.assert_allclose(
        gate.combine(OUTPUTS, 0)[1], np.array([8 / 11 * 0.6 + 3 / 11 * 0.1, expected[:, 1] @ [0.4, 0.9]]), rtol=1e-12
    )


def test_the_gate_follows_accuracy_where_the_layer_follows_confidence() -> None:
    # Expert 0 is sure and wrong, expert 1 unsure and right (class 1).
    outputs = np.tile([[[0.9, 0.1]], [[0.35, 0.65]]], (1, 20, 1))
    gate = AccuracyGate.from_counts(np.array([[0, 0], [0, 20]]), np.array([[20, 0], [0, 20]]))
    assert set(Online().combine(outputs, 0).argmax(1)) == {0}
    assert set(gate.combine(outputs, 0).argmax(1)) == {1}


def test_own_expert_and_one_combiner_a_row() -> None:
    own = OwnExpert(np.array([1, 0]))
    assert own.combine(OUTPUTS, 0).tobytes() == OUTPUTS[1].tobytes()
    rows = ByRow((None, Mean(), own))
    assert rows.combine(OUTPUTS, 1).tobytes() == Mean().combine(OUTPUTS, 0).tobytes()
    with pytest.raises(ValueError, match="row 0"):
        rows.combine(OUTPUTS, 0)
