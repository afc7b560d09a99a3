"""The engine of a real federation, between sites in this process: what a method gets there is what it gets in simulation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie.core.asks import Refusal
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.data.federation import Federation
from coterie.deploy.messages import AskBatch, MessageError, ReplyBatch, from_message, to_message
from coterie.deploy.server.engine import FederatedEngine
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from coterie.evidence.tables import TABLES
from coterie.evidence.verify import digest
from coterie.run.execution import Execution
from coterie.run.study import Study
from deploy.in_process import InProcess

METHODS = (
    *("fedavg", "fedprox(mu=0.1)", "fedsim(clusters=2)", "fedgroup(groups=2,alpha=2)", "fesem(groups=2)", "simprox", "ifca(groups=2)"),
    *("fedsim(clusters=2,sketch=5)", "fedgroup(groups=2,alpha=2,start_from=w0,sketch=5)", "fesem(groups=2,assign_on=sketch,sketch=5)"),
    *("fedex(groups=2)", "fedex(groups=2,combiner=mean)", "moon", "ditto", "scaffold", "flhc(warmup=1)", "local", "fedavg+finetune"),
    *("clove(groups=2)", "pfedgraph", "cflgp(groups=2,period=1)", "cflgp(groups=2,sketch=5)", "apfl", "fedala", "fedclust(groups=2)"),
    *("pacfl(groups=2)", "pacfl(groups=2,by_class=false,angle=sum)"),
    *("fedavg+private(layers=bias)", "fedavg+private(layers=bias,train=private_first)", "fedavg+knn"),
    *("auto", "structured", "continuum"),
)


def settings(data: str, *methods: str, **plan: Any) -> Settings:
    usual: dict[str, Any] = {"rounds": 3, "local": Local(epochs=2, batch_size=40, lr=0.1)} | plan
    return Settings(methods=methods or METHODS, data=data, plan=Plan(**usual), seeds=(0, 1))


def sites_of(federation: Federation, count: int) -> dict[str, list[str]]:
    """So many sites, whose clients are not in the order of the roster."""
    return {f"site-{s}": list(federation.ids[s::count])[::-1] for s in range(count)}


def federated(federation: Federation, sites: dict[str, list[str]], **options: Any) -> FederatedEngine:
    owner = {client: site for site, clients in sites.items() for client in clients}
    return FederatedEngine(InProcess(federation, sites, **options), owner, federation.ids, "a-run")


@pytest.mark.parametrize(("data", "count"), [("heart(validation=0.2)", 4), ("digits/rotated(clients=9,groups=3,validation=0.2)", 4)])
def test_every_method_ends_as_in_simulation(data: str, count: int) -> None:
    whole = settings(data)
    study = Study.prepare(whole)
    federation = load(data)
    simulated = study.run(execution=Execution(engine="loop")).evidence
    real = study.run(engine=federated(federation, sites_of(federation, count))).evidence
    for name in TABLES:
        if name != "timings":
            expected, found = simulated.frame(name), real.frame(name)
            if "loss" in expected:  # summed over other batches: sites judge by themselves
                np.testing.assert_allclose(found.pop("loss"), expected.pop("loss"), rtol=1e-6)
            pd.testing.assert_frame_equal(found, expected, obj=name)


def test_a_site_gets_only_its_clients_and_only_the_models_they_need() -> None:
    federation = load("digits/rotated(clients=8,groups=2)")
    seen: list[AskBatch] = []

    class Watched(InProcess):
        def exchange(self, batches: Any) -> dict[str, bytes]:
            seen.extend(from_message(data, AskBatch) for data in batches.values())
            return super().exchange(batches)

    sites = sites_of(federation, 8)
    owner = {client: site for site, clients in sites.items() for client in clients}
    engine = FederatedEngine(Watched(federation, sites), owner, federation.ids, "a-run")
    Study.prepare(settings(federation.name, "fesem(groups=2)", rounds=2)).run(engine=engine)
    assert all(len(batch.ids) == 1 for batch in seen)
    assert all(getattr(s.ask, "models", np.zeros((1, 1))).shape[0] == 1 for batch in seen for s in batch.asks)
    assert all(s.lane == 0 for batch in seen for s in batch.asks)


def break_once(breaking: Any, at: int = 2) -> Any:
    """The first site answers number `at` (the first training) wrongly."""
    count = [0]

    def tamper(site: str, data: bytes) -> bytes | None:
        if site != "site-0":
            return data
        count[0] += 1
        return breaking(data) if count[0] == at else data

    return tamper


def with_answers(change: Any) -> Any:
    def breaking(data: bytes) -> bytes:
        response = from_message(data, ReplyBatch)
        return to_message(change(response))

    return breaking


def first(response: ReplyBatch, **changes: Any) -> ReplyBatch:
    return replace(response, answers=tuple(replace(reply, **changes) for reply in response.answers))


BROKEN = {
    "no message": lambda data: b"\x80\x04\x95 pickled",
    "cut short": lambda data: data[: len(data) // 2],
    "another run": with_answers(lambda response: replace(response, run="another")),
    "another question": with_answers(lambda response: replace(response, number="00")),
    "other clients": with_answers(lambda response: replace(response, ids=("somebody",))),
    "fewer answers": with_answers(lambda response: replace(response, answers=response.answers[:-1])),
    "a client too many": with_answers(lambda response: first(response, clients=np.array([7], dtype=np.int64))),
    "another type": with_answers(lambda response: first(response, vectors=np.zeros((1, 650)))),
    "an older protocol": with_answers(lambda response: replace(response, protocol=0)),
    "too large": lambda data: data + b" " * (1 << 20),
}


@pytest.mark.parametrize("how", BROKEN)
def test_an_answer_that_cannot_be_right_costs_only_its_site_the_round(how: str) -> None:
    federation = load("digits/iid(clients=4)")
    sites = sites_of(federation, 4)
    owner = {client: site for site, clients in sites.items() for client in clients}
    carrier = InProcess(federation, sites, tamper=break_once(BROKEN[how]))
    engine = FederatedEngine(carrier, owner, federation.ids, "a-run", limit=1 << 19)
    study = Study.prepare(replace(settings(federation.name, "fedavg", rounds=2), seeds=(0,)))
    result = study.run(engine=engine)
    absences = result.evidence.table("absences").to_pylist()
    why = Refusal.TOO_LARGE if how == "too large" else Refusal.UNREADABLE
    assert [(a["client"], a["round"], a["why"]) for a in absences] == [(0, 1, why.name)]
    assert absences[0]["detail"].startswith("site-0: ")
    without = result.evidence.frame("mixing")
    assert sorted(without.query("round == 1")["source"]) == [1, 2, 3]
    assert sorted(without.query("round == 2")["source"]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v: v[:, :-1], Refusal.WRONG_SHAPE),
        (lambda v: np.full_like(v, np.nan), Refusal.NOT_FINITE),
    ],
)
def test_wrong_numbers_are_refused_as_in_simulation(change: Any, why: Refusal) -> None:
    federation = load("digits/iid(clients=4)")
    breaking = with_answers(
        lambda response: replace(response, answers=tuple(replace(r, vectors=change(r.vectors), more=r.more) for r in response.answers))
    )
    engine = federated(federation, sites_of(federation, 4), tamper=break_once(breaking))
    study = Study.prepare(replace(settings(federation.name, "fedavg", rounds=2), seeds=(0,)))
    (absence,) = study.run(engine=engine).evidence.table("absences").to_pylist()
    assert (absence["client"], absence["round"], absence["why"]) == (0, 1, why.name)


def test_a_replayed_answer_is_refused() -> None:
    federation = load("digits/iid(clients=4)")
    kept: list[bytes] = []

    def replay(site: str, data: bytes) -> bytes:
        if site == "site-0":
            kept.append(data)
        return kept[1] if site == "site-0" and len(kept) == 4 else data  # the training of round 1 again in round 2

    engine = federated(federation, sites_of(federation, 4), tamper=replay)
    result = Study.prepare(replace(settings(federation.name, "fedavg", rounds=2), seeds=(0,))).run(engine=engine)
    (absence,) = result.evidence.table("absences").to_pylist()
    assert "an answer to another question" in absence["detail"]


def test_a_silent_site_is_absent_and_the_others_go_on() -> None:
    federation = load("digits/iid(clients=4)")
    engine = federated(federation, sites_of(federation, 4), tamper=lambda site, data: None if site == "site-2" else data)
    result = Study.prepare(replace(settings(federation.name, "fedavg", rounds=2), seeds=(0,))).run(engine=engine)
    absences = result.evidence.table("absences").to_pylist()
    assert {(a["client"], a["why"]) for a in absences} == {(2, "ABSENT")}
    assert not result.problems


def test_what_may_travel_is_a_closed_list() -> None:
    with pytest.raises(TypeError, match="known kinds"):
        to_message(LoopEngine)
    with pytest.raises(MessageError, match="unknown kind"):
        from_message(to_message(AskBatch(1, "r", "n", (), ())).replace(b"AskBatch", b"PopenXXX"), AskBatch)
    with pytest.raises(MessageError, match="AskBatch instead of ReplyBatch"):
        from_message(to_message(AskBatch(1, "r", "n", (), ())), ReplyBatch)
    with pytest.raises(MessageError, match="over the limit"):
        from_message(b"x" * 100, AskBatch, limit=10)


def test_a_world_of_one_site_holds_nothing_else() -> None:
    federation = load("heart")
    world = next(iter(InProcess(federation, {"a": ["va"], "b": ["cleveland"]}).sites.values()))[0]
    assert isinstance(world, World)
    assert world.federation.ids == ("va",)
    assert len(world.federation.x) == len(federation.train[3]) + len(federation.test[3])


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """A job that is aborted in the middle of a round leaves whole rounds, and lanes that have not ended."""
    pytest.importorskip("nvflare")
    from coterie.deploy.flare.controller import AbortedError

    asked = iter(range(10**6))

    def abort(site: str, data: bytes) -> bytes:
        if next(asked) == 9:
            raise AbortedError
        return data

    federation = load("heart")
    study = Study.prepare(settings("heart", "fedavg", "fesem(groups=2)"))
    sites, each = sites_of(federation, 2), Execution(checkpoint_every=1)
    with pytest.raises(AbortedError):
        study.run(out=tmp_path / "s", execution=each, engine=federated(federation, sites, tamper=abort))
    done = Study.prepare(study.settings).run(out=tmp_path / "s", resume=True, execution=each, engine=federated(federation, sites))
    whole = Study.prepare(study.settings).run(execution=each, engine=federated(federation, sites))
    assert all(end.round_ == 3 for end in done.evidence.ends().values())
    assert digest(done.evidence) == digest(whole.evidence)
