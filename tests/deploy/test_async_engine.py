"""Asynchronous rounds of a real federation, between sites in this process that take their own time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.states import to_bytes
from coterie.data.federation import Federation
from coterie.deploy.server.engine import FederatedEngine
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import Order
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from coterie.evidence.tables import make_roster_table
from coterie.methods.catalogue import build
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.study import Study
from coterie.testing import worlds
from deploy.in_process import InProcess

# no two of them are done at the same moment
TIMES = {"client-0": 1.013, "client-1": 2.337, "client-2": 0.711, "client-3": 10.171, "client-4": 1.907, "client-5": 3.143}
FEDERATION = worlds.make_federation()
OWNER = {client: f"site of {client}" for client in FEDERATION.ids}
SETTINGS = Settings(
    methods=("fedavg", "fedprox(mu=0.1)", "simprox"),
    data=FEDERATION.name,
    plan=Plan(rounds=8, cohort=5, buffer_size=2, concurrency=4, counts="believed", local=Local(epochs=2, batch_size=5, lr=0.1)),
)


class Slow(InProcess):
    """Sites that answer what is posted when their time has passed, by a clock that jumps; `lost` never do."""

    def __init__(self, federation: Federation, lost: str = "") -> None:
        super().__init__(federation, {site: [client] for client, site in OWNER.items()})
        self.now, self.lost = 0.0, lost
        self.coming: list[tuple[float, str, bytes | None]] = []
        self.judged: list[set[str]] = []  # who was asked for scores, time after time

    def post(self, number: str, site: str, data: bytes) -> None:
        response = None if site == self.lost else self.exchange({site: data})[site]
        self.judged.pop()  # no question for scores
        self.coming.append((self.now + self.time(site), number, response))

    def time(self, site: str) -> float:
        return TIMES[site.removeprefix("site of ")]

    def collect(self, *, wait: bool) -> tuple[str, bytes | None] | None:
        ready = [each for each in self.coming if wait or each[0] <= self.now]
        if not ready:
            return None
        first = min(ready)
        self.coming.remove(first)
        self.now = max(self.now, first[0])
        return first[1:]

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        self.judged.append(set(batches))
        return super().exchange(batches)


class Last:
    """Keeps the models of every lane after its last round."""

    def __init__(self) -> None:
        self.models: dict[str, bytes] = {}

    def on_round(self, lane: Lane, record: Any) -> None:
        assert lane.state is not None
        self.models[lane.label] = to_bytes(lane.state)

    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


def real(carrier: InProcess, settings: Settings, *, owner: Mapping[str, str] = OWNER, **options: Any) -> tuple[Any, dict[str, bytes]]:
    """The study as a server runs it, which has no data."""
    world = World.from_spec(FEDERATION, "mclr")
    study = Study(
        settings,
        problems={0: replace(world.problem, central=False, validation=False)},
        rosters={0: make_roster_table(FEDERATION)},
        methods=tuple(build(spec) for spec in settings.methods),
        changing=True,
    )
    engine = FederatedEngine(carrier, owner, FEDERATION.ids, "a-run", last=settings.plan.rounds)
    kept: Any = Last()
    return study.run(engine=engine, callbacks=[kept], **options), kept.models


def test_real_sites_end_as_simulated_ones_of_their_speeds(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("client,time\n" + "".join(f"{client},{time}\n" for client, time in TIMES.items()))
    timed = replace(SETTINGS, plan=replace(SETTINGS.plan, speeds=str(tmp_path / "times.csv")))
    kept: Any = Last()
    simulated = Study.prepare(timed, federation=FEDERATION).run(execution=Execution(engine="loop"), callbacks=[kept]).evidence
    carrier = Slow(FEDERATION)
    result, models = real(carrier, SETTINGS)
    for name in ("mixing", "notes", "absences"):
        pd.testing.assert_frame_equal(result.evidence.frame(name), simulated.frame(name))
    costs = ["messages", "bytes_down", "bytes_up", "passes", "steps", "samples"]
    pd.testing.assert_frame_equal(result.evidence.frame("rounds")[costs], simulated.frame("rounds")[costs])
    clock = result.evidence.frame("rounds").query("method == 'fedavg'")["clock"].to_numpy()
    assert models == kept.models
    assert (np.diff(clock) > 0).all()  # seconds of this machine


def test_answers_that_come_together_are_kept_for_the_rounds_after() -> None:
    """Two sites of three clients: the first answers for all three at once, and a round goes on with one answer."""

    class Two(Slow):
        def __init__(self) -> None:
            InProcess.__init__(self, FEDERATION, {"a": list(FEDERATION.ids[:3]), "b": list(FEDERATION.ids[3:])})
            self.now, self.lost, self.coming, self.judged = 0.0, "", [], []

        def time(self, site: str) -> float:
            return {"a": 1.0, "b": 10.0}[site]

    alone = replace(SETTINGS, methods=("fedavg",), plan=Plan(rounds=3, buffer_size=1, counts="believed"))
    result, _ = real(Two(), alone, owner={client: "ab"[i // 3] for i, client in enumerate(FEDERATION.ids)})
    notes = result.evidence.frame("notes").set_index("name")["value"]
    assert sorted(notes["arrived"]) == ["[0]", "[1]", "[2]"]
    assert notes["staleness"].tolist() == ["[0]", "[1]", "[2]"]
    assert notes["at_work"].tolist() == ["5", "5", "5"]


def test_sites_at_work_are_not_asked_for_scores_until_the_end() -> None:
    carrier = Slow(FEDERATION)
    real(carrier, SETTINGS)
    first, *between, last = carrier.judged
    assert first == last == set(OWNER.values())
    assert all("site of client-3" not in asked for asked in between)  # it takes ten times as long as others
    assert any(asked for asked in between)


def test_a_site_that_never_answers_is_absent_and_holds_nobody_up() -> None:
    result, _ = real(Slow(FEDERATION, lost="site of client-0"), replace(SETTINGS, methods=("fedavg",)))
    absences = result.evidence.frame("absences").query("ask == 'Train'")
    assert len(absences)
    assert set(zip(absences["client"], absences["why"], strict=True)) == {(0, "ABSENT")}
    assert not result.problems
    assert 0 not in set(result.evidence.frame("mixing")["source"])


def test_a_job_that_ends_takes_what_was_on_its_way_with_it(tmp_path: Path) -> None:
    """The next job asks those clients again, and time goes on."""
    short = replace(SETTINGS, methods=("fedavg",), plan=replace(SETTINGS.plan, rounds=3))
    each = Execution(checkpoint_every=1, device="cpu")
    real(Slow(FEDERATION), short, out=tmp_path / "s", execution=each)
    longer = replace(short, plan=replace(short.plan, rounds=6))
    result, _ = real(Slow(FEDERATION), longer, out=tmp_path / "s", execution=each, resume=True)
    assert not result.problems
    rounds = result.evidence.frame("rounds")
    assert (np.diff(rounds["clock"]) > 0).all()
    stale = result.evidence.frame("notes").query("name == 'staleness' and round == 4")["value"].item()
    assert stale == "[0, 0]"


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"plan": replace(SETTINGS.plan, speeds="equal")}, "a real federation's clients take their own time: omit speeds="),
        ({"methods": ("fedavg", "fedsim")}, "'fedsim' cannot be run with buffer_size=2"),
    ],
)
def test_what_cannot_be_is_refused_before_any_site_is_asked(change: dict[str, Any], reported: str, tmp_path: Path) -> None:
    order = Order("a-run", "study", replace(SETTINGS, **change).as_json())
    nobody: Any = None
    with pytest.raises(UserError, match=reported):
        run_order(order, nobody, [], tmp_path, clock=nobody, report=print)
