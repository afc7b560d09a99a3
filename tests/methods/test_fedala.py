"""FedALA: what a client begins from, and how the weights of the mixture are learned, with numbers worked by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.core.states import ClientTable
from coterie.engines.batched import BatchedEngine
from coterie.methods.fedala import OWN_MODEL, SHARED_MODEL, ALARule, ALAState, FedALA
from coterie.methods.fedavg import FedAvg
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, pass_unchanged, play

SIZES = [1, 3]
EVERYBODY = replace(PLAN, cohort=None)


def state() -> ALAState:
    """Client 0 has the model (0, 0) of its own; the shared one is (2, 4)."""
    shared = np.array([[2, 4]], np.float32)
    own = ClientTable.empty(2, shared[0]).put(np.array([0]), np.zeros((1, 2), np.float32))
    return ALAState(shared, own, ClientTable.empty(2, np.ones(2, np.float32)))


def test_round_by_hand() -> None:
    # Client 0 learns W = (.5, 1.2), cut to (.5, 1): it begins from (0, 0) + (2, 4) * (.5, 1) = (1, 4); client 1 from the shared model.
    learned = make_trained([0], [[0.5, 1.2]], [1])
    after, (adapt, train) = run_dialogue(
        FedALA().round(state(), make_context(SIZES)), learned, make_trained([0, 1], [[1, 1], [5, 5]], SIZES)
    )
    assert adapt.clients.tolist() == [0]
    assert adapt.alone
    assert adapt.models[adapt.start].tolist() == [[1, 1]]  # W begins with ones: the shared model
    assert (adapt.extra[OWN_MODEL].tolist(), adapt.extra[SHARED_MODEL].tolist()) == ([[0, 0]], [[2, 4]])
    assert adapt.epochs.tolist() == [5]
    assert train.models[train.start].tolist() == [[1, 4], [2, 4]]
    np.testing.assert_allclose(after.models, [[4.0, 4.0]])  # (1 * 1 + 3 * 5) / 4
    assert after.own.get_all_rows().tolist() == [[1, 1], [5, 5]]
    assert after.mixing.has_row.tolist() == [True, False]
    _, (adapt, _) = run_dialogue(FedALA().round(after, make_context(SIZES)), make_trained([0, 1], np.ones((2, 2)), SIZES), train_reply())
    assert adapt.epochs.tolist() == [1, 5]


def train_reply() -> Any:
    return make_trained([0, 1], [[1, 1], [5, 5]], SIZES)


def test_the_loss_of_the_weights_by_hand() -> None:
    """theta_i = 1, theta = 5, W = .25: the mixture is 2, and of its square the gradient for W is 2 * 2 * (5 - 1)."""
    w = torch.tensor(0.25, requires_grad=True)
    step: Any = SimpleNamespace(
        weights={"w": w},
        trained=["w"],
        extra={OWN_MODEL: {"w": torch.tensor(1.0)}, SHARED_MODEL: {"w": torch.tensor(5.0)}},
        outputs=lambda weights: weights["w"],
        loss=lambda outputs: outputs**2,
    )
    value = ALARule(rate=1.0, adapts=(True,)).objective(step)
    assert float(value.detach()) == pytest.approx(4.0)
    assert float(torch.autograd.grad(value, w)[0]) == pytest.approx(16.0)


def test_weights_are_cut_to_zero_and_one_after_every_step_and_only_those_that_are_adapted_move() -> None:
    weights = [torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.9])]
    for w, slope in zip(weights, ([9.0, 0.1], [1.0, 1.0]), strict=True):
        w.grad = torch.tensor(slope)
    ALARule(rate=1.0, adapts=(True, False)).optimizer(weights, Local()).step()
    np.testing.assert_allclose(weights[0], [0.0, 0.4])
    np.testing.assert_allclose(weights[1], [0.9, 0.9])


def test_the_first_round_is_fedavg_exactly_and_layers_below_the_head_are_the_shared_model_s() -> None:
    world = worlds.make_world("mlp(4)")
    engine = AlteredEngine(pass_unchanged, world)
    ala, avg = play(FedALA(), world=world, plan=EVERYBODY, rounds=2, engine=engine), play(FedAvg(), world=world, plan=EVERYBODY, rounds=2)
    assert ala.states[1].models.tobytes() == avg.states[1].models.tobytes()  # type: ignore[attr-defined]
    assert ala.states[2].models.tobytes() != avg.states[2].models.tobytes()  # type: ignore[attr-defined]
    began: Any = [s.ask for s in engine.asked if isinstance(s.ask, Train) and not s.ask.alone][-1]
    below = world.model.layout.head[0].begin
    models, shared = began.models[began.start], ala.states[1].models  # type: ignore[attr-defined]
    assert (models[:, :below] == shared[:, :below]).all()
    assert (models[:, below:] != shared[:, below:]).any()


def test_adapting_lowers_the_training_loss_and_routes_agree() -> None:
    world = worlds.make_world("mlp(4)")
    engine = AlteredEngine(pass_unchanged, world)
    play(FedALA(layers="all"), world=world, plan=EVERYBODY, rounds=2, engine=engine)
    stamped: Any = next(s for s in engine.asked if isinstance(s.ask, Train) and s.ask.alone)
    found = engine.inner.run([stamped])[0].vectors
    assert found.min() >= 0
    assert found.max() <= 1
    assert (found < 1).any()
    with BatchedEngine(world) as fast:
        np.testing.assert_allclose(fast.run([stamped])[0].vectors, found, atol=1e-4)
