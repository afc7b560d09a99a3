"""SCAFFOLD: control variates by hand, the first round, what cannot be controlled."""

from dataclasses import replace

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Trained
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.states import ClientTable
from coterie.methods.fedavg import FedAvg
from coterie.methods.scaffold import SCAFFOLD, SCAFFOLDState
from coterie.testing.fakes import make_context, make_layout, remove_clients, run_dialogue
from coterie.testing.play import PLAN, play


def state(d: int = 2) -> SCAFFOLDState:
    return SCAFFOLDState(np.zeros((1, d), np.float32), np.zeros(d), ClientTable.empty(4, np.zeros(d, np.float32)))


def reply(clients: list[int], vectors: list[list[float]], steps: list[int]) -> Trained:
    return Trained(np.array(clients), np.array(vectors, np.float32), np.ones(len(clients), np.int64), np.array(steps))


def test_two_rounds_by_hand() -> None:
    # Round 1, lr .1: w_t = 0. Client 0 comes back with (-1, 0) after 2 steps, client 1 with (0, -2) after 5 steps.
    #   c_0 = (1, 0) / .2 = (5, 0), c_1 = (0, 2) / .5 = (0, 4); N = 4, so c = (5, 4) / 4 = (1.25, 1). w = (-.5, -1).
    ctx = make_context([1, 1, 1, 1])
    first, (ask,) = run_dialogue(SCAFFOLD().round(state(), ctx), reply([0, 1], [[-1, 0], [0, -2]], [2, 5]))
    assert ask.linear is None  # nothing to correct yet
    np.testing.assert_allclose(first.own.get_all_rows()[:2], [[5, 0], [0, 4]], rtol=1e-6)
    np.testing.assert_allclose(first.mean, [1.25, 1.0], rtol=1e-6)
    np.testing.assert_allclose(first.models, [[-0.5, -1.0]])
    # Round 2: linear terms c - c_k. Client 0 comes back with (-1, -1) after 1 step: (w_t - w_0) / .1 = (5, 0);
    #   c_0 = (5, 0) - (1.25, 1) + (5, 0) = (8.75, -1); c moves by ((8.75, -1) - (5, 0)) / 4 = (.9375, -.25).
    second, (ask,) = run_dialogue(SCAFFOLD().round(first, make_context([1, 1, 1, 1], round_=2)), reply([0], [[-1, -1]], [1]))
    np.testing.assert_allclose(ask.linear, [[-3.75, 1], [1.25, -3], [1.25, 1], [1.25, 1]], rtol=1e-6)
    np.testing.assert_allclose(second.own.get_all_rows(), [[8.75, -1.0], [0.0, 4.0], [0.0, 0.0], [0.0, 0.0]], rtol=1e-5)
    np.testing.assert_allclose(second.mean, [2.1875, 0.75], rtol=1e-5)
    np.testing.assert_allclose(second.models, [[-1, -1]])


def test_the_mean_control_is_the_mean_of_the_controls() -> None:
    last = play(SCAFFOLD(), plan=replace(PLAN, dropout=0.3), rounds=6).states[-1]
    assert isinstance(last, SCAFFOLDState)
    np.testing.assert_allclose(last.mean, last.own.get_all_rows().mean(axis=0, dtype=np.float64), atol=1e-6)
    assert np.abs(last.mean).max() > 0.01


def test_the_first_round_is_uniform_fedavg_exactly() -> None:
    for plan in (PLAN, replace(PLAN, dropout=0.3)):
        ours, theirs = play(SCAFFOLD(), plan=plan, rounds=2), play(FedAvg(weighting="uniform"), plan=plan, rounds=2)
        pairs = [(a.models.tobytes(), b.models.tobytes()) for a, b in zip(ours.states, theirs.states, strict=True)]  # type: ignore[attr-defined]
        assert pairs[1][0] == pairs[1][1]
        assert pairs[2][0] != pairs[2][1]


def test_statistics_have_no_control() -> None:
    shape = make_layout((2, "weight"), (1, "statistic"))
    after, _ = run_dialogue(SCAFFOLD().round(state(3), make_context([1] * 4, shape)), reply([0], [[1, 1, 1]], [1]))
    assert after.own.get_all_rows()[0].tolist() == [-10, -10, 0]
    assert after.mean[2] == 0
    assert after.models[0, 2] == 1  # but they are averaged


def test_learning_rate_of_the_round_counts() -> None:
    plan = Plan(local=Local(lr=0.1), decay=0.5)
    after, _ = run_dialogue(SCAFFOLD().round(state(), make_context([1] * 4, plan=plan, round_=2)), reply([0], [[-1, 0]], [1]))
    np.testing.assert_allclose(after.own.get_all_rows()[0], [20, 0], rtol=1e-6)  # 1 / (1 * .05)


@pytest.mark.parametrize("local", [Local(optimizer="adam"), Local(momentum=0.9), Local(mu=0.1)])
def test_plain_sgd_only(local: Local) -> None:
    with pytest.raises(UserError, match="plain SGD"):
        next(SCAFFOLD().round(state(), make_context([1] * 4, plan=Plan(local=local))))


def test_nobody_answers() -> None:
    before = state()
    assert run_dialogue(SCAFFOLD().round(before, make_context([1] * 4)), remove_clients(reply([0], [[1, 1]], [1])))[0] is before
