"""Several asks in one phase: each is answered, charged and noted as if it were asked alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Ask, Evaluate, Gradient, Losses, ModelAsk, Reply, Share, Together, Train
from coterie.core.method import Context, Round, done, map_asks, run_together
from coterie.core.serving import Serving
from coterie.core.states import Models
from coterie.data.catalogue import load
from coterie.deploy.messages import AskBatch, from_message
from coterie.deploy.orders import find_asks
from coterie.deploy.server.engine import FederatedEngine
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.world import World
from coterie.evidence.records import FAILED, RUNNING
from coterie.methods.averaging import average_replies
from coterie.methods.fedavg import FedAvg
from coterie.methods.guard import Guard
from coterie.methods.one_model import OneModelMethod
from coterie.methods.own_norm import OwnNorm
from coterie.run.driver import drive, run_script
from coterie.run.lanes import make_lanes
from coterie.testing import worlds
from coterie.testing.fakes import FakeEngine
from coterie.testing.play import PLAN, AlteredEngine, History, drop_replies, get_loop_engine, make_round_context, pass_unchanged, play
from deploy.in_process import InProcess


def hash_reply(reply: Reply) -> str:
    """Every number of a reply, and who was refused."""
    columns = [np.ascontiguousarray(getattr(reply, name)).tobytes() for name in reply.columns()]
    return sha256(b"|".join([reply.clients.tobytes(), *columns, repr(sorted(reply.refused.items())).encode()])).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Asking(OneModelMethod):
    """FedAvg with four asks a round, in one phase or one after the other; what comes back is noted."""

    together: bool = True
    losses: bool = True

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort = ctx.cohort()
        asks: list[Ask[Any]] = [
            Train(cohort, state.models, ctx.local, partial=True),
            Train(cohort[1:], state.models, ctx.local, purpose="again"),
            Gradient(cohort, state.models, share=Share(fold=0)),
        ]
        asks += [Losses(cohort, np.concatenate([state.models, 2 * state.models]))] if self.losses else []
        replies: list[Any] = []
        if self.together:
            replies += yield from Together(*asks)
        else:
            for ask in asks:
                replies.append((yield from ask))
        ctx.note("replies", " ".join(map(hash_reply, replies)))
        return average_replies(state, replies[0], "samples", ctx)


CONDITIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.4},
    "stragglers": {"stragglers": 0.5},
    "signflip": {"attack": "signflip(share=0.3)", "norm_bound": 1.5},
    "noise": {"attack": "noise(share=0.3)", "norm_bound": 1.5},
    "count": {"attack": "count(share=0.3)", "counts": "checked"},
    "speeds": {"speeds": "lognormal", "dropout": 0.2},
}


def compare_records(one: History, other: History) -> None:
    assert one.data == other.data
    for left, right in zip(one.records, other.records, strict=True):
        for name in ("cost", "absences", "discrepancy", "clock"):
            assert repr(getattr(left, name)) == repr(getattr(right, name)), name
        assert repr(left.notes.named) == repr(right.notes.named)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("conditions", CONDITIONS)
def test_each_ask_counts_as_if_it_were_asked_alone(conditions: str, engine: str) -> None:
    plan = replace(PLAN, cohort=5, **CONDITIONS[conditions])
    engines = [get_loop_engine() if engine == "loop" else BatchedEngine(worlds.make_world(), threads=1) for _ in range(2)]
    runs = [play(Asking(together=together), engine=own, plan=plan, rounds=3) for together, own in zip((True, False), engines, strict=True)]
    compare_records(*runs)
    assert (
        len({digest for record in runs[0].records[1:] for digest in record.notes.named["replies"].split()}) == 12
    )  # no two replies are alike


def test_a_client_may_miss_one_of_the_asks() -> None:
    gone = np.array([0, 3])
    for number in range(4):
        runs = [play(Asking(together=t), engine=AlteredEngine(drop_replies(gone, (1,), number))) for t in (True, False)]
        compare_records(*runs)
        missing = {absence.ask for absence in runs[0].records[1].absences}
        assert missing <= {("Train", "Train", "Gradient", "Losses")[number]}


def test_a_guard_judges_every_reply() -> None:
    world = World.from_spec(worlds.make_federation((8,) * 24, identical=True), "mclr")
    plan = replace(PLAN, cohort=None, attack="signflip(share=0.1)")
    runs = [play(Guard(method=Asking(together=t)), world=world, plan=plan) for t in (True, False)]
    compare_records(*runs)
    assert runs[0].states[-1].judged.tolist() == [2] + [4] * 23  # type: ignore[attr-defined]  # the first client trains once a round
    assert len(runs[0].records[-1].notes.named["held_out"]) > 0


def test_norms_of_a_client_stay_with_it_in_every_ask() -> None:
    plan = replace(PLAN, cohort=None, local=PLAN.local.replace(batch_size=None))
    engine = AlteredEngine(pass_unchanged, worlds.make_batch_norm_world())
    play(OwnNorm(method=Asking(losses=False)), world=worlds.make_batch_norm_world(), engine=engine, plan=plan)
    held = [stamped.ask.held for stamped in engine.asked if isinstance(stamped.ask, ModelAsk)]
    assert held == [17] * 6  # of 56 numbers


def test_asks_of_all_lanes_reach_the_engine_in_one_call() -> None:
    calls: list[list[str]] = []

    class Recording(Engine):
        name = "recording"

        def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
            calls.append([type(stamped.ask).__name__ for stamped in asks])
            return get_loop_engine().run(asks)

    lanes = make_lanes([("one", Asking()), ("plain", FedAvg())], (0, 1), worlds.make_world().problem, PLAN)
    drive(lanes, Recording(), 2, lambda lane, record: None)
    assert all(lane.status == RUNNING for lane in lanes)
    whole = ["Train", "Train", "Gradient", "Losses", "Train"] * 2
    assert [call for call in calls if "Train" in call] == [whole] * 2


def test_a_site_gets_one_message() -> None:
    federation = load("heart")
    seen: list[AskBatch] = []

    class Watched(InProcess):
        def exchange(self, batches: Any) -> dict[str, bytes]:
            seen.extend(from_message(data, AskBatch) for data in batches.values())
            return super().exchange(batches)

    sites = {client: [client] for client in federation.ids}
    carrier = Watched(federation, sites)
    engine = FederatedEngine(carrier, {client: client for client in federation.ids}, federation.ids, "a-run")
    world = World.from_spec(federation, "mclr")
    runs = [play(Asking(together=t), world=world, engine=engine, rounds=1) for t in (True, False)]
    compare_records(*runs)
    first = [batch for batch in seen if len(batch.asks) > 1]
    assert 0 < len(first) <= len(federation)
    assert len({batch.ids for batch in first}) == len(first)
    compare_records(runs[0], play(Asking(), world=world, rounds=1))  # and the replies are those of a simulation


def test_an_ask_that_a_method_may_not_make_ends_the_lane() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Peeking(Asking):
        def round(self, state: Models, ctx: Context) -> Round[Models]:
            yield from Together(Gradient(ctx.cohort(), state.models), Evaluate(Serving.one(ctx.cohort(), state.models), "test"))
            return state

    lanes = make_lanes([("peeking", Peeking()), ("plain", FedAvg())], (0,), worlds.make_world().problem, PLAN)
    drive(lanes, get_loop_engine(), 1, lambda lane, record: None)
    assert [lane.status for lane in lanes] == [FAILED, RUNNING]
    assert "may not look at test data" in lanes[0].reason


def test_asynchronous_rounds_have_one_ask() -> None:
    with pytest.raises(UserError, match="a second Train in an asynchronous round"):
        play(Asking(), plan=replace(PLAN, buffer_size=2), rounds=1)


def count_models(ask: Ask[Any], client: int) -> dict[str, Any]:
    return {"losses": np.full(len(ask.models), float(client)), "sizes": 1}  # type: ignore[attr-defined]


def test_replies_are_nested_as_the_asks_are() -> None:
    model, one_ = np.zeros((1, 2), np.float32), np.ones(1, np.int64)

    def script() -> Round[Any]:
        one, (two, none), (three,) = yield from Together(
            Losses(one_, model), Together(Losses(2 * one_, model), Together()), Together(Losses(3 * one_, model))
        )
        assert none == ()
        assert (yield from Together()) == ()
        return [reply.losses[0, 0] for reply in (one, two, three)]

    engine, asked = FakeEngine(count_models), list[Any]()
    assert run_script(script(), engine, watch=asked.append) == [1, 2, 3]
    assert [len(call) for call in engine.calls] == [3]
    assert [ask.clients.tolist() for ask in asked] == [[1], [2], [3]]


def test_scripts_side_by_side_train_when_all_of_them_wait_for_it() -> None:
    model = np.zeros((1, 2), np.float32)

    def ask(number: int, kinds: str) -> Round[str]:
        for kind in kinds:
            local = make_round_context().local
            clients = np.array([number])
            yield from (Train(clients, model, local) if kind == "T" else Losses(clients, model))
        return f"{number}{kinds}"

    def response(ask: Ask[Any], client: int) -> dict[str, Any]:
        return {"vectors": np.zeros(2), "sizes": 1, "steps": 1} if isinstance(ask, Train) else count_models(ask, client)

    engine = FakeEngine(response)
    assert run_script(run_together([ask(0, "LLT"), ask(1, "TL"), ask(2, ""), ask(3, "T")]), engine) == ["0LLT", "1TL", "2", "3T"]
    calls = [["T" if isinstance(s.ask, Train) else "L" for s in call] for call in engine.calls]
    assert calls == [["L"], ["L"], ["T", "T", "T"], ["L"]]
    assert run_script(run_together([]), engine) == []


def test_rounds_side_by_side_are_those_of_each_alone() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Both(Asking):
        side_by_side: bool = True

        def round(self, state: Models, ctx: Context) -> Round[Models]:
            contexts = [replace(ctx, notes=type(ctx.notes)()) for _ in range(3)]
            scripts = [
                Asking().round(state, contexts[0]),
                FedAvg().round(state, contexts[1]),
                map_asks(Asking(together=False).round(state, contexts[2]), lambda ask: replace(ask, alone=True)),  # type: ignore[call-arg]
            ]
            if self.side_by_side:
                after = yield from run_together(scripts)
            else:
                after = []
                for script in scripts:
                    after.append((yield from script))
            ctx.note("inner", str([own.notes.named.get("replies") for own in contexts]))
            return Models(np.mean([own.models for own in after], axis=0))

    runs = [play(Both(side_by_side=side), plan=replace(PLAN, dropout=0.3)) for side in (True, False)]
    assert runs[0].data == runs[1].data
    for left, right in zip(*(run.records for run in runs), strict=True):
        assert left.cost == right.cost
        assert sorted(map(repr, left.absences)) == sorted(map(repr, right.absences))
        assert left.notes.named == right.notes.named


def test_the_order_of_a_run_names_what_is_asked_together() -> None:
    assert find_asks([Asking()]) == ("Train", "Gradient", "Losses")


def test_a_script_that_asks_nothing_side_by_side() -> None:
    assert run_script(run_together([done(1), done(2)]), get_loop_engine()) == [1, 2]
