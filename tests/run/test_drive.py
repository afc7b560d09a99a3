from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from coterie.core.asks import Evaluate, Gradient, Train
from coterie.core.errors import UserError
from coterie.core.method import Context, Method, Round
from coterie.core.plan import Plan
from coterie.core.serving import Serving
from coterie.core.states import Models, to_bytes
from coterie.engines.engine import Stamped
from coterie.engines.loop import LoopEngine
from coterie.methods.fedavg import FedAvg, averaged
from coterie.methods.fedprox import FedProx
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.one_model import OneModelMethod
from coterie.run.drive import drive, waves
from coterie.run.lanes import DIVERGED, FAILED, RUNNING, Lane, RoundRecord, lanes_of
from coterie.testing import worlds
from coterie.testing.play import LOOP, PLAN, Altered, absent


@dataclass(frozen=True, kw_only=True)
class Probing(OneModelMethod):
    """FedAvg that asks for gradients first, as FedSim does."""

    probes: int = 1

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort = ctx.cohort()
        for _ in range(self.probes):
            yield from Gradient(cohort, state.models)
        trained = yield from Train(cohort, state.models, ctx.local)
        return averaged(state, trained, "samples", ctx)


@dataclass(frozen=True, kw_only=True)
class Raising(FedAvg):
    """Fails in the middle of a round."""

    error: type[Exception] = RuntimeError
    at: int = 2

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        after = yield from super().round(state, ctx)
        if ctx.round_ == self.at:
            raise self.error("on purpose")
        return after


class Recording:
    """The loop engine, keeping what it was asked, call by call."""

    name = "recording"

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, int, int]]] = []

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        self.calls.append([(type(s.ask).__name__, s.lane, s.round_) for s in asks])
        return LOOP.run(asks)


class Watcher:
    """What each lane left, round by round."""

    def __init__(self) -> None:
        self.data: dict[tuple[str, int], list[bytes]] = {}
        self.records: dict[tuple[str, int], list[RoundRecord]] = {}

    def __call__(self, lane: Lane, record: RoundRecord) -> None:
        assert lane.state is not None
        self.data.setdefault((lane.label, lane.seed), []).append(to_bytes(lane.state))
        self.records.setdefault((lane.label, lane.seed), []).append(record)


def go(
    methods: list[tuple[str, Method[Any]]], *, seeds: tuple[int, ...] = (0,), engine: Any = LOOP, rounds: int = 2, **plan: Any
) -> tuple[Watcher, list[Lane]]:
    lanes = lanes_of(methods, seeds, worlds.problem(), replace(PLAN, **plan))
    watcher = Watcher()
    drive(lanes, engine, rounds, watcher)
    return watcher, lanes


@pytest.mark.parametrize("every", [1, 99])
def test_training_runs_when_every_lane_waits_for_it(every: int) -> None:
    engine = Recording()
    methods: list[tuple[str, Method[Any]]] = [("plain", FedAvg()), ("probing", Probing()), ("twice", Probing(probes=2))]
    go(methods, seeds=(0, 1), engine=engine, rounds=3, evaluate_every=every)
    training = [call for call in engine.calls if call and call[0][0] == "Train"]
    assert len(training) == 3
    for round_, call in enumerate(training, start=1):
        assert call == [("Train", lane, round_) for lane in range(6)]
    assert all(len({kind == "Train" for kind, _, _ in call}) <= 1 for call in engine.calls)  # never mixed with cheap asks


def test_lanes_without_company_end_early_and_the_rest_goes_on() -> None:
    engine = Recording()
    watcher, _ = go([("fails", Raising()), ("plain", FedAvg())], engine=engine, rounds=4)
    assert [len(call) for call in engine.calls if call and call[0][0] == "Train"] == [2, 2, 1, 1]
    assert len(watcher.data["plain", 0]) == 5


def test_a_raising_lane_is_recorded_and_the_others_keep_their_bits() -> None:
    alone, _ = go([("plain", FedAvg())], rounds=4)
    watcher, lanes = go([("fails", Raising()), ("plain", FedAvg())], rounds=4)
    assert lanes[0].status == FAILED
    assert lanes[0].reason == "in round 2: RuntimeError: on purpose"
    assert len(watcher.data["fails", 0]) == 2  # the start and round 1 are kept
    assert lanes[1].status == RUNNING
    assert watcher.data["plain", 0] == alone.data["plain", 0]


def test_a_users_mistake_is_not_swallowed() -> None:
    with pytest.raises(UserError, match="on purpose"):
        go([("fails", Raising(error=UserError))])


def test_nor_is_a_failure_to_write_evidence_down() -> None:
    lanes = lanes_of([("plain", FedAvg())], (0,), worlds.problem(), PLAN)

    def watch(lane: Lane, record: RoundRecord) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        drive(lanes, LOOP, 2, watch)
    assert lanes[0].status == RUNNING


def exploding(stamped: Stamped, number: int, reply: Any) -> Any:
    """Lane 0's clients all run away in round 2."""
    if isinstance(stamped.ask, Train) and (stamped.lane, stamped.round_) == (0, 2):
        return replace(reply, vectors=np.full_like(reply.vectors, np.inf))
    return reply


def test_a_diverging_lane_is_recorded_and_the_others_keep_their_bits() -> None:
    alone, _ = go([("b", FedProx())], rounds=3)
    watcher, lanes = go([("a", FedAvg()), ("b", FedProx())], engine=Altered(exploding), rounds=3)
    assert (lanes[0].status, lanes[0].round_) == (DIVERGED, 1)
    assert lanes[0].reason == "in round 2 no client sent a finite model"
    assert lanes[1].status == RUNNING
    assert watcher.data["b", 0] == alone.data["b", 0]


def test_a_real_explosion() -> None:
    local = PLAN.local.but(lr=3e38, epochs=20)
    _, lanes = go([("a", FedAvg())], rounds=3, local=local, cohort=None)
    assert lanes[0].status == DIVERGED


def test_silence_is_not_divergence() -> None:
    watcher, lanes = go([("a", FedAvg())], engine=Altered(absent(np.arange(6), (1, 2))), rounds=3)
    assert lanes[0].status == RUNNING
    assert watcher.data["a", 0][0] == watcher.data["a", 0][2] != watcher.data["a", 0][3]


def test_driving_in_pieces_is_driving_at_once() -> None:
    whole, _ = go([("a", FedAvg()), ("b", Probing())], seeds=(0, 1), rounds=3, evaluate_every=1)
    lanes = lanes_of([("a", FedAvg()), ("b", Probing())], (0, 1), worlds.problem(), replace(PLAN, evaluate_every=1))
    pieces = Watcher()
    for until in (0, 1, 1, 3):
        drive(lanes, LOOP, until, pieces)
    assert pieces.data == whole.data


def test_evaluates_when_due_and_at_the_end() -> None:
    watcher, _ = go([("a", FedAvg())], rounds=5, evaluate_every=2)
    assert [r.evaluated is not None for r in watcher.records["a", 0]] == [True, False, True, False, True, False]


def test_the_last_round_is_always_evaluated() -> None:
    lanes = lanes_of([("a", FedAvg())], (0,), worlds.problem(), replace(PLAN, rounds=3, evaluate_every=2))
    watcher = Watcher()
    drive(lanes, LOOP, 3, watcher)
    assert [r.round_ for r in watcher.records["a", 0] if r.evaluated is not None] == [0, 2, 3]


def test_a_record_holds_the_evidence_of_its_round() -> None:
    watcher, _ = go([("a", FedAvg()), ("tuned", FineTuned(method=FedAvg()))], evaluate_every=1)
    start, first, _ = watcher.records["a", 0]
    assert start.cost.messages == 0
    assert start.mixing is None
    assert first.cost.messages == 8  # four clients asked, four answers
    assert first.mixing is not None
    assert first.mixing.clients.tolist() == Context(worlds.problem().roster, worlds.problem().layout, PLAN, 0, 1).cohort().tolist()
    assert first.evaluated is not None
    assert first.evaluated.clients.tolist() == list(range(6))  # all clients count from round 0
    assert first.central is not None
    assert first.central[0] == ("global",)
    assert first.central[1].sizes.tolist() == [10]
    assert first.discrepancy > 0
    assert set(first.seconds) == {"clients", "server"}
    assert watcher.records["tuned", 0][1].cost == first.cost  # serving is not charged to the round
    assert watcher.data["tuned", 0] == watcher.data["a", 0]


def test_discrepancy_by_hand() -> None:
    engine = Altered(lambda s, n, r: replace(r, vectors=s.ask.models[s.ask.start] + 2) if isinstance(s.ask, Train) else r)
    watcher, _ = go([("a", FedAvg())], engine=engine, rounds=1)
    assert watcher.records["a", 0][1].discrepancy == pytest.approx(4 * np.sqrt(18 * 4.0))  # four clients, d = 18, each entry moved by 2


def test_dropouts_do_not_disturb_measuring() -> None:
    engine = Altered(lambda stamped, number, reply: reply)
    watcher, _ = go([("tuned", FineTuned(method=FedAvg()))], engine=engine, dropout=0.6, evaluate_every=1, cohort=None)
    assert all(r.evaluated is not None and len(r.evaluated) == 6 for r in watcher.records["tuned", 0])
    training = [s.ask for s in engine.asked if isinstance(s.ask, Train)]
    assert [len(ask.clients) for ask in training if ask.purpose == "fine-tune"] == [6, 6, 6]
    assert all(len(ask.clients) < 6 for ask in training if ask.purpose == "train")


def test_lanes_go_seed_by_seed() -> None:
    lanes = lanes_of([("a", FedAvg()), ("b", FedProx())], (3, 5), worlds.problem(), PLAN)
    assert [(lane.number, lane.label, lane.seed) for lane in lanes] == [(0, "a", 3), (1, "b", 3), (2, "a", 5), (3, "b", 5)]


def test_waves_are_whole_seeds_under_the_budget() -> None:
    lanes = lanes_of([("a", FedAvg()), ("b", FedProx())], range(5), worlds.problem(), PLAN)
    seed = 2 * 4 * 18 * (3 * 4 + 8)  # two lanes of a model of 18 with a cohort of 4

    def sizes(budget: int) -> list[int]:
        made = list(waves(lanes, budget))
        assert [lane for wave in made for lane in wave] == lanes
        for wave in made:
            assert len({lane.seed for lane in wave}) * 2 == len(wave)
        return [len(wave) for wave in made]

    assert sizes(10**9) == [10]
    assert sizes(2 * seed) == [4, 4, 2]
    assert sizes(2 * seed - 1) == [2] * 5
    assert sizes(0) == [2] * 5  # at least one seed a wave
    assert list(waves([], 10)) == []


@dataclass(frozen=True, kw_only=True)
class Peeking(FedAvg):
    """A method that looks at test data while it trains."""

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        yield from Evaluate(Serving.one(ctx.cohort(), state.models), "test")
        return state


def test_a_method_that_looks_at_test_data_is_stopped() -> None:
    problem = worlds.problem()
    lanes = lanes_of([("peeking", Peeking()), ("fedavg", FedAvg())], [0], problem, Plan(rounds=2))
    drive(lanes, LoopEngine(), 2, lambda lane, record: None)
    assert [lane.status for lane in lanes] == [FAILED, RUNNING]
    assert "may not look at test data" in lanes[0].reason
    assert lanes[1].round_ == 2


class Moody(LoopEngine):
    """An engine that cannot answer one lane's training."""

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        if any(s.lane == 0 and isinstance(s.ask, Train) for s in asks):
            raise RuntimeError("out of memory")
        return super().run(asks)


def test_an_ask_that_no_engine_can_carry_out_ends_its_own_lane_only() -> None:
    problem = worlds.problem()
    plan = Plan(rounds=2)
    lanes = lanes_of([("fedavg", FedAvg()), ("uniform", FedAvg(weighting="uniform"))], [0], problem, plan)
    drive(lanes, Moody(), 2, lambda lane, record: None)
    assert [lane.status for lane in lanes] == [FAILED, RUNNING]
    assert lanes[0].reason == "in round 1: RuntimeError: out of memory"
    alone = lanes_of([("uniform", FedAvg(weighting="uniform"))], [0], problem, plan)
    drive(alone, LoopEngine(), 2, lambda lane, record: None)
    assert to_bytes(lanes[1].state) == to_bytes(alone[0].state)  # type: ignore[arg-type]
