"""Going on from a folder that was damaged: each lane from the last states that can be trusted, to the same evidence."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.core.asks import Evaluate
from coterie.core.layout import InitialModels
from coterie.core.local import Local
from coterie.core.method import Context, Method, Round
from coterie.core.plan import Plan
from coterie.core.serving import Serving
from coterie.core.states import Models, to_bytes
from coterie.evidence import Evidence, digest
from coterie.evidence.records import DIVERGED, FAILED, RUNNING, LaneEnd, LaneKey, LaneProgress, RoundRecord
from coterie.evidence.restore import load_lanes, restore
from coterie.evidence.settings import Settings
from coterie.evidence.tables import KEYS, TABLES, make_roster_table, make_tables
from coterie.evidence.writer import Writer
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.methods.local_only import LocalOnly
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.testing import worlds

PLAN = Plan(rounds=4, cohort=4, local=Local(epochs=3, lr=0.1, max_steps=3))
SETTINGS = Settings(methods=("fedavg", "local"), data="tiny", seeds=(0, 1), plan=PLAN)
SEED_BY_SEED = Execution(engine="loop", checkpoint_every=1, seeds_per_wave=1)  # four segments a seed: rounds 0 and 1, 2, 3, 4


def study(settings: Settings = SETTINGS, methods: tuple[Method[Any], ...] = (FedAvg(), LocalOnly())) -> Study:
    return Study.prepare(settings, federation=worlds.make_federation(), methods=methods)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted study."""
    folder = tmp_path_factory.mktemp("studies") / "whole"
    study().run(out=folder, execution=SEED_BY_SEED)
    return folder


def segment(folder: Path, number: int) -> Path:
    return folder / "segments" / f"{number:06d}"


def states(folder: Path, number: int) -> Path:
    return segment(folder, number) / "states.safetensors"


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "segments").iterdir())


def identities(folder: Path) -> dict[int, int]:
    """By number, what tells a segment from one that was written anew."""
    return {number: (segment(folder, number) / "rounds.parquet").stat().st_mtime_ns for number in numbers(folder)}


def test_segments_are_numbered_and_the_last_two_of_a_lane_keep_their_states(whole: Path) -> None:
    assert numbers(whole) == list(range(1, 9))
    assert [number for number in numbers(whole) if states(whole, number).exists()] == [3, 4, 7, 8]
    assert all((segment(whole, number) / f"{name}.parquet").is_file() for number in numbers(whole) for name in TABLES)


def test_lanes_are_restored_to_where_they_were(whole: Path) -> None:
    found, told = restore(whole)
    assert told == []
    assert set(found) == {LaneKey(0, method, seed) for method in SETTINGS.methods for seed in (0, 1)}
    assert {(restored.end.round_, restored.end.status) for restored in found.values()} == {(4, RUNNING)}
    lanes = study().lanes()
    alone = study()
    watched: dict[LaneKey, bytes] = {}

    class Watch(Callback):
        def on_round(self, lane: Any, record: Any) -> None:
            watched[lane.key] = to_bytes(lane.state)

    alone.run(execution=SEED_BY_SEED, callbacks=[Watch()])
    for lane in lanes:
        state = found[lane.key].state
        assert state is not None
        assert to_bytes(state) == watched[lane.key]


def cut_short(keep: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = states(folder, 8).read_bytes()
        states(folder, 8).write_bytes(data[: int(keep * len(data))])

    return damage


def without(*paths: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for path in paths:
            own = folder / "segments" / path
            if own.is_dir():
                shutil.rmtree(own)
            else:
                own.unlink()

    return damage


def overwritten(path: str, text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "segments" / path).write_text(text)

    return damage


def as_a_draft(folder: Path) -> None:
    segment(folder, 8).rename(folder / "segments" / ".draft-000008")


# What is done to the folder, which of its eight segments must stay as they are, and what the log must say.
DAMAGES: dict[str, tuple[Callable[[Path], None], list[int], str]] = {
    "nothing": (without(), [1, 2, 3, 4, 5, 6, 7, 8], ""),
    "the last states are gone": (without("000008/states.safetensors"), [1, 2, 3, 4, 5, 6, 7], "(FileNotFoundError)"),
    "the last states are empty": (cut_short(0), [1, 2, 3, 4, 5, 6, 7], "000008/states.safetensors is not as it was written"),
    "the last states are cut in their header": (
        cut_short(0.02),
        [1, 2, 3, 4, 5, 6, 7],
        "000008/states.safetensors is not as it was written",
    ),
    "the last states are cut in the middle": (cut_short(0.5), [1, 2, 3, 4, 5, 6, 7], "000008/states.safetensors is not as it was written"),
    "the last states lack a byte": (cut_short(0.9999), [1, 2, 3, 4, 5, 6, 7], "000008/states.safetensors is not as it was written"),
    "the last states are something else": (
        overwritten("000008/states.safetensors", "no checkpoint"),
        [1, 2, 3, 4, 5, 6, 7],
        "000008/states.safetensors is not as it was written",
    ),
    "earlier states are gone": (without("000007/states.safetensors"), [1, 2, 3, 4, 5, 6, 7, 8], ""),  # nobody needs them
    "the states of both are gone": (
        without("000007/states.safetensors", "000008/states.safetensors"),
        [1, 2, 3, 4],
        "000007/states.safetensors cannot be read",
    ),
    "the last segment is gone": (without("000008"), [1, 2, 3, 4, 5, 6, 7], "000008 is missing"),
    "the last segment of the first seed is gone": (without("000004"), [1, 2, 3, 5, 6, 7, 8], "000004 is missing"),
    "a segment in the middle is gone": (without("000003"), [5, 6, 7, 8], "000004 does not follow on what is before it"),
    "the first segment is gone": (without("000001"), [5, 6, 7, 8], "000002 does not follow on what is before it"),
    "tables are gone": (
        without("000008/clients.parquet", "000008/notes.parquet"),
        [1, 2, 3, 4, 5, 6, 7],
        "000008 is damaged (clients.parquet is missing, notes.parquet is missing)",
    ),
    "a table is damaged": (
        overwritten("000004/mixing.parquet", "PAR1"),
        [1, 2, 3, 5, 6, 7, 8],
        "000004 is damaged (mixing.parquet is not as it was written)",
    ),
    "a list of lanes cannot be read": (
        overwritten("000008/lanes.json", "[{"),
        [1, 2, 3, 4, 5, 6, 7],
        "000008 is damaged (lanes.json is not as it was written)",
    ),
    "a list of lanes says something else": (
        overwritten("000008/lanes.json", '[{"lane": 1}]'),
        [1, 2, 3, 4, 5, 6, 7],
        "000008 is damaged (lanes.json is not as it was written)",
    ),
    "a segment has the name of a draft": (as_a_draft, [1, 2, 3, 4, 5, 6, 7], "000008 is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_study_goes_on_from_what_is_whole(damage: str, whole: Path, tmp_path: Path) -> None:
    done, kept, told = DAMAGES[damage]
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    before, lines = identities(folder), len((folder / "log.txt").read_text().splitlines())
    done(folder)
    study().run(out=folder, resume=True)
    after = identities(folder)  # a draft would not be a number
    assert [number for number in before if after.get(number) == before[number]] == kept
    evidence = Evidence.open(folder)
    assert digest(evidence) == digest(Evidence.open(whole))
    assert not evidence.frame("rounds").duplicated(list(KEYS)).any()  # no round is there twice
    assert {end.round_ for end in evidence.ends().values()} == {4}
    added = "\n".join((folder / "log.txt").read_text().splitlines()[lines:])
    assert told in added
    assert ("run again" in added) == bool(told)


def test_a_folder_whose_every_state_is_gone_begins_anew(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    for number in (3, 4, 7, 8):
        states(folder, number).unlink()
    found, told = restore(folder)
    assert found == {}
    assert len(told) == 8
    assert numbers(folder) == []
    study().run(out=folder, resume=True)
    assert digest(Evidence.open(folder)) == digest(Evidence.open(whole))


@dataclass(frozen=True, kw_only=True)
class Peeking(FedAvg):
    """Never gets through its start."""

    def start(self, init: InitialModels, ctx: Context) -> Round[Models]:
        yield from Evaluate(Serving.one(ctx.roster.clients, init()), "test")
        return (yield from super().start(init, ctx))


def test_lanes_that_have_ended_stay_ended(tmp_path: Path) -> None:
    settings = Settings(methods=("fedavg", "fedprox(mu=1e38)", "peeking"), data="tiny", plan=PLAN)
    methods = (FedAvg(), FedProx(mu=1e38), Peeking())
    every_round = Execution(engine="loop", checkpoint_every=1)
    result = study(settings, methods).run(out=tmp_path / "s", execution=every_round)
    diverged, peeking = (result.problems[LaneKey(0, label, 0)] for label in settings.methods[1:])
    assert (diverged.status, diverged.round_ < 4) == (DIVERGED, True)
    assert (peeking.status, peeking.round_) == (FAILED, -1)
    assert peeking.reason == "in round 0: PermissionError: a method may not look at test data"
    before = digest(result.evidence)
    last = max(numbers(tmp_path / "s"))
    states(tmp_path / "s", last).unlink()
    steps: list[LaneKey] = []

    class Watch(Callback):
        def on_round(self, lane: Any, record: Any) -> None:
            steps.append(lane.key)

    again = study(settings, methods).run(out=tmp_path / "s", resume=True, callbacks=[Watch()])
    assert steps == [LaneKey(0, "fedavg", 0)]  # one round of the one lane that goes on
    assert again.problems == result.problems
    assert digest(again.evidence) == before
    table = again.table()
    assert np.isnan(table["final"].to_numpy()).tolist() == [False, True, True]  # no score, but in the table
    assert table["seeds"].tolist() == [1, 0, 0]


def test_what_rests_on_a_lost_segment_is_made_again_with_it(tmp_path: Path) -> None:
    """One lane went on alone: without the states of the segment that both share, its later rounds would follow on nothing."""
    one, other = LaneKey(0, "a", 0), LaneKey(0, "b", 0)
    state = Models(np.ones((1, 2), np.float32))
    writer = Writer.create(tmp_path / "s", SETTINGS, {}, {0: make_roster_table(worlds.make_federation())})

    def write(*lanes: tuple[LaneKey, int, int]) -> None:
        records = [RoundRecord(key, round_) for key, first, last in lanes for round_ in range(first, last + 1)]
        writer.segment([LaneProgress(key, first, LaneEnd(last), state) for key, first, last in lanes], make_tables(records, classes=3))

    write((one, 0, 1), (other, 0, 1))
    write((other, 2, 3))
    write((LaneKey(0, "c", 0), 0, 5))
    found, told = restore(tmp_path / "s")
    assert {key: restored.end.round_ for key, restored in found.items()} == {one: 1, other: 3, LaneKey(0, "c", 0): 5}
    assert told == []
    states(tmp_path / "s", 1).unlink()
    found, told = restore(tmp_path / "s")
    assert list(found) == [LaneKey(0, "c", 0)]  # which has nothing to do with it
    assert len(told) == 1
    assert numbers(tmp_path / "s") == [3]


@pytest.mark.parametrize("name", DAMAGES)
def test_looking_where_lanes_stand_changes_nothing(whole: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(whole, folder)
    DAMAGES[name][0](folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    looked = load_lanes(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    found, told = restore(folder)
    assert looked.notices == told
    assert {key: lane.end for key, lane in looked.lanes.items()} == {key: lane.end for key, lane in found.items()}
    assert not any(path.exists() for path in looked.dropped)
