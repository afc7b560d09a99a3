"""APFL: mixtures, their weights and the term for a client's own model, with numbers worked by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.asks import Gradient, Trained
from coterie.core.states import ClientTable
from coterie.methods.apfl import ALPHA, APFL, OWN_MODEL, APFLRule, APFLState
from coterie.methods.catalogue import build
from coterie.methods.fedavg import FedAvg
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_gradients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, make_round_context, pass_unchanged, play, run_generator

SIZES = [1, 3]


def state() -> APFLState:
    """Client 0 has a model of its own, (1, 0); the shared one is (0, 0)."""
    shared = np.zeros((1, 2), np.float32)
    own = ClientTable.empty(2, shared[0]).put(np.array([0]), np.array([[1, 0]], np.float32))
    return APFLState(shared, own, np.array([0.5, 0.5]))


def reply(clients: Any) -> Trained:
    vectors = np.array([[2, 2], [4, 4]], np.float32)[clients]
    more = np.array([[[7, 7]], [[8, 8]]], np.float32)[clients]
    return Trained(np.array(clients), vectors, np.array(SIZES)[clients], np.ones(len(clients), np.int64), more)


def test_round_by_hand() -> None:
    # v-bar_0 = (.5, 0), gradient (2, 1) there: the slope of alpha_0 is <(1, 0), (2, 1)> = 2, a step of .1 gives .5 - .2 = .3.
    ctx = make_context(SIZES)
    after, (probe, train) = run_dialogue(APFL().round(state(), ctx), make_gradients([0], [[2, 1]], [1.0]), reply([0, 1]))
    assert isinstance(probe, Gradient)
    assert probe.alone
    assert probe.clients.tolist() == [0]  # client 1 has nothing to mix yet
    np.testing.assert_allclose(probe.models[probe.start], [[0.5, 0.0]])
    np.testing.assert_allclose(train.extra[ALPHA], [[0.3, 0.3], [0.5, 0.5]], rtol=1e-6)
    assert train.extra[OWN_MODEL].tolist() == [[1, 0], [0, 0]]
    assert set(train.kept) == {OWN_MODEL, ALPHA}
    np.testing.assert_allclose(after.alphas, [0.3, 0.5])
    np.testing.assert_allclose(after.models, [[3.5, 3.5]])  # (1 * 2 + 3 * 4) / 4
    assert after.own.get_all_rows().tolist() == [[7, 7], [8, 8]]
    with pytest.raises(StopIteration) as end:
        next(APFL().serve(after, np.array([2, 0]), make_context([*SIZES, 2])))
    served = end.value.value
    np.testing.assert_allclose(served.models[served.rows], [[3.5, 3.5], [0.3 * 7 + 0.7 * 3.5] * 2])


@pytest.mark.parametrize(("slope", "expected"), [(100.0, 0.0), (-100.0, 1.0)])
def test_weights_stay_between_zero_and_one(slope: float, expected: float) -> None:
    after, _ = run_dialogue(APFL().round(state(), make_context(SIZES)), make_gradients([0], [[slope, 0]], [1.0]), reply([0]))
    assert after.alphas[0] == expected


def test_a_weight_changes_only_with_its_client_s_training() -> None:
    after, _ = run_dialogue(APFL().round(state(), make_context(SIZES)), make_gradients([0], [[2, 1]], [1.0]), reply([1]))
    assert after.alphas.tolist() == [0.5, 0.5]


def test_the_own_model_s_loss_by_hand() -> None:
    """v = 2, w = 4, alpha = .25: the mixture is 3.5, and of its square the gradient for v is 2 * 3.5 * .25."""
    v = torch.tensor(2.0, requires_grad=True)
    step: Any = SimpleNamespace(
        loop=OWN_MODEL,
        weights={"w": v},
        received={"w": torch.tensor(4.0)},
        trained=["w"],
        extra={ALPHA: {"w": torch.tensor(0.25)}},
        outputs=lambda weights: weights["w"],
        loss=lambda outputs: outputs**2,
    )
    value = APFLRule().objective(step)
    assert float(value.detach()) == pytest.approx(3.5**2)
    assert float(torch.autograd.grad(value, v)[0]) == pytest.approx(1.75)


def test_no_weight_is_fedavg_exactly() -> None:
    world = worlds.make_world()
    none, avg = play(APFL(alpha=0, adapt=False), rounds=3), play(FedAvg(), rounds=3)
    assert [s.models.tobytes() for s in none.states] == [s.models.tobytes() for s in avg.states]  # type: ignore[attr-defined]
    serving = run_generator(APFL().serve(none.states[-1], np.arange(6), make_round_context(world)), world)  # type: ignore[arg-type]
    assert all(serving.models[row].tobytes() == none.states[-1].models[0].tobytes() for row in serving.rows)  # type: ignore[attr-defined]


def test_the_whole_weight_is_the_client_s_own_model() -> None:
    world, plan = worlds.make_world(), replace(PLAN, cohort=None)
    last: Any = play(build("apfl(alpha=1,adapt=false)"), plan=plan, rounds=2).states[-1]
    serving = run_generator(APFL().serve(last, np.arange(6), make_round_context(world)), world)
    assert serving.models[serving.rows].tobytes() == last.own.get_all_rows().tobytes()


def test_without_adapting_no_gradient_is_asked_for() -> None:
    engine = AlteredEngine(pass_unchanged)
    play(APFL(adapt=False), rounds=3, engine=engine)
    assert not any(isinstance(s.ask, Gradient) for s in engine.asked)
