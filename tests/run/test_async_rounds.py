"""Asynchronous rounds: the synchronous method where all are waited for, worked by hand where not, the same after an interruption."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie._util.errors import UserError
from coterie.core.arrays import Ids
from coterie.core.asks import Gradient, Train
from coterie.core.local import Local
from coterie.core.method import Context, Round
from coterie.core.plan import Plan
from coterie.core.states import Models
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from coterie.evidence.verify import digest
from coterie.methods.averaging import average_replies
from coterie.methods.catalogue import build, methods
from coterie.methods.fedavg import FedAvg
from coterie.methods.one_model import OneModelMethod
from coterie.run.async_rounds import PendingReplies, compute_staleness_weights, rebase_updates
from coterie.run.execution import Execution
from coterie.run.study import Study, study
from coterie.testing import worlds
from coterie.testing.play import History, get_loop_engine, play

ONCE = ("fedavg", "fedavg(weighting=uniform)", "fedprox(mu=0.5)", "simprox", "simagg", "fedatt", "feddist", "feddws", "fedsgd")
WRAPPED = ("fedavg+server(beta1=0.5)", "fedprox+rate(lr=0.02)", "fedavg+finetune")
PLAN = Plan(rounds=99, local=Local(epochs=2, batch_size=5, lr=0.1))


def same(one: History, other: History) -> None:
    """The same models, costs, weights, absences and scores in every round."""
    assert one.data == other.data
    for a, b in zip(one.records, other.records, strict=True):
        assert (a.cost, a.absences, a.discrepancy) == (b.cost, b.absences, b.discrepancy)
        np.testing.assert_array_equal(np.asarray(a.evaluated.hits), np.asarray(b.evaluated.hits))  # type: ignore[union-attr]
        if a.notes.mixing is not None and b.notes.mixing is not None:
            np.testing.assert_array_equal(a.notes.mixing.clients, b.notes.mixing.clients)
            np.testing.assert_array_equal(a.notes.mixing.replies, b.notes.mixing.replies)


@pytest.mark.parametrize("spec", [*ONCE, *WRAPPED])
def test_a_buffer_of_the_whole_cohort_is_the_synchronous_method(spec: str) -> None:
    plan = replace(PLAN, cohort=4)
    whole = replace(plan, buffer_size=4)
    synchronous = play(build(spec), plan=plan)
    for speeds in (None, "lognormal(1.0)"):  # all are waited for, however long they take
        same(play(build(spec), plan=replace(whole, speeds=speeds)), synchronous)


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=7),
    share=st.floats(0.01, 1.0),
    dropout=st.sampled_from((0.0, 0.4)),
    stragglers=st.sampled_from((0.0, 0.5)),
    attack=st.sampled_from((None, "scale(share=0.3,factor=-50)", "count(share=0.3)")),
    spec=st.sampled_from(ONCE),
)
def test_it_is_on_any_federation_under_any_conditions(
    sizes: list[int], share: float, dropout: float, stragglers: float, attack: str | None, spec: str
) -> None:
    world = World.from_spec(worlds.make_federation(tuple(sizes)), "mclr")
    cohort = max(1, round(share * len(sizes)))
    plan = replace(PLAN, cohort=cohort, dropout=dropout, stragglers=stragglers, attack=attack)
    timed = replace(plan, buffer_size=cohort, speeds="equal")
    same(play(build(spec), plan=timed, world=world), play(build(spec), plan=plan, world=world))


def test_which_methods_can_be_asynchronous() -> None:
    able = {name for name in methods if build(name).trains_once}
    assert able == {"fedavg", "fedprox", "fedsgd", "simprox", "simagg", "fedatt", "feddist", "feddws"}


def test_time_runs_to_the_slowest_where_all_are_waited_for(tmp_path: Path) -> None:
    """Clients 0 to 5 take 1 to 6: a round of everybody takes 6 (FedDANE, which asks each for one gradient of two epochs first, 3 more)."""
    (tmp_path / "t.csv").write_text("client,time\n" + "".join(f"client-{i},{i + 1}\n" for i in range(6)))
    plan = replace(PLAN, speeds=str(tmp_path / "t.csv"))
    clocks = {spec: [r.clock for r in play(build(spec), plan=plan).records] for spec in ("fedavg", "feddane", "ifca(groups=2)")}
    assert clocks == {"fedavg": [0, 6, 12], "feddane": [0, 9, 18], "ifca(groups=2)": [0, 6, 12]}
    plain = play(build("fedavg"), plan=PLAN)
    same(play(build("fedavg"), plan=plan), plain)
    assert np.isnan(plain.records[1].clock)


def test_a_straggler_who_does_less_is_done_sooner() -> None:
    cut = replace(PLAN, speeds="equal", stragglers=1.0)  # all do one of two epochs
    assert [r.clock for r in play(build("fedprox"), plan=cut).records] == [0, 0.5, 1.0]


class Scripted(Engine):
    """Clients that move the model they are sent by an amount of their own, whatever they hold."""

    name = "scripted"

    def __init__(self, moves: Sequence[float], world: World | None = None) -> None:
        self.inner = get_loop_engine(world)
        self.moves, self.asked = np.array(moves, dtype=np.float32), list[tuple[int, list[int]]]()

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        return [self._train(s) if isinstance(s.ask, Train) else self.inner.run([s])[0] for s in asks]

    def _train(self, stamped: StampedAsk) -> Any:
        ask: Any = stamped.ask
        self.asked.append((stamped.round_, ask.clients.tolist()))
        reply = self.inner.run([stamped])[0]
        return replace(reply, vectors=ask.get_sent_models(ask.clients) + self.moves[ask.clients, None])


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """Three clients take 1, 2 and 5; two answers a round; everybody is in every cohort; client k moves the model by 1, 10, 100.

    Round 1 (w = w0): all begin; 0 comes at 1 and 1 at 2, nobody stale: w1 = w0 + (1 + 10) / 2 = w0 + 5.5.
    Round 2: 0 and 1 begin at 2; 0 comes at 3, 1 at 4: w2 = w1 + 5.5.
    Round 3: 0 and 1 begin at 4; 0 and 2 come at 5, 2 first, since it was asked before. It was begun with w0, two rounds ago, and counts
    by 1/sqrt(3): w3 = w2 + (1 + 100/sqrt(3)) / 2. Client 1 is still at work, until 6.
    Round 4: 0 and 2 begin at 5; 0 and 1 come at 6, 1 of round 3 by 1/sqrt(2): w4 = w3 + (1 + 10/sqrt(2)) / 2.
    """
    (tmp_path / "t.csv").write_text("client,time\nclient-0,1\nclient-1,2\nclient-2,5\n")
    world = World.from_spec(worlds.make_federation((4, 4, 4)), "mclr")
    plan = replace(PLAN, buffer_size=2, speeds=str(tmp_path / "t.csv"))
    engine = Scripted((1.0, 10.0, 100.0), world)
    history = play(FedAvg(), plan=plan, world=world, engine=engine, rounds=4)
    states: list[Any] = list(history.states)
    moved = [float((after.models - before.models).mean()) for before, after in pairwise(states)]
    assert moved == pytest.approx([5.5, 5.5, (1 + 100 / 3**0.5) / 2, (1 + 10 / 2**0.5) / 2], rel=1e-5)
    assert engine.asked == [(1, [0, 1, 2]), (2, [0, 1]), (3, [0, 1]), (4, [0, 2])]
    assert [r.clock for r in history.records] == [0, 2, 4, 5, 6]
    told = [r.notes.named for r in history.records[1:]]
    assert [list(t["arrived"]) for t in told] == [[0, 1], [0, 1], [0, 2], [0, 1]]
    assert [list(t["staleness"]) for t in told] == [[0, 0], [0, 0], [0, 2], [0, 1]]
    assert [t["at_work"] for t in told] == [1, 1, 1, 1]
    length = 4 * states[0].models.shape[1]  # bytes of a model
    assert [r.cost.bytes_down for r in history.records] == [0, 3 * length, 2 * length, 2 * length, 2 * length]
    assert [r.cost.messages for r in history.records] == [0, 5, 4, 4, 4]
    assert len({r.cost.bytes_up for r in history.records[1:]}) == 1  # two answers each
    assert [r.cost.steps for r in history.records[1:]] == [4] * 4  # two epochs of one batch, twice


def test_staleness_weights() -> None:
    assert compute_staleness_weights(np.array([0, 1, 3]), 0.5) == pytest.approx([1, 1 / 2**0.5, 0.5])
    assert compute_staleness_weights(np.array([0, 1, 3]), 0.0).tolist() == [1, 1, 1]
    assert compute_staleness_weights(np.array([0, 1, 3]), 1.0) == pytest.approx([1, 0.5, 0.25])


def test_statistics_are_drawn_towards_the_clients_and_stay_positive() -> None:
    """A weight moves by half the client's way from what it was sent; a variance goes half the way to what the client sent."""
    sent, model = np.array([[1.0, 9.0]], np.float32), np.array([2.0, 0.5], np.float32)
    made = rebase_updates(np.array([[4.0, 0.1]], np.float32), sent, model, np.array([0.5]), np.array([True, False]))
    assert made.tolist() == pytest.approx(np.array([[2 + 0.5 * 3, 0.5 + 0.5 * (0.1 - 0.5)]], np.float32))


def test_a_model_with_statistics_runs() -> None:
    plan = replace(PLAN, buffer_size=2, speeds="lognormal(1.0)", local=Local(epochs=1, batch_size=4, lr=0.1))
    world = worlds.make_batch_norm_world()
    history = play(FedAvg(), plan=plan, world=world, rounds=6)
    spread = next(s for s in world.model.layout.slices if s.name.endswith("running_var"))
    state: Any = history.states[-1]
    assert state.models[0, spread.begin : spread.end].min() > 0
    assert any(max(r.notes.named["staleness"]) > 0 for r in history.records[1:])


def test_answers_that_cannot_be_right_do_not_count_whenever_they_come() -> None:
    def spoil(client: int) -> Engine:
        engine = Scripted((1.0,) * 6)
        engine.moves[client] = np.nan
        return engine

    plan = replace(PLAN, buffer_size=2, speeds="lognormal(1.0)")
    history = play(FedAvg(), plan=plan, engine=spoil(3), rounds=5)
    absences = [(r.round_, a.client, a.why) for r in history.records for a in r.absences]
    assert absences
    assert {(client, why) for _, client, why in absences} == {(3, "NOT_FINITE")}
    assert all(3 not in r.notes.mixing.clients for r in history.records[1:] if r.notes.mixing is not None)


WHOLE = Settings(
    methods=("fedavg", "simprox", "fedavg+server"),
    data="digits/rotated(clients=9,groups=3)",
    seeds=(0, 1),
    plan=Plan(rounds=7, cohort=6, buffer_size=2, concurrency=5, speeds="lognormal(1.0)", evaluate_every=3),
)


class Interrupted(Engine):
    """Breaks off, as Ctrl-C would, at the n-th call."""

    name = "interrupted"

    def __init__(self, inner: Engine, calls: int) -> None:
        self.inner, self.left = inner, calls

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.inner.run(asks)


def test_what_is_on_its_way_survives_an_interruption(tmp_path: Path) -> None:
    each = Execution(checkpoint_every=2)
    ready = Study.prepare(WHOLE)
    whole = ready.run(out=tmp_path / "whole", execution=each).evidence
    for calls in (2, 9):
        with ready.engine(each) as engine, pytest.raises(KeyboardInterrupt):
            ready.run(out=tmp_path / "cut", resume=True, execution=each, engine=Interrupted(engine, calls))
    again = Study.prepare(WHOLE).run(out=tmp_path / "cut", resume=True, execution=each).evidence
    assert digest(again) == digest(whole)
    assert len(list((tmp_path / "cut" / "segments").iterdir())) > 1
    longer = replace(WHOLE, plan=replace(WHOLE.plan, rounds=9))
    grown = Study.prepare(longer).run(out=tmp_path / "cut", resume=True, execution=each).evidence
    assert digest(grown) == digest(Study.prepare(longer).run(execution=Execution(seeds_per_wave=1)).evidence)


def test_other_speeds_than_it_began_with_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("client,time\n" + "".join(f"client-{i},{i + 1}\n" for i in range(6)))
    plan = Plan(rounds=2, speeds=str(tmp_path / "t.csv"), buffer_size=2)
    federation = worlds.make_federation()
    study("fedavg", data=federation, plan=plan, out=tmp_path / "s")
    (tmp_path / "t.csv").write_text("client,time\n" + "".join(f"client-{i},{i + 2}\n" for i in range(6)))
    with pytest.raises(UserError, match="are not those that the study started with"):
        study("fedavg", data=federation, plan=replace(plan, rounds=3), out=tmp_path / "s", resume=True)


def test_speeds_that_cannot_be_read_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t\.csv cannot be read"):
        study("fedavg", data=worlds.make_federation(), rounds=1, speeds=str(tmp_path / "t.csv"), out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("spec", ["fedsim", "ifca", "fesem", "scaffold", "moon", "local", "fedex", "fedavg+guard", "feddane"])
def test_other_methods_are_refused_before_anything_is_written(spec: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be run with buffer_size=2: asynchronous rounds are for methods"):
        study(["fedavg", spec], data=worlds.make_federation(), rounds=1, buffer_size=2, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@dataclass(frozen=True, kw_only=True)
class Pretending(OneModelMethod):
    """Says that its round is one training, and asks for more."""

    more: str

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort: Ids = ctx.cohort()
        if self.more == "gradients":
            yield from Gradient(cohort, state.models)
        models = np.repeat(state.models, 2, axis=0) if self.more == "models" else state.models
        linear = np.zeros((len(cohort), models.shape[1]), np.float32) if self.more == "linear" else None
        trained = yield from Train(cohort, models, ctx.local, linear=linear)
        if self.more == "again":
            trained = yield from Train(cohort, models, ctx.local, purpose="again")
        return average_replies(state, trained, "samples", ctx)


@pytest.mark.parametrize(
    ("more", "told"),
    [("gradients", "asked such a Gradient"), ("models", "such a Train"), ("linear", "such a Train"), ("again", "asked a second Train")],
)
def test_a_method_that_asks_for_more_is_refused(more: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        play(Pretending(more=more), plan=replace(PLAN, buffer_size=2))


def test_settings_that_cannot_go_together_are_refused() -> None:
    with pytest.raises(UserError, match="concurrency without buffer_size"):
        Plan(concurrency=3)
    with pytest.raises(UserError, match=r"of 7 answers needs a cohort of as many clients, and it has 6: use buffer_size=6"):
        Plan(buffer_size=7).check(6)
    with pytest.raises(UserError, match=r"and it has 3"):
        Plan(buffer_size=4, cohort=3).check(6)
    with pytest.raises(UserError, match=r"and it has 2"):
        Plan(buffer_size=4, selection="windows", window=0.3).check(6)
    Plan(buffer_size=3, cohort=3, concurrency=1).check(6)


def test_nothing_is_on_its_way_at_the_beginning() -> None:
    none = PendingReplies.empty(np.ones(2), 3)
    assert len(none) == 0
    assert none.to_reply(1, np.zeros(3, np.float32), 0.5, np.ones(3, np.bool_)).vectors.shape == (0, 3)
