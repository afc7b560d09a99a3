"""FeSEM-MA (Section 5.1): comparing and averaging matched neurons."""

from dataclasses import replace

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.arrays import Floats
from coterie.core.asks import Train
from coterie.core.layout import Layout, Slice
from coterie.core.method import Context, Round
from coterie.core.model import make_layout
from coterie.core.plan import Plan
from coterie.core.roster import Roster
from coterie.methods.catalogue import build
from coterie.methods.fesem import FeSEM, FeSEMState
from coterie.methods.fesem_ma import MatchedFeSEM
from coterie.models.mlp import Mlp
from coterie.testing import worlds
from coterie.testing.fakes import FakeEngine
from coterie.testing.play import PLAN, play, run_generator

LAYOUT = make_layout(Mlp((1, 2, 1)))  # hidden weights, hidden biases, output weights, output bias: 2 + 2 + 2 + 1 numbers
A = [5.0, 0, 0, 5, 1, 2, 0]
A_TURNED = [0.0, 5, 5, 0, 2, 1, 0]  # the same function: its two neurons in the other order
B = [-5.0, 0, 0, -5, 1, 2, 0]
B_TURNED = [0.0, -5, -5, 0, 2, 1, 0]


def context(round_: int, clients: int) -> Context:
    return Context(Roster.from_sizes([f"c{i}" for i in range(clients)], np.ones(clients, dtype=np.int64)), LAYOUT, Plan(), 0, round_)


def round_of(method: FeSEM, state: FeSEMState, answers: list[list[float]], round_: int = 2) -> FeSEMState:
    engine = FakeEngine(lambda ask, client: {"vectors": answers[client], "sizes": 1, "steps": 1})
    return run_generator(method.round(state, context(round_, len(answers))), worlds.make_world(), engine=engine)


def centres(*models: list[float], members: list[int]) -> FeSEMState:
    stack: Floats = np.array(models, dtype=np.float32)
    return FeSEMState(stack, np.array(members), np.zeros(7, dtype=np.float32), stack)


def test_matched_models_are_compared_and_averaged() -> None:
    # Turned models have matching cost 0 with their own kind: both As end at A exactly, both Bs at B. By index an A turned round is as
    # far from A as from B in the hidden layer (4 * 25 each), and the average of A and A turned is another function.
    state = centres(A, B, members=[0, 0, 1, 1])
    matched = round_of(MatchedFeSEM(groups=2), state, [A, A_TURNED, B_TURNED, B])
    assert matched.groups.tolist() == [0, 0, 1, 1]
    assert matched.models.tolist() == [A, B]
    plain = round_of(FeSEM(groups=2), state, [A, A_TURNED, B_TURNED, B])
    assert plain.models[0].tolist() == [2.5, 2.5, 2.5, 2.5, 1.5, 1.5, 0]


def test_the_e_step_goes_by_the_matching_cost() -> None:
    # Turned B belongs with B (cost 0), though it was trained from centre A.
    matched = round_of(MatchedFeSEM(groups=2), centres(A, B, members=[0, 0, 1]), [A, B_TURNED, B])
    assert matched.groups.tolist() == [0, 1, 1]
    assert matched.models.tolist() == [A, B]


def test_the_warm_up_is_matched_with_the_common_start() -> None:
    start = replace(centres(A, members=[-1] * 4), first=np.zeros((0, 7), dtype=np.float32), initial=np.array(A, dtype=np.float32))
    ctx = context(1, 4)
    answers = [A, A_TURNED, [*A[:-1], 9.0], [*A_TURNED[:-1], 9.0]]
    engine = FakeEngine(lambda ask, client: {"vectors": answers[client], "sizes": 1, "steps": 1})
    state = run_generator(MatchedFeSEM(groups=2).round(start, ctx), worlds.make_world(), engine=engine)
    assert state.groups.tolist() == [0, 0, 1, 1]  # by index k-means would part them by the order of their neurons
    assert state.models.tolist() == [A, [*A[:-1], 9.0]]
    assert ctx.notes.named["reordered"] == 2


@pytest.mark.parametrize(("method", "averaged"), [(MatchedFeSEM, A), (FeSEM, [2.5, 2.5, 2.5, 2.5, 1.5, 1.5, 0])])
def test_clients_apart_first_train_from_models_of_their_own(method: type[FeSEM], averaged: list[float]) -> None:
    """Client i starts from init(1 + i). Untrained, they are A and A turned: matched with w_0 = A they average to A, by index to neither."""
    initial = [A, A, A_TURNED, B]
    rule, ctx = method(groups=1, apart=True), context(1, 2)
    sent: list[list[float]] = []

    def answer(ask: Train, client: int) -> dict[str, object]:
        row = int(ask.start[int(np.flatnonzero(ask.clients == client)[0])])
        sent.append(ask.models[row].tolist())
        return {"vectors": ask.models[row], "sizes": 1, "steps": 1}

    def script() -> Round[FeSEMState]:
        state = yield from rule.start(lambda i=0: np.array(initial[i], dtype=np.float32), ctx)
        assert rule.central(state).names == ("global",)
        return (yield from rule.round(state, ctx))

    state = run_generator(script(), worlds.make_world(), engine=FakeEngine(answer))
    assert sent == [A, A_TURNED]
    assert state.models.tolist() == [averaged]
    assert state.initial.tolist() == A


def test_without_hidden_neurons_it_is_fesem() -> None:
    plan = replace(PLAN, cohort=None)
    assert play(MatchedFeSEM(), plan=plan).data == play(FeSEM(), plan=plan).data


@pytest.mark.parametrize("model", ["mlp(6,5)", "mlp(4)"])
def test_on_a_network_it_trains(model: str) -> None:
    history = play(build("fesem_ma(groups=2)"), world=worlds.make_world(model), rounds=3)
    assert isinstance(history.states[-1], FeSEMState)
    assert np.isfinite(history.states[-1].models).all()
    assert len(history.states[-1].models) == 2


def test_refusals() -> None:
    with pytest.raises(UserError, match="whole models"):
        MatchedFeSEM(assign_on="sketch")
    layout = Layout((Slice("embedding.weight", (9, 4), 0, "weight"), Slice("out.weight", (2, 4), 36, "weight")))
    with pytest.raises(UserError, match="use fesem instead"):
        MatchedFeSEM().start(lambda i=0: np.zeros(44, dtype=np.float32), replace(context(0, 2), layout=layout))
