"""Ditto: its two loops by hand, the shared model, who is served what."""

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.asks import Gradient, Trained
from coterie.core.states import ClientTable
from coterie.methods.catalogue import build
from coterie.methods.ditto import OWN_MODEL, Ditto, DittoState
from coterie.testing import worlds
from coterie.testing.fakes import make_context, run_dialogue
from coterie.testing.play import PLAN, play, run_generator

FULL = replace(PLAN, cohort=None, local=PLAN.local.replace(epochs=1, batch_size=None))  # one step on all samples, everyone


def own(history: Any, round_: int) -> Any:
    return history.states[round_].own.get_all_rows()


def test_the_shared_model_is_fedavgs_exactly() -> None:
    ditto, avg = play(build("ditto(lam=2)"), rounds=3), play(build("fedavg"), rounds=3)
    assert [s.models.tobytes() for s in ditto.states] == [s.models.tobytes() for s in avg.states]  # type: ignore[attr-defined]
    assert [r.cost.bytes_up for r in ditto.records] == [r.cost.bytes_up for r in avg.records]  # each keeps its own model
    assert [r.cost.bytes_down for r in ditto.records] == [r.cost.bytes_down for r in avg.records]


def test_one_step_by_its_definition() -> None:
    """Alg. 1, line 7: v <- v - lr (grad F(v) + lam (v - w)), with w the model received."""
    lam, lr, clients = 3.0, PLAN.local.lr, np.arange(6)
    history = play(build(f"ditto(lam={lam})"), plan=FULL, rounds=2)
    before, shared = own(history, 1), history.states[1].models[0]  # type: ignore[attr-defined]
    gradients = run_generator(_gradient(clients, before)).vectors
    np.testing.assert_allclose(own(history, 2), before - lr * (gradients + lam * (before - shared)), atol=1e-6)


def _gradient(clients: Any, models: Any) -> Any:
    return (yield from Gradient(clients, models, start=np.arange(len(clients))))


def test_held_so_strongly_that_it_forgets_itself() -> None:
    """With lr * lam = 1 a step leads to w - lr grad F(v): where v was drops out but for its gradient; with v = w it is FedSGD's step."""
    history = play(build("ditto(lam=10)"), plan=FULL, rounds=1)
    start = history.states[0].models[0]  # type: ignore[attr-defined]
    gradients = run_generator(_gradient(np.arange(6), np.repeat(start[None], 6, axis=0))).vectors
    np.testing.assert_allclose(own(history, 1), start - PLAN.local.lr * gradients, atol=1e-6)


def test_not_held_at_all_it_is_local_training() -> None:
    """With full batches there is nothing to shuffle, and a client's own model never hears of the others'."""
    ditto, local = play(build("ditto(lam=0)"), plan=FULL, rounds=3), play(build("local(until=participation)"), plan=FULL, rounds=3)
    np.testing.assert_allclose(own(ditto, 3), local.states[-1].models.get_all_rows(), atol=1e-6)  # type: ignore[attr-defined]


def test_its_own_model_may_take_more_epochs() -> None:
    more = own(play(build("ditto(own_epochs=3)"), plan=FULL, rounds=1), 1)
    once = own(play(build("ditto"), plan=FULL, rounds=1), 1)
    assert np.abs(more - once).max() > 1e-3


def test_who_never_took_part_is_served_the_shared_model() -> None:
    d = 2
    state = DittoState(np.zeros((1, d), np.float32), ClientTable.empty(2, np.zeros(d, np.float32)), np.zeros(2, np.bool_))
    ctx = make_context([1, 1, 1])  # the third has joined since
    reply = Trained(np.array([1]), np.full((1, d), 4, np.float32), np.array([1]), np.array([1]), more=np.full((1, 1, d), 7, np.float32))
    after, (ask,) = run_dialogue(Ditto().round(state, ctx), reply)
    assert ask.extra[OWN_MODEL].shape == (3, d)
    serving = run_generator(Ditto().serve(after, np.arange(3), ctx))
    assert serving.models[serving.rows].tolist() == [[4, 4], [7, 7], [4, 4]]


def test_on_a_network_with_the_batched_engine() -> None:
    from coterie.engines.batched import BatchedEngine

    world = worlds.make_world("mlp(4)")
    with BatchedEngine(world) as engine:
        fast = play(build("ditto"), world=world, engine=engine, rounds=3)
    np.testing.assert_allclose(own(fast, 3), own(play(build("ditto"), world=world, rounds=3), 3), atol=1e-5)
