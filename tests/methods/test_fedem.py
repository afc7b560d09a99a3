"""FedEM and FedRC: mixture weights, class shares, averages and servings, with numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Train, Trained
from coterie.core.serving import Mixture
from coterie.data.federation import Federation
from coterie.engines.world import World
from coterie.methods.catalogue import build
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedem import FedEM, MixtureState
from coterie.methods.fedrc import FedRC
from coterie.methods.reporting_rules import CLASS_SHARES, WEIGHTS, MixtureRule
from coterie.testing import worlds
from coterie.testing.fakes import make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, drop_replies, make_round_context, play, run_generator

SIZES = [1, 3, 2]
TWO = FedEM(groups=2)


def state(weights: Any = ((0.0, 0.0), (0.9, 0.1), (0.5, 0.5)), shares: Any = None) -> MixtureState:
    return MixtureState(
        np.array([[0, 0], [9, 9]], np.float32), np.array(weights), np.zeros((2, 0)) if shares is None else np.array(shares, np.float64)
    )


def sent(clients: Any, first: Any, second: Any, summary: Any) -> Trained:
    """Clients that trained both models to these, with these mean responsibilities."""
    reply = make_trained(clients, first, [SIZES[i] for i in clients])
    return replace(reply, more=np.array(second, np.float32)[:, None, :], summary=np.array(summary, np.float64))


REPLY = sent([0, 1], [[4, 0], [0, 8]], [[8, 8], [12, 4]], [[0.7, 0.3], [0.2, 0.8]])


def test_round_by_hand() -> None:
    # Both models by samples (1 and 3): (4 + 0, 0 + 24) / 4 = (1, 6) and (8 + 36, 8 + 12) / 4 = (11, 5), whatever the responsibilities.
    ctx = make_context(SIZES)
    after, (ask,) = run_dialogue(TWO.round(state(), ctx), REPLY)
    np.testing.assert_allclose(after.models, [[1, 6], [11, 5]])
    np.testing.assert_allclose(after.weights, [[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]])
    assert ask.local.rule == MixtureRule(components=2)
    np.testing.assert_allclose(ask.extra[WEIGHTS], [[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]])  # even before a client has taken part
    assert ask.extra["component 1"].tolist() == [[9, 9]] * 3
    assert ask.kept == (WEIGHTS,)
    assert ctx.notes.mixing is not None
    np.testing.assert_allclose(ctx.notes.mixing.replies, [[0.25, 0.75]] * 2)
    assert ctx.notes.named["largest_weight"] == pytest.approx(0.75)
    assert TWO.members(after).tolist() == [0, 1, 0]
    assert TWO.members(state()).tolist() == [-1, 0, 0]


def test_damped_as_in_the_authors_code() -> None:
    # Client 2 (2 of 6 samples) did not answer and counts as unchanged: 4/6 of (1, 6), and 4/6 of (11, 5) with 2/6 of (9, 9).
    ctx = make_context(SIZES)
    after, _ = run_dialogue(replace(TWO, damped=True).round(state(), ctx), REPLY)
    np.testing.assert_allclose(after.models, [[2 / 3, 4], [(44 + 18) / 6, (20 + 18) / 6]], rtol=1e-6)
    assert ctx.notes.mixing is not None
    np.testing.assert_allclose(ctx.notes.mixing.before, np.eye(2) / 3)
    alike, _ = run_dialogue(replace(TWO, damped=True, weighting="uniform").round(state(), make_context(SIZES)), REPLY)
    np.testing.assert_allclose(alike.models[0], [4 / 3, 8 / 3], rtol=1e-6)


def test_no_answer_no_change() -> None:
    before = state()
    assert run_dialogue(TWO.round(before, make_context(SIZES)), remove_clients(REPLY))[0] is before


@pytest.mark.parametrize("spec", ["fedem(groups=1)", "fedem(groups=1,weighting=uniform)", "fedrc(groups=1)"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_model_is_fedavg_exactly(spec: str, dropout: float) -> None:
    plan, method = replace(PLAN, dropout=dropout), build(spec)
    ours, theirs = play(method, plan=plan, rounds=4), play(FedAvg(weighting=method.weighting), plan=plan, rounds=4)  # type: ignore[attr-defined]
    assert [s.models.tobytes() for s in ours.states] == [s.models.tobytes() for s in theirs.states]  # type: ignore[attr-defined]
    assert [r.cost for r in ours.records] == [r.cost for r in theirs.records]
    two = play(build(spec.replace("groups=1", "groups=2")), plan=plan, rounds=4)
    assert two.states[-1].models[0].tobytes() != theirs.states[-1].models[0].tobytes()  # type: ignore[attr-defined]


def test_shares_by_hand() -> None:
    # Sums of gamma by class: n_i times the means. Model 0: 1 * (.5, .2) + 3 * (.1, 0) = (.8, .2), so shares (.8, .2);
    # model 1: 1 * (.1, .2) + 3 * (.4, .5) = (1.3, 1.7) of 3.
    means = [[0.5, 0.2, 0.1, 0.2], [0.1, 0.0, 0.4, 0.5]]
    reply = replace(REPLY, summary=np.array(means))
    before = state(shares=[[0.5, 0.5], [0.9, 0.1]])
    after, (ask,) = run_dialogue(FedRC(groups=2).round(before, make_context(SIZES)), reply)
    np.testing.assert_allclose(after.shares, [[0.8, 0.2], [1.3 / 3, 1.7 / 3]])
    np.testing.assert_allclose(after.weights[:2], [[0.7, 0.3], [0.1, 0.9]])
    assert ask.local.rule == MixtureRule(components=2, classes=2)
    np.testing.assert_allclose(ask.extra[CLASS_SHARES], [[0.5, 0.5, 0.9, 0.1]] * 3)
    # A class that a model is responsible for no sample of has the floor, not zero: its logarithm is finite.
    none = replace(REPLY, summary=np.array([[0.5, 0.0, 0.2, 0.3], [0.5, 0.0, 0.2, 0.3]]))
    floored, _ = run_dialogue(FedRC(groups=2).round(before, make_context(SIZES)), none)
    assert floored.shares[0, 1] == pytest.approx(1e-8 / (2 + 1e-8))


def test_serving_is_the_clients_own_mixture() -> None:
    """Known clients are not asked; one that has not taken part runs an E-step for itself, charged to nobody."""
    found = sent([0], [[0, 0]], [[9, 9]], [[0.1, 0.9]])
    serving, (ask,) = run_dialogue(TWO.serve(state(), np.array([2, 0, 1]), make_context(SIZES)), found)
    assert isinstance(ask, Train)
    assert (ask.clients.tolist(), ask.alone, ask.local.rule) == ([0], True, MixtureRule(components=2, trains=False))
    assert isinstance(serving.combiner, Mixture)
    assert serving.rows.tolist() == [-1] * 3
    np.testing.assert_allclose(serving.combiner.weights, [[0.5, 0.5], [0.1, 0.9], [0.9, 0.1]])
    # (.1 of .8 + .9 of .2, .1 of .2 + .9 of .8) for the client in the second place
    np.testing.assert_allclose(serving.combiner.combine(np.array([[[0.8, 0.2]], [[0.2, 0.8]]]), 1), [[0.26, 0.74]])
    hard, _ = run_dialogue(replace(TWO, predict="hard").serve(state(), np.array([2, 0, 1]), make_context(SIZES)), found)
    assert hard.rows.tolist() == [0, 1, 0]
    silent: Any
    silent, _ = run_dialogue(TWO.serve(state(), np.array([0]), make_context(SIZES)), remove_clients(found))
    assert silent.combiner.weights.tolist() == [[0.5, 0.5]]


def test_a_newcomers_weights_are_those_of_an_e_step_from_even_ones() -> None:
    world = worlds.make_newcomer_world()
    last: Any = play(TWO, rounds=3).states[-1]
    serving = run_generator(TWO.serve(last, np.array([7]), make_round_context(world)), world)
    rows = world.federation.train[7]
    losses = np.stack([_compute_losses(model, world.federation, rows) for model in last.models], axis=1)
    gamma = np.exp(-losses) / np.exp(-losses).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(serving.combiner.weights, [gamma.mean(axis=0)], atol=1e-6)  # type: ignore[union-attr]


def _compute_losses(model: Any, federation: Federation, rows: Any) -> Any:
    """(m,) of softmax regression, in numpy."""
    outputs = federation.x[rows] @ model[:15].reshape(3, 5).T + model[15:]
    return np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(len(rows)), federation.y[rows]]


def test_a_client_that_is_silent_in_a_round_keeps_its_weights() -> None:
    first: Any = play(TWO, plan=replace(PLAN, cohort=None), rounds=1).states[-1]
    engine = AlteredEngine(drop_replies(np.array([3]), (2,)))
    second: Any = play(TWO, plan=replace(PLAN, cohort=None), rounds=2, engine=engine).states[-1]
    assert second.weights[3].tolist() == first.weights[3].tolist()
    assert (second.weights[[0, 1, 2, 4, 5]] != first.weights[[0, 1, 2, 4, 5]]).any()
    np.testing.assert_allclose(second.weights.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", ["fedem", "fedrc"])
def test_models_part_where_clients_differ(name: str) -> None:
    """Two kinds of clients with swapped labels: each comes to have nearly all its weight on a model of its own kind."""
    made = worlds.make_federation((40,) * 6)
    y = np.where(made.x[:, 0] > 0, 0, 1)
    for client in (3, 4, 5):
        for part in (made.train, made.test):
            y[part[client]] = 1 - y[part[client]]
    world = World.from_spec(made.replace(y=y), "mclr")
    plan = replace(PLAN, cohort=None, local=replace(PLAN.local, epochs=5, lr=0.5))
    last: Any = play(build(f"{name}(groups=2)"), world=world, plan=plan, rounds=20).states[-1]
    groups = last.weights.argmax(axis=1)
    assert len(set(groups[:3])) == len(set(groups[3:])) == 1
    assert groups[0] != groups[3]
    assert last.weights.max(axis=1).min() > 0.8


def test_one_class_is_refused() -> None:
    one = World.from_spec(worlds.make_federation().replace(y=np.zeros(74, np.int64), classes=("a",), central=None), "mclr")
    with pytest.raises(UserError, match="only one"):
        play(build("fedrc"), world=one)


def test_the_number_of_models_may_be_asked_for() -> None:
    start = play(FedEM(groups="auto", most=2), rounds=0)
    chosen = start.records[0].notes.choice
    assert chosen is not None
    assert chosen.how == "structure"
    assert len(start.states[0].models) == chosen.k in (1, 2)  # type: ignore[attr-defined]
    assert len(play(FedEM(groups=50)).states[0].models) == 6  # type: ignore[attr-defined]
