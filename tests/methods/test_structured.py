"""Structured: groups by the test of structure, tested again as the model improves, refined by losses; numbers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie.core.asks import Gradient, Losses, LossTable, Train
from coterie.core.method import Context
from coterie.core.tasks import Task
from coterie.methods.fedavg import FedAvg
from coterie.methods.structured import Structured, StructuredState
from coterie.testing.fakes import FakeEngine, make_context, make_trained, remove_clients, run_dialogue
from coterie.testing.play import PLAN, AlteredEngine, pass_unchanged, play, run_generator

N = 24
TRUTH = np.arange(N) % 2
SIZES = [1, 3, 2, 2]
REPLY = make_trained(range(4), [[1, 1], [3, 3], [6, 6], [8, 8]], SIZES)


def make_engine(separation: float) -> FakeEngine:
    """Clients of two kinds whose gradients are so far apart; the noise of a half is 0.1. A trained model is the client's number."""
    noise = np.random.default_rng(0).normal(0, 0.1, (2, N, 4))

    def answer(ask: Any, client: int) -> dict[str, Any]:
        if isinstance(ask, Train):
            return {"vectors": np.full(4, client, np.float32), "sizes": 10 + client, "steps": 1}
        assert isinstance(ask, Gradient)
        assert ask.share is not None
        assert ask.share.fold is not None
        mean = noise[ask.share.fold, client] + separation * np.eye(4)[TRUTH[client]]
        return {"vectors": mean.astype(np.float32), "sizes": 20, "losses": 1.0}

    return FakeEngine(answer)


def context(round_: int = 1) -> Context:
    """A round of a regression: gradients are asked for by half, and not class by class."""
    return replace(make_context([20] * N, 4, round_=round_), task=Task("regression"))


def one_model() -> StructuredState:
    return StructuredState(np.zeros((1, 4), np.float32), np.zeros(N, np.int64), False, 0)


def test_groups_come_from_the_test_at_the_start() -> None:
    start = Structured().start(lambda which=0: np.zeros(4, np.float32), context(0))
    found = run_generator(start, engine=make_engine(5.0))
    assert found.distinct
    assert len(found.models) == 2
    assert len({(a, b) for a, b in zip(found.groups.tolist(), TRUTH.tolist(), strict=True)}) == 2


def test_only_distinct_groups_are_used_where_that_is_asked() -> None:
    start = Structured(distinct=True).start(lambda which=0: np.zeros(4, np.float32), context(0))
    found = run_generator(start, engine=make_engine(0.0))
    assert (len(found.models), found.distinct, found.groups.max()) == (1, False, 0)


@pytest.mark.parametrize("round_", range(1, 10))
def test_the_test_is_repeated_at_rounds_2_4_8(round_: int) -> None:
    engine = make_engine(0.0)
    run_generator(Structured(distinct=True).round(one_model(), context(round_)), engine=engine, round_=round_)
    asked = [type(stamped.ask) for call in engine.calls for stamped in call]
    assert asked == [Gradient, Gradient, Train] if round_ in (2, 4, 8) else asked == [Train]


def test_groups_found_late_share_out_the_models_of_the_round() -> None:
    found = run_generator(Structured().round(one_model(), context(2)), engine=make_engine(5.0), round_=2)
    assert (found.distinct, found.age) == (True, 1)
    for kind in (0, 1):
        own = np.flatnonzero(kind == TRUTH)
        expected = np.sum(own * (10 + own)) / np.sum(10 + own)  # by samples
        assert found.models[found.groups[own]] == pytest.approx(np.full((len(own), 4), expected), rel=1e-6)


def two_models(age: int, groups: list[int]) -> StructuredState:
    return StructuredState(np.array([[0, 0], [9, 9]], np.float32), np.array(groups), True, age)


def test_once_models_differ_clients_are_clustered_by_their_losses_and_clusters_get_different_models() -> None:
    """Client 1 loses least with model 0, as clients 0 and 2 do; of the two clusters one gets model 1. Client 3 has hard samples:
    what it loses more under both models makes no cluster of it."""
    ctx = make_context(SIZES)
    table = LossTable(np.array([0, 1, 3]), np.array([[0.1, 0.9], [0.3, 0.4], [5.2, 5.2]]), np.array([1, 3, 2]))
    after, (losses, train) = run_dialogue(Structured().round(two_models(2, [0, 0, 0, 1]), ctx), table, REPLY)
    assert isinstance(losses, Losses)
    assert train.start.tolist() == [0, 1, 0, 1]  # client 2 did not answer, and stays
    np.testing.assert_allclose(after.models, [[13 / 3, 13 / 3], [5.0, 5.0]])  # (1 + 2 * 6) / 3, (3 * 3 + 2 * 8) / 5
    assert after.groups.tolist() == [0, 1, 0, 1]
    assert ctx.notes.named["switched"] == 1
    assert after.settled == 0


def test_losses_are_asked_until_no_client_has_moved_for_three_rounds() -> None:
    table = LossTable(np.arange(4), np.array([[0.1, 0.9], [0.1, 0.8], [0.9, 0.1], [0.8, 0.1]]), np.array(SIZES))
    state = two_models(2, [0, 0, 1, 1])
    for settled in (1, 2, 3):
        state, asks = run_dialogue(Structured().round(state, make_context(SIZES)), table, REPLY)
        assert (state.settled, len(asks)) == (settled, 2)
    _, (train,) = run_dialogue(Structured().round(state, make_context(SIZES)), REPLY)
    assert isinstance(train, Train)


def test_clients_outside_the_cohort_are_asked_too_for_groups_need_members() -> None:
    ctx = make_context(SIZES, plan=replace(make_context(SIZES).plan, cohort=2))
    first: Any = next(Structured().round(two_models(2, [0, 0, 1, 1]), ctx))
    assert isinstance(first, Losses)
    assert first.clients.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("age", "settings"), [(1, {}), (2, {"refine": False}), (2, {"assign": "random"})])
def test_before_that_or_without_refinement_groups_stay(age: int, settings: dict[str, Any]) -> None:
    after, (train,) = run_dialogue(Structured(**settings).round(two_models(age, [0, 0, 1, 1]), make_context(SIZES)), REPLY)
    assert train.start.tolist() == after.groups.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(after.models, [[2.5, 2.5], [7.0, 7.0]])
    assert after.age == age + 1


def test_a_newcomer_is_placed_by_its_losses_and_one_without_an_answer_in_the_largest_group() -> None:
    table = LossTable(np.array([3]), np.array([[0.9, 0.1]]), np.array([2]))
    ctx = make_context(SIZES)
    state = StructuredState(np.array([[0, 0], [9, 9]], np.float32), np.array([0, 0, 1]), True, 3)
    serving, (ask,) = run_dialogue(Structured().serve(state, np.arange(4), ctx), table)
    assert ask.clients.tolist() == [3]
    assert serving.rows.tolist() == [0, 0, 1, 1]
    silent, _ = run_dialogue(Structured().serve(state, np.arange(4), ctx), remove_clients(table))
    assert silent.rows.tolist() == [0, 0, 1, 0]


def test_one_group_is_fedavg_exactly() -> None:
    """Six clients are too few for distinct groups: at rounds 2 and 4 the test is repeated, and changes nothing."""
    engine = AlteredEngine(pass_unchanged)
    one = play(Structured(distinct=True), plan=PLAN, rounds=4, engine=engine)
    avg = play(FedAvg(), plan=PLAN, rounds=4)
    assert [s.models.tobytes() for s in one.states] == [s.models.tobytes() for s in avg.states]  # type: ignore[attr-defined]
    assert not any(isinstance(s.ask, Losses) for s in engine.asked)
