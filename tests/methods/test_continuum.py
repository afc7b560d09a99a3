"""Continuum: weights that balance variance and bias."""

from itertools import pairwise

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.grouping.similarity import project_on_simplex
from coterie.methods.continuum import MAX_CLIENTS, Continuum, ContinuumState, compute_neighbour_weights
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import play


@pytest.mark.parametrize(
    ("row", "nearest"), [([0.5, 0.5, 0.5], [1 / 3] * 3), ([2, 0, 0], [1, 0, 0]), ([0.6, 0.6, -1], [0.5, 0.5, 0]), ([0.2, 0.8], [0.2, 0.8])]
)
def test_the_nearest_weights_that_sum_to_one(row: list[float], nearest: list[float]) -> None:
    assert project_on_simplex(np.array([row])) == pytest.approx(np.array([nearest]))


def make_halves(gradients: np.ndarray, noise: float) -> np.ndarray:
    """Halves whose noise is orthogonal to everything else, so that products of halves are those of the gradients."""
    n, q = gradients.shape
    halves = np.zeros((2, n, q + 2 * n))
    halves[:, :, :q] = gradients
    for i in range(n):
        halves[0, i, q + 2 * i] = halves[1, i, q + 2 * i + 1] = noise
    return halves


def test_two_clients_weigh_variance_against_bias() -> None:
    # Halves of m samples differ by 2 noise^2: a sample scatters by m noise^2, a mean of 2 m by v = noise^2 / 2. The own weight minimises
    # w^2 v + (1 - w)^2 v + (1 - w)^2 delta^2: w = (v + delta^2) / (2 v + delta^2).
    noise, delta = 0.8, 0.6
    halves = make_halves(np.array([[0.0], [delta]]), noise)
    weights = compute_neighbour_weights(halves, np.full((2, 2), 30))
    v = noise**2 / 2
    own = (v + delta**2) / (2 * v + delta**2)
    assert weights == pytest.approx(np.array([[own, 1 - own], [1 - own, own]]), abs=1e-6)


def test_equal_clients_are_weighted_by_their_samples() -> None:
    sizes = np.array([[10, 20, 30]] * 2)
    noise = 1 / np.sqrt(sizes[0])  # the larger a client, the less its mean scatters
    halves = make_halves(np.ones((3, 2)), 1.0)
    halves[:, :, 2:] *= noise[None, :, None]
    weights = compute_neighbour_weights(halves, sizes)
    assert weights == pytest.approx(np.tile([1 / 6, 2 / 6, 3 / 6], (3, 1)), abs=1e-6)


def test_clients_far_apart_train_alone() -> None:
    weights = compute_neighbour_weights(make_halves(100 * np.eye(4), 0.1), np.full((2, 4), 10))
    assert weights == pytest.approx(np.eye(4), abs=1e-3)


WEIGHTS = np.array([[0.5, 0.3, 0.2], [0.25, 0.5, 0.25], [0, 0, 1.0]])
BEFORE = ContinuumState(np.array([[10, 0], [20, 0], [30, 0]], np.float32), WEIGHTS, np.zeros(2, np.float32))


def test_round_by_hand() -> None:
    replies = make_trained([0, 1, 2], [[1, 1], [2, 2], [4, 4]], [1, 3, 4])
    after, (train,) = run_dialogue(Continuum().round(BEFORE, make_context([1, 3, 4])), replies)
    assert train.start.tolist() == [0, 1, 2]
    np.testing.assert_allclose(after.models, [[1.9, 1.9], [2.25, 2.25], [4.0, 4.0]], rtol=1e-6)  # .5 + .6 + .8, .25 + 1 + 1, 4
    np.testing.assert_allclose(after.common, [23 / 8, 23 / 8])  # (1 + 6 + 16) / 8, by samples
    assert after.weights is WEIGHTS


def test_what_did_not_answer_is_made_up_by_the_clients_own_model() -> None:
    ctx = make_context([1, 3, 4])
    after, _ = run_dialogue(Continuum().round(BEFORE, ctx), make_trained([0, 1], [[1, 1], [2, 2]], [1, 3]))
    # Client 0: .5 * 1 + .3 * 2 and .2 of its own (10, 0); client 2 keeps its model.
    np.testing.assert_allclose(after.models, [[3.1, 1.1], [6.25, 1.25], [30.0, 0.0]], rtol=1e-6)
    mixing = ctx.notes.mixing
    assert mixing is not None
    assert mixing.replies.sum(axis=1) + mixing.before.sum(axis=1) == pytest.approx(np.ones(3))
    nobody, _ = run_dialogue(Continuum().round(BEFORE, ctx), remove_clients(make_trained([0], [[1, 1]], [1])))
    assert nobody is BEFORE


def test_newcomers_get_the_mean_by_samples() -> None:
    state = ContinuumState(BEFORE.models, WEIGHTS, np.array([7, 7], np.float32))
    served = Continuum().serve(state, np.array([1, 3]), make_context([1, 3, 4, 2]))
    with pytest.raises(StopIteration) as end:
        next(served)
    serving = end.value.value
    np.testing.assert_allclose(serving.models[serving.rows], [[20, 0], [7, 7]])


def test_weights_are_estimated_anew_as_often_as_asked_and_always_sum_to_one() -> None:
    history = play(Continuum(every=2), world=worlds.make_world(), rounds=4)
    weights = [state.weights for state in history.states]  # type: ignore[attr-defined]
    for each in weights:
        assert (each >= 0).all()
        assert each.sum(axis=1) == pytest.approx(np.ones(len(each)))
    changed = [not np.array_equal(a, b) for a, b in pairwise(weights)]
    assert changed == [False, False, True, False]  # at the start, and in round 3


def test_a_client_that_sends_no_gradients_keeps_its_weights() -> None:
    """The tiny world's client 2 has one sample, so half of it has none: it has the weights by samples that all begin with."""
    state = play(Continuum(), world=worlds.make_world(), rounds=1).states[-1]
    sizes = np.array(worlds.SIZES)
    assert state.weights[2] == pytest.approx(sizes / sizes.sum())  # type: ignore[attr-defined]
    assert state.weights[[0, 1, 3, 4, 5], 2] == pytest.approx(np.zeros(5))  # type: ignore[attr-defined]


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(UserError, match="at most 1000, and there are 1001"):
        next(Continuum().start(lambda which=0: np.zeros(2, np.float32), make_context([1] * (MAX_CLIENTS + 1))))
