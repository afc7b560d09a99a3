"""Watch: no alarm changes nothing, a drift is noticed where it happened, and what each policy does about it."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis.drift_alarms import format_evalue, read_alarms, summarize_alarms
from coterie.core.asks import Evaluate, Losses, LossTable, Trained
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.states import to_bytes
from coterie.engines.batched import BatchedEngine
from coterie.engines.world import World
from coterie.methods.catalogue import build, get_spec
from coterie.testing import worlds
from coterie.testing.play import History, play

DATA = "digits/labelswap(groups=2,pairs=5,clients=16,test=0.3)/drift(at=9,share=0.25)"
PLAN = Plan(rounds=20, evaluate_every=99, local=Local(epochs=1, batch_size=10, lr=0.3))


@cache
def drifting() -> World:
    return World.from_spec(ct.load(DATA, 0), "mclr")


def movers() -> list[int]:
    federation = drifting().federation
    before, after = federation.at_round(8).groups, federation.at_round(9).groups
    assert before is not None
    return np.flatnonzero(before != after).tolist()


@cache
def run(spec: str, rounds: int = 14) -> History:
    world = drifting()
    return play(build(spec), world=world, engine=BatchedEngine(world), plan=PLAN, rounds=rounds)


def looks(history: History) -> dict[int, Any]:
    return {record.round_: record.notes.named["watch"] for record in history.records if "watch" in record.notes.named}


def test_without_an_alarm_models_are_those_of_the_method() -> None:
    for spec in ("fedavg", "ifca(groups=2)", "fesem(groups=2)"):
        plain, watched = play(build(spec), rounds=4), play(build(f"{spec}+watch(after=1,every=1,policy=new)"), rounds=4)
        states: list[Any] = watched.states
        assert [to_bytes(state.parts[0]) for state in states] == plain.data
        noted = looks(watched)
        assert sorted(noted) == [2, 3, 4]  # round 1 is the reference
        assert all(look["alarms"] == [] and look["largest"] < 0 for look in noted.values())  # the same data have the same error
        assert [record.cost.messages for record in watched.records] > [record.cost.messages for record in plain.records]


def test_a_drift_is_noticed_at_the_next_look_in_the_clients_that_changed() -> None:
    noted = looks(run("fedgroup(groups=2)+watch(after=6,every=2)"))
    assert sorted(noted) == [8, 10, 12, 14]
    assert noted[8]["alarms"] == []
    found = {alarm["which"] for alarm in noted[10]["alarms"] if alarm["kind"] == "client"}
    assert found
    assert found <= set(movers())
    for alarm in noted[10]["alarms"]:
        assert alarm["now"] > alarm["before"] + 0.05
        assert set(alarm["clients"]) <= set(movers())
        assert alarm["statistic"] >= noted[10]["threshold"]
    assert noted[12]["clients"] == 16 - len(movers())  # round 12 is their new reference
    assert noted[14] == {**noted[14], "clients": 16, "alarms": []}


def test_losses_notice_it_too() -> None:
    noted = looks(run("fedgroup(groups=2)+watch(after=8,every=2,on=loss,margin=0,rate=0.2)", rounds=12))
    named = {client for look in noted.values() for alarm in look["alarms"] for client in alarm["clients"]}
    assert named
    assert named <= set(movers())


def test_policies() -> None:
    """Which models the changed clients have after the alarm of round 10."""
    spec = "fedgroup(groups=2)+watch(after=6,every=2,policy={})"
    runs: list[Any] = [run(spec.format(policy)).states for policy in ("report", "place", "new", "regroup")]
    report, place, new, regroup = runs
    changed = [client for alarm in looks(run(spec.format("report")))[10]["alarms"] for client in alarm["clients"]]
    others = np.setdiff1d(np.arange(16), changed)
    for states in (place, new, regroup):
        assert to_bytes(states[9].parts[0]) == to_bytes(report[9].parts[0])
    assert set(np.flatnonzero(place[10].parts[0].groups < 0)) == set(changed)
    assert (place[11].parts[0].groups[changed] == 1 - report[11].parts[0].groups[changed]).all()
    assert (place[11].parts[0].groups[others] == report[11].parts[0].groups[others]).all()
    assert len(new[10].parts) == 2
    assert set(np.flatnonzero(new[10].part == 1)) == set(changed)
    method: Any = build(spec.format("new"))
    groups = method.members(new[12])
    assert not set(groups[changed]) & set(groups[others])
    assert len(regroup[10].parts) == 1
    assert (regroup[10].seen.rows < 0).all()  # every client gets a new reference
    assert (regroup[12].seen.rows >= 0).all()


def test_who_is_asked_what() -> None:
    """Round 1 serves and refers, round 2 asks for the error of the model of round 1; only counts, or only losses, are asked for."""
    for spec, kind in (("fedavg+watch(after=1,every=1)", Evaluate), ("fedavg+watch(after=1,every=1,on=loss)", Losses)):
        method: Any = build(spec)
        world = worlds.make_world()
        ctx = replace(world.problem.context(PLAN, 0, 2), round_=2)
        state: Any = play(method, world=world, plan=PLAN, rounds=1).states[1]
        script = method.round(state, ctx)
        train = next(script)
        trained = Trained(train.clients, train.models[train.start] + 1, np.ones(6, np.int64), np.ones(6, np.int64))
        asked = script.send(trained).unpack()
        assert [type(ask) for ask in asked] == [kind]
        models = asked[0].serving.models if isinstance(asked[0], Evaluate) else asked[0].models
        assert models.tobytes() == state.parts[0].models.tobytes()  # not the one that has just been trained
        assert asked[0].part == "validation"
        assert asked[0].clients.tolist() == list(range(6))
        if kind is Losses:  # a client that does not answer, or has no samples, is not looked at
            reply = LossTable(np.arange(5), np.full((5, 1), 99.0), np.array([3, 3, 3, 3, 0]))
            with pytest.raises(StopIteration) as end:
                script.send((reply,))
            assert end.value.value.seen.counts[:, 0].tolist() == [3, 3, 3, 3, 0, 0]
            assert end.value.value.seen.sums[:4, 0].tolist() == [3.0] * 4  # an error is 1 at most


def test_what_it_refuses() -> None:
    world = worlds.make_world()
    with pytest.raises(UserError, match="this method keeps none"):
        play(build("fedavg+watch(policy=place)"), world=world)
    with pytest.raises(UserError, match="combines several"):
        play(build("fedex(groups=2)+watch"), world=world)
    with pytest.raises(UserError, match="this is a regression: use on=loss"):
        play(build("fedavg+watch(on=accuracy)"), world=worlds.make_task_world("regression"))
    play(build("fedavg+watch(after=1,every=1)"), world=worlds.make_task_world("regression"), rounds=3)
    for bad in ("every=0", "rate=0", "rate=1", "margin=1", "after=0", "policy=retrain"):
        with pytest.raises(UserError):
            build(f"fedavg+watch({bad})")
    assert get_spec(build("ifca(groups=2)+watch(policy=place)")) == "ifca(groups=2)+watch(policy=place)"


def test_the_evidence_names_alarms() -> None:
    label = "fedgroup(groups=2)+watch(after=6,every=2)"
    result = ct.study(label, data=DATA, rounds=11, epochs=1, batch_size=10, lr=0.3, evaluate_every=11)
    counted, alarms = read_alarms(result.evidence)
    assert counted == {label: 2}
    assert {alarm.round_ for alarm in alarms} == {10}
    ids = drifting().federation.ids
    assert {name for alarm in alarms for name in alarm.clients} <= {ids[client] for client in movers()}
    (sentence,) = summarize_alarms(result.evidence)
    assert sentence.startswith(f"{label}: {len(alarms)} alarm")
    assert f"{alarms[0].unit} in round 10 (error" in sentence
    assert format_evalue(alarms[0].statistic) in sentence
