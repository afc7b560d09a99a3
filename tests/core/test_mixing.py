import numpy as np
import pytest

from coterie.core.arrays import Floats
from coterie.core.asks import Trained
from coterie.core.mixing import Mixing, mix
from coterie.core.rng import make_generator
from coterie.core.vectors import add_rows, add_rows_numpy, add_rows_unrolled
from coterie.testing import worlds
from coterie.testing.play import make_round_context

IDS = np.arange(4)


def vectors(n: int = 4, d: int = 9) -> Floats:
    return make_generator(n).normal(size=(n, d)).astype(np.float32)


def test_by_hand() -> None:
    replies = np.array([[1, 2], [3, 6]], dtype=np.float32)
    before = np.array([[10, 20]], dtype=np.float32)
    mixing = Mixing(np.array([0, 1]), np.array([[0.25, 0.75], [0.5, 0.0]]), np.array([[0.0], [0.5]]))
    assert mix(mixing, replies, before).tolist() == [[2.5, 5.0], [5.5, 11.0]]


def test_average_scales_weights_to_one() -> None:
    mixing = Mixing.average(np.array([2, 5]), np.array([10, 30]))
    assert mixing.replies.tolist() == [[0.25, 0.75]]
    assert mixing.before.tolist() == [[0.0]]
    assert mix(mixing, np.array([[4.0], [8.0]], np.float32), np.ones((1, 1), np.float32)).tolist() == [[7.0]]


def test_within_groups_everybody_counts_by_weight_and_an_empty_group_keeps_its_model() -> None:
    mixing = Mixing.within(np.array([3, 5, 8]), np.array([0, 2, 0]), np.array([1, 7, 3]), before=3)
    assert mixing.replies.tolist() == [[0.25, 0, 0.75], [0, 0, 0], [0, 1, 0]]
    assert mixing.before.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert mix(mixing, np.array([[4.0], [2], [8]], np.float32), np.array([[1.0], [5], [9]], np.float32)).tolist() == [[7], [5], [2]]


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    rows = make_generator(1).random((3, 4))
    rows /= rows.sum(1, keepdims=True)
    together = mix(Mixing(IDS, rows, np.zeros((3, 1))), vectors(), vectors(1))
    for j in range(3):
        alone = mix(Mixing(IDS, rows[j : j + 1], np.zeros((1, 1))), vectors(), vectors(1))
        assert alone.tobytes() == together[j : j + 1].tobytes()


def test_nor_on_the_order_of_arrival() -> None:
    # Ascending, the first 1 is lost in 1e20 and the second is not: a quarter. In another order it is a half, or nothing.
    weights = np.full((1, 4), 0.25)
    wild = np.array([[1e20], [1.0], [-1e20], [1.0]], dtype=np.float32)
    before = np.zeros((1, 1), np.float32)
    assert mix(Mixing(IDS, weights, np.zeros((1, 1))), wild, before).item() == 0.25
    for order in ([2, 0, 3, 1], [1, 3, 0, 2]):
        assert mix(Mixing(IDS[order], weights, np.zeros((1, 1))), wild[order], before).item() == 0.25


@pytest.mark.parametrize(("d", "n"), [(1, 7), (1024, 7), (5000, 7), (300_000, 7), *((33, n) for n in (1, 3, 4, 5, 8))])
def test_compiled_and_interpreted_sums_have_the_same_bits(d: int, n: int) -> None:
    weights, replies = make_generator(d).normal(size=n), vectors(n, d)
    compiled, interpreted, by_term = np.zeros((3, d))
    add_rows(compiled, weights, np.arange(n), replies, 0)
    add_rows_numpy(interpreted, weights, np.arange(n), replies, 0)
    for weight, reply in zip(weights, replies, strict=True):
        by_term += weight * reply.astype(np.float64)
    assert compiled.tobytes() == interpreted.tobytes() == by_term.tobytes()
    mixed = mix(Mixing(np.arange(n), weights[None], np.zeros((1, 1))), replies, vectors(1, d))
    assert mixed[0].tobytes() == by_term.astype(np.float32).tobytes()


def test_sums_begin_where_they_are_told_to_and_go_on_from_what_is_there() -> None:
    weights, replies, rows = make_generator(1).normal(size=6), vectors(6, 50), np.array([4, 0, 2, 5, 1])
    start = make_generator(2).normal(size=20)
    for add in (add_rows_unrolled, add_rows_numpy):
        total = start.copy()
        add(total, weights[rows], rows, replies, 7)
        expected = start.copy()
        for row in rows:
            expected += weights[row] * replies[row, 7:27].astype(np.float64)
        assert total.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("n", "d", "k"), [(3, 9, 1), (4, 8, 1), (4, 9, 0)])
def test_what_does_not_fit_is_refused(n: int, d: int, k: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        mix(Mixing(IDS, np.full((1, 4), 0.2), np.full((1, 2), 0.1)), vectors(n, d), vectors(k + 1))


def test_a_weight_of_zero_keeps_even_nonsense_out() -> None:
    replies = vectors()
    replies[1] = np.nan
    mixed = mix(Mixing(IDS, np.array([[0.5, 0.0, 0.25, 0.25]]), np.zeros((1, 1))), replies, vectors(1))
    rest = mix(Mixing(IDS[[0, 2, 3]], np.array([[0.5, 0.25, 0.25]]), np.zeros((1, 1))), replies[[0, 2, 3]], vectors(1))
    assert mixed.tobytes() == rest.tobytes()


def test_sums_in_float64_and_rounds_once() -> None:
    # In float32, 1 + 2^-24 is 1 each time; in float64 the four of them reach the next float32.
    replies = np.array([[1.0], [2.0**-24], [2.0**-24], [2.0**-24]], dtype=np.float32)
    mixed = mix(Mixing(IDS, np.ones((1, 4)), np.zeros((1, 1)), averages=False), replies, np.zeros((1, 1), np.float32))
    assert mixed.item() == np.float32(1 + 3 * 2.0**-24) != 1.0


def test_a_matrix_for_other_clients_than_answered_is_an_error() -> None:
    ctx = make_round_context(worlds.make_world())
    trained = Trained(np.array([0, 2]), vectors(2), np.array([3, 4]), np.array([1, 1]))
    with pytest.raises(ValueError, match="different clients"):
        ctx.mix(Mixing.average(np.array([0, 1]), np.ones(2)), trained, vectors(1))
    ctx.mix(Mixing.average(np.array([0, 2]), np.ones(2)), trained, vectors(1))
    assert ctx.notes.mixing is not None
    assert ctx.notes.mixing.clients.tolist() == [0, 2]
