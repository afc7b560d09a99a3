import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core import replies
from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Ask, Evaluate, Gradient, Losses, Share, Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round
from coterie.core.plan import Plan
from coterie.core.serving import COMBINED, Mixture, Serving
from coterie.core.states import Models, to_bytes
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence.records import DIVERGED, FAILED, RUNNING, Absence, LaneKey, RoundRecord
from coterie.methods.averaging import average_replies
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.local_only import LocalOnly
from coterie.methods.one_model import OneModelMethod
from coterie.run.driver import drive, run_script
from coterie.run.lanes import Lane, make_lanes
from coterie.run.waves import split_into_waves
from coterie.testing import worlds
from coterie.testing.play import PLAN, AlteredEngine, corrupt_reply, drop_replies, get_loop_engine, pass_unchanged


@dataclass(frozen=True, kw_only=True)
class Probing(OneModelMethod):
    """FedAvg that asks for gradients first, as FedSim does."""

    probes: int = 1

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort = ctx.cohort()
        for _ in range(self.probes):
            yield from Gradient(cohort, state.models)
        trained = yield from Train(cohort, state.models, ctx.local)
        return average_replies(state, trained, "samples", ctx)


@dataclass(frozen=True, kw_only=True)
class Raising(FedAvg):
    """Fails in the middle of a round."""

    error: Callable[[str], Exception] = RuntimeError
    at: int = 2

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        after = yield from super().round(state, ctx)
        if ctx.round_ == self.at:
            raise self.error("on purpose")
        return after


class Recording(Engine):
    """The loop engine, keeping what it was asked, call by call."""

    name = "recording"

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, int, int]]] = []

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        self.calls.append([(type(s.ask).__name__, s.lane, s.round_) for s in asks])
        return get_loop_engine().run(asks)


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
    methods: list[tuple[str, Method[Any]]],
    *,
    seeds: tuple[int, ...] = (0,),
    engine: Engine | None = None,
    world: World | None = None,
    rounds: int = 2,
    **plan: Any,
) -> tuple[Watcher, list[Lane]]:
    lanes = make_lanes(methods, seeds, (world or worlds.make_world()).problem, replace(PLAN, **plan))
    watcher = Watcher()
    drive(lanes, engine or get_loop_engine(world), rounds, watcher)
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
    lanes = make_lanes([("plain", FedAvg())], (0,), worlds.make_world().problem, PLAN)

    def watch(lane: Lane, record: RoundRecord) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        drive(lanes, get_loop_engine(), 2, watch)
    assert lanes[0].status == RUNNING


def exploding(stamped: StampedAsk, number: int, reply: Any) -> Any:
    """Lane 0's clients all run away in round 2."""
    if isinstance(stamped.ask, Train) and (stamped.lane, stamped.round_) == (0, 2):
        return replace(reply, vectors=np.full_like(reply.vectors, np.inf))
    return reply


def test_a_diverging_lane_is_recorded_and_the_others_keep_their_bits() -> None:
    alone, _ = go([("b", FedProx())], rounds=3)
    watcher, lanes = go([("a", FedAvg()), ("b", FedProx())], engine=AlteredEngine(exploding), rounds=3)
    assert (lanes[0].status, lanes[0].round_) == (DIVERGED, 1)
    assert lanes[0].reason == "in round 2 no client sent a finite model"
    assert lanes[1].status == RUNNING
    assert watcher.data["b", 0] == alone.data["b", 0]


def test_a_real_explosion() -> None:
    local = PLAN.local.replace(lr=3e38, epochs=20)
    _, lanes = go([("a", FedAvg())], rounds=3, local=local, cohort=None)
    assert lanes[0].status == DIVERGED


def test_silence_is_not_divergence() -> None:
    watcher, lanes = go([("a", FedAvg())], engine=AlteredEngine(drop_replies(np.arange(6), (1, 2))), rounds=3)
    assert lanes[0].status == RUNNING
    assert watcher.data["a", 0][0] == watcher.data["a", 0][2] != watcher.data["a", 0][3]


def test_driving_in_pieces_is_driving_at_once() -> None:
    whole, _ = go([("a", FedAvg()), ("b", Probing())], seeds=(0, 1), rounds=3, evaluate_every=1)
    lanes = make_lanes([("a", FedAvg()), ("b", Probing())], (0, 1), worlds.make_world().problem, replace(PLAN, evaluate_every=1))
    pieces = Watcher()
    for until in (0, 1, 1, 3):
        drive(lanes, get_loop_engine(), until, pieces)
    assert pieces.data == whole.data


def test_evaluates_when_due_and_at_the_end() -> None:
    watcher, _ = go([("a", FedAvg())], rounds=5, evaluate_every=2)
    assert [r.evaluated is not None for r in watcher.records["a", 0]] == [True, False, True, False, True, False]


def test_the_last_round_is_always_evaluated() -> None:
    lanes = make_lanes([("a", FedAvg())], (0,), worlds.make_world().problem, replace(PLAN, rounds=3, evaluate_every=2))
    watcher = Watcher()
    drive(lanes, get_loop_engine(), 3, watcher)
    assert [r.round_ for r in watcher.records["a", 0] if r.evaluated is not None] == [0, 2, 3]


def test_a_record_holds_the_evidence_of_its_round() -> None:
    watcher, _ = go([("a", FedAvg()), ("tuned", FineTuned(method=FedAvg()))], evaluate_every=1)
    start, first, _ = watcher.records["a", 0]
    assert start.cost.messages == 0
    assert start.notes.mixing is None
    assert (first.key, first.round_) == (LaneKey(0, "a", 0), 1)
    assert first.cost.messages == 8  # four clients asked, four answers
    assert first.notes.mixing is not None
    assert first.notes.mixing.clients.tolist() == worlds.make_world().problem.context(PLAN, 0, 1).cohort().tolist()
    assert first.absences == ()
    assert np.isnan(first.clock)  # nobody said how fast clients are
    assert first.validated is not None
    assert first.validated.sizes.tolist() == [worlds.VALIDATION] * 6
    assert first.evaluated is not None
    assert first.evaluated.clients.tolist() == list(range(6))  # all clients count from round 0
    assert first.central is not None
    assert first.central[0] == ("global",)
    assert first.central[1].sizes.tolist() == [10]
    assert first.discrepancy > 0
    assert set(first.seconds) == {"clients", "server"}
    assert watcher.records["tuned", 0][1].cost == first.cost  # serving is not charged to the round
    assert watcher.data["tuned", 0] == watcher.data["a", 0]


def by_two(stamped: StampedAsk, number: int, reply: Any) -> Any:
    """Training moves every weight by two."""
    ask = stamped.ask
    return replace(reply, vectors=ask.models[ask.start] + 2) if isinstance(ask, Train) else reply


@dataclass(frozen=True, kw_only=True)
class Warming(FedAvg):
    """Trains for purposes of its own before the round's training."""

    def start(self, init: InitialModels, ctx: Context) -> Round[Models]:
        yield from Train(ctx.roster.available, init(), ctx.local, purpose="pretrain")
        return (yield from super().start(init, ctx))

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        yield from Train(ctx.roster.available, state.models, ctx.local, purpose="trial")
        return (yield from super().round(state, ctx))


def test_discrepancy_by_hand() -> None:
    watcher, _ = go([("a", FedAvg())], engine=AlteredEngine(by_two), rounds=1)
    assert watcher.records["a", 0][1].discrepancy == pytest.approx(4 * np.sqrt(18 * 4.0))  # four clients, d = 18, each entry moved by 2


def test_how_far_clients_moved_is_measured_once_a_round_and_then_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, sound = list[int](), replies._compute_norms

    def counted(steps: Floats) -> Doubles:
        measured.append(len(steps))
        return sound(steps)

    monkeypatch.setattr(replies, "_compute_norms", counted)
    [lane] = make_lanes([("a", FedAvg())], [0], worlds.make_world().problem, replace(PLAN, rounds=2, norm_bound=1e6))
    drive([lane], LoopEngine(worlds.make_world()), 2, lambda lane, record: None)
    assert measured == [len(lane.context(1).cohort()), len(lane.context(2).cohort())]
    assert lane.account.moves._measured is None


def test_discrepancy_is_of_the_training_of_the_round_alone() -> None:
    watcher, _ = go([("a", FedAvg()), ("warming", Warming())], engine=AlteredEngine(by_two), rounds=1)
    start, first = watcher.records["warming", 0]
    assert start.discrepancy == 0
    assert start.cost.steps > 0  # pre-training is charged all the same
    assert first.discrepancy == watcher.records["a", 0][1].discrepancy > 0
    assert first.cost.messages == watcher.records["a", 0][1].cost.messages + 12


def test_a_lane_whose_only_training_is_a_trial_that_runs_away_has_diverged() -> None:
    def spoilt(stamped: StampedAsk, number: int, reply: Any) -> Any:
        if isinstance(stamped.ask, Train) and stamped.round_ == 0:
            return replace(reply, vectors=np.full_like(reply.vectors, np.nan))
        return reply

    _, lanes = go([("warming", Warming())], engine=AlteredEngine(spoilt))
    assert (lanes[0].status, lanes[0].round_, lanes[0].state) == (DIVERGED, -1, None)
    assert lanes[0].end.reason == "in round 0 no client sent a finite model"


def test_dropouts_do_not_disturb_measuring() -> None:
    engine = AlteredEngine(pass_unchanged)
    watcher, _ = go([("tuned", FineTuned(method=FedAvg()))], engine=engine, dropout=0.6, evaluate_every=1, cohort=None)
    assert all(r.evaluated is not None and len(r.evaluated) == 6 for r in watcher.records["tuned", 0])
    training = [s.ask for s in engine.asked if isinstance(s.ask, Train)]
    assert [len(ask.clients) for ask in training if ask.purpose == "fine-tune"] == [6, 6, 6]
    assert all(len(ask.clients) < 6 for ask in training if ask.purpose == "train")


@dataclass(frozen=True, kw_only=True)
class Asking(FedAvg):
    """Asks its cohort in other ways than by training, and notes who answered what."""

    share: Share | None = None

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort, n = ctx.cohort(), len(ctx.cohort())
        models = np.concatenate([state.models, -state.models])
        weights = np.linspace(0, 1, n)
        combined = Serving(cohort, models, np.full(n, COMBINED), Mixture(np.stack([weights, 1 - weights], axis=1)))
        judged = yield from Evaluate(combined, "train", share=self.share)
        plain = yield from Evaluate(Serving.one(cohort, state.models[0]), "validation", share=self.share)
        trained = yield from Train(cohort, state.models, ctx.local, share=self.share)
        ctx.note("judged", judged.clients)
        ctx.note("losses", judged.loss)
        ctx.note("plain", plain.clients)
        ctx.note("trained", trained.clients)
        return average_replies(state, trained, "samples", ctx)


def test_who_has_dropped_out_answers_a_methods_own_evaluation_no_more_than_its_training() -> None:
    everybody, _ = go([("a", Asking())], cohort=None, rounds=3)
    watcher, _ = go([("a", Asking())], cohort=None, rounds=3, dropout=0.4)
    kept = 0
    for whole, record in zip(everybody.records["a", 0][1:], watcher.records["a", 0][1:], strict=True):
        named = record.notes.named
        there = named["trained"].tolist()
        assert named["judged"].tolist() == named["plain"].tolist() == there
        if record.round_ == 1:  # from the same model: those left have the mixture that was meant for them
            assert named["losses"].tolist() == whole.notes.named["losses"][there].tolist()
        gone = [client for client in range(6) if client not in there]
        asks = [(absence.client, absence.ask) for absence in record.absences]
        assert asks == [*((c, "Evaluate") for c in gone), *((c, "Evaluate") for c in gone), *((c, "Train") for c in gone)]
        assert {absence.why for absence in record.absences} <= {"ABSENT"}
        assert record.cost.messages == 3 * (6 + len(there))  # who is gone was asked all the same
        kept += len(there)
    assert 0 < kept < 18


def test_who_holds_nothing_of_a_share_is_not_missing() -> None:
    watcher, _ = go([("a", Asking(share=Share(fold=1)))], cohort=None, rounds=1)  # client 2 has one sample, which is in half 0
    first = watcher.records["a", 0][1]
    assert first.notes.named["trained"].tolist() == [0, 1, 3, 4, 5]
    assert first.absences == ()


def test_an_answer_that_is_refused_is_in_the_record_with_its_reason() -> None:
    bad = int(worlds.make_world().problem.context(PLAN, 0, 1).cohort()[0])
    watcher, _ = go([("a", FedAvg())], engine=AlteredEngine(corrupt_reply(bad, 1, lambda value: np.full_like(value, np.nan))))
    assert [record.absences for record in watcher.records["a", 0]] == [(), (Absence(bad, "Train", "NOT_FINITE", "vectors"),), ()]


@pytest.mark.parametrize("until", ["participation", "epochs", "validation"])
def test_training_alone_is_charged_work_but_no_messages_and_no_bytes(until: Any) -> None:
    watcher, _ = go([("local", LocalOnly(until=until)), ("fedavg", FedAvg())], rounds=2, cohort=None)
    for alone, together in zip(watcher.records["local", 0][1:], watcher.records["fedavg", 0][1:], strict=True):
        assert (alone.cost.messages, alone.cost.bytes_down, alone.cost.bytes_up) == (0, 0, 0)
        assert alone.cost.steps == together.cost.steps > 0
        assert alone.cost.samples >= together.cost.samples
        assert together.cost.bytes_up > 0


def test_lanes_go_seed_by_seed_over_all_draws() -> None:
    problem = worlds.make_world().problem
    lanes = make_lanes([("a", FedAvg()), ("b", FedProx())], (3, 5), problem, PLAN)
    assert [(lane.number, lane.label, lane.seed) for lane in lanes] == [(0, "a", 3), (1, "b", 3), (2, "a", 5), (3, "b", 5)]
    assert {lane.key.draw for lane in lanes} == {0}
    other = worlds.make_newcomer_world().problem
    twice = make_lanes([("a", FedAvg())], (3, 5), {7: problem, 9: other}, PLAN)
    assert [lane.key for lane in twice] == [LaneKey(7, "a", 3), LaneKey(9, "a", 3), LaneKey(7, "a", 5), LaneKey(9, "a", 5)]
    assert [lane.problem for lane in twice] == [problem, other, problem, other]
    assert [lane.number for lane in twice] == [0, 1, 2, 3]


def test_lanes_of_several_draws_are_driven_each_on_its_own() -> None:
    there = {7: worlds.make_world(), 9: worlds.make_newcomer_world()}
    lanes = make_lanes([("a", FedAvg())], (0,), {draw: world.problem for draw, world in there.items()}, replace(PLAN, evaluate_every=1))
    records: dict[int, list[RoundRecord]] = {7: [], 9: []}
    with LoopEngine(there) as engine:
        drive(lanes, engine, 2, lambda lane, record: records[record.key.draw].append(record))
    for draw, lane in zip(there, lanes, strict=True):
        alone, (single,) = go([("a", FedAvg())], world=there[draw], evaluate_every=1)
        assert to_bytes(lane.state) == to_bytes(single.state)  # type: ignore[arg-type]
        pairs = zip(records[draw], alone.records["a", 0], strict=True)
        assert all(
            one.evaluated is not None and two.evaluated is not None and one.evaluated.loss.tobytes() == two.evaluated.loss.tobytes()
            for one, two in pairs
        )


def test_waves_are_whole_seeds_under_the_budget() -> None:
    problem = worlds.make_world().problem
    lanes = make_lanes([("a", FedAvg()), ("b", FedProx())], range(5), problem, PLAN)
    seed = 2 * 4 * 18 * (3 * 4 + 8)  # two lanes of a model of 18 with a cohort of 4

    def sizes(budget: int, seeds: int | None = None) -> list[int]:
        made = list(split_into_waves(lanes, budget, seeds))
        assert [lane for wave in made for lane in wave] == lanes
        for wave in made:
            assert len({(lane.key.draw, lane.seed) for lane in wave}) * 2 == len(wave)
        return [len(wave) for wave in made]

    assert sizes(10**9) == [10]
    assert sizes(2 * seed) == [4, 4, 2]
    assert sizes(2 * seed - 1) == [2] * 5
    assert sizes(0) == [2] * 5  # at least one seed a wave
    assert sizes(10**9, seeds=3) == [6, 4]
    assert list(split_into_waves([], 10)) == []
    lanes = make_lanes([("a", FedAvg()), ("b", FedProx())], range(2), {3: problem, 4: problem}, PLAN)  # a seed of another draw is another
    assert sizes(10**9) == [8]
    assert sizes(seed) == [2] * 4
    assert sizes(10**9, seeds=3) == [6, 2]


@dataclass(frozen=True, kw_only=True)
class Peeking(FedAvg):
    """A method that looks where it may not."""

    part: Any = "test"
    when: Any = "round"
    by: Any = "evaluation"

    def start(self, init: InitialModels, ctx: Context) -> Round[Models]:
        if self.when == "start":
            yield from self._peek(init(), ctx)
        return (yield from super().start(init, ctx))

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        if self.when == "round" and ctx.round_ == 2:
            yield from self._peek(state.models[0], ctx)
        return (yield from super().round(state, ctx))

    def serve(self, state: Models, clients: Ids, ctx: Context) -> Round[Serving]:
        if self.when == "serve" and ctx.round_ == 1:
            yield from self._peek(state.models[0], ctx)
        return (yield from super().serve(state, clients, ctx))

    def _peek(self, model: Any, ctx: Context) -> Round[None]:
        ask: Ask[Any] = Evaluate(Serving.one(ctx.cohort(), model), self.part)
        yield from ask if self.by == "evaluation" else Losses(ctx.cohort(), model, part=self.part)


@pytest.mark.parametrize(("when", "fails_in"), [("start", 0), ("round", 2), ("serve", 1)])
@pytest.mark.parametrize(("part", "by"), [("test", "evaluation"), ("central", "evaluation"), ("test", "losses")])
def test_a_method_that_looks_at_test_data_while_it_trains_is_stopped_and_the_others_go_on(
    when: str, fails_in: int, part: str, by: str
) -> None:
    alone, _ = go([("fedavg", FedAvg())], rounds=3, evaluate_every=1)
    engine = AlteredEngine(pass_unchanged)
    peeking = Peeking(part=part, when=when, by=by)
    watcher, lanes = go([("peeking", peeking), ("fedavg", FedAvg())], engine=engine, rounds=3, evaluate_every=1)
    assert [lane.status for lane in lanes] == [FAILED, RUNNING]
    assert lanes[0].reason == f"in round {fails_in}: PermissionError: a method may not look at test data"
    assert lanes[0].round_ == fails_in - 1
    assert len(watcher.records.get(("peeking", 0), [])) == fails_in  # what was measured before stays
    questions = [s.ask for s in engine.asked if s.lane == 0 and s.round_ >= fails_in and when != "serve"]
    assert not questions  # the ask never went out
    assert not [s for s in engine.asked if s.lane == 0 and isinstance(s.ask, Losses)]
    assert lanes[1].round_ == 3
    assert watcher.data["fedavg", 0] == alone.data["fedavg", 0]


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_method_may_look_at_the_parts_that_are_for_training(part: str) -> None:
    _, lanes = go([("looking", Peeking(part=part)), ("losses", Peeking(part=part, by="losses", when="start"))], rounds=3)
    assert [(lane.status, lane.round_) for lane in lanes] == [(RUNNING, 3), (RUNNING, 3)]


@dataclass(frozen=True, kw_only=True)
class Curious(FedAvg):
    """Notes what it is shown of the true groups."""

    assign: Any = "similar"

    def start(self, init: InitialModels, ctx: Context) -> Round[Models]:
        ctx.note("at start", ctx.truth)
        return (yield from super().start(init, ctx))

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        ctx.note("in round", ctx.truth)
        return (yield from super().round(state, ctx))

    def serve(self, state: Models, clients: Ids, ctx: Context) -> Round[Serving]:
        ctx.note("serving", ctx.truth)
        return (yield from super().serve(state, clients, ctx))


def test_the_oracle_is_shown_the_true_groups_and_nobody_else_is() -> None:
    truth = np.array([0, 0, 1, 1, 2, 2])
    world = World.from_spec(worlds.make_federation().replace(groups=truth), "mclr")
    kinds: dict[str, Method[Any]] = {way: Curious(assign=way) for way in ("similar", "random", "matched", "round_robin", "one", "oracle")}
    kinds["tuned"] = FineTuned(method=Curious())
    kinds["tuned oracle"] = FineTuned(method=Curious(assign="oracle"))
    watcher, _ = go(list(kinds.items()), world=world, evaluate_every=1)
    for label in kinds:
        start, first, second = (record.notes.named for record in watcher.records[label, 0])
        shown = [start["at start"], start["serving"], first["in round"], first["serving"], second["in round"], second["serving"]]
        if "oracle" in label:
            assert [groups.tolist() for groups in shown] == [truth.tolist()] * 6
        else:
            assert shown == [None] * 6
    assert world.problem.context(PLAN, 0, 1).truth is None  # nor is a script that is no method's


class Moody(LoopEngine):
    """An engine that cannot answer one lane's training."""

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        if any(s.lane == 0 and isinstance(s.ask, Train) for s in asks):
            raise RuntimeError("out of memory")
        assert sys.exc_info() == (None, None, None)  # an error that is being handled keeps what its frames hold on a device
        return super().run(asks)


def test_an_ask_that_no_engine_can_carry_out_ends_its_own_lane_only() -> None:
    world, plan = worlds.make_world(), Plan(rounds=2)
    lanes = make_lanes([("fedavg", FedAvg()), ("uniform", FedAvg(weighting="uniform"))], [0], world.problem, plan)
    with Moody(world) as engine:
        drive(lanes, engine, 2, lambda lane, record: None)
    assert [lane.status for lane in lanes] == [FAILED, RUNNING]
    assert lanes[0].reason == "in round 1: RuntimeError: out of memory"
    alone = make_lanes([("uniform", FedAvg(weighting="uniform"))], [0], world.problem, plan)
    drive(alone, get_loop_engine(), 2, lambda lane, record: None)
    assert to_bytes(lanes[1].state) == to_bytes(alone[0].state)  # type: ignore[arg-type]


def test_a_script_that_is_no_lanes_is_carried_out_as_the_driver_does_it() -> None:
    clients = np.arange(6)

    def script(model: Any) -> Round[tuple[Any, Any]]:
        trained = yield from Train(clients, model, PLAN.local)
        judged = yield from Evaluate(Serving.one(clients, model), "test")  # no method's: it may look
        return trained, judged

    there = {7: worlds.make_world(), 9: worlds.make_newcomer_world()}
    model = worlds.make_world().model.initial(0)()
    with LoopEngine(there) as engine:
        trained, judged = run_script(script(model), engine, seed=3, round_=2, draw=9)
        expected = engine.run([StampedAsk(Train(clients, model, PLAN.local), 3, 2, 9)])[0]
        assert trained.vectors.tobytes() == expected.vectors.tobytes()
        assert len(judged) == 6
        other, _ = run_script(script(model), engine, seed=4, round_=2, draw=9)
        assert other.vectors.tobytes() != expected.vectors.tobytes()

    def nonsense(stamped: StampedAsk, number: int, reply: Any) -> Any:
        if not isinstance(stamped.ask, Train):
            return reply
        spoilt = reply.vectors.copy()
        spoilt[2] = np.inf
        return replace(reply, vectors=spoilt).take(np.arange(6)[::-1])

    refused, _ = run_script(script(model), AlteredEngine(nonsense))
    assert refused.clients.tolist() == [0, 1, 3, 4, 5]
    assert list(refused.refused) == [2]
