"""A study end to end on embedded data: evidence in memory and on disk, resumed, damaged, refused."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.engines.loop import LoopEngine
from coterie.evidence import Evidence, digest
from coterie.evidence.records import DIVERGED, LaneKey, RoundRecord
from coterie.evidence.settings import Settings
from coterie.evidence.writer import WriteError
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.study import Study
from integrity import reseal

SETTINGS = Settings(
    methods=("fedavg", "local"),
    data="digits/rotated(clients=8,groups=4)",
    seeds=(0, 1),
    plan=Plan(rounds=5, cohort=4, local=Local(epochs=1, lr=0.1, batch_size=40)),
)
EXECUTION = Execution(engine="loop", checkpoint_every=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted study."""
    folder = tmp_path_factory.mktemp("studies") / "whole"
    Study.prepare(SETTINGS).run(out=folder, execution=EXECUTION)
    return folder


class StopAt(Callback):
    """Stops a study, as Ctrl-C would, when any lane reaches a round."""

    def __init__(self, round_: int) -> None:
        self.round_ = round_

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        if record.round_ == self.round_:
            raise KeyboardInterrupt


@pytest.mark.parametrize("round_", [0, 1, 2, 3, 5])
def test_a_stopped_study_resumes_to_the_same_digest(whole: Path, tmp_path: Path, round_: int) -> None:
    folder = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        Study.prepare(SETTINGS).run(out=folder, execution=EXECUTION, callbacks=[StopAt(round_)])
    Study.prepare(SETTINGS).run(out=folder, resume=True)
    assert digest(Evidence.open(folder)) == digest(Evidence.open(whole))


def test_memory_disk_and_other_waves_and_segments_agree(whole: Path, tmp_path: Path) -> None:
    in_memory = Study.prepare(SETTINGS).run(execution=EXECUTION)
    one_seed_a_wave = Execution(engine="loop", checkpoint_every=3, memory=1e-9)
    spread = Study.prepare(SETTINGS).run(out=tmp_path / "spread", execution=one_seed_a_wave)
    assert len(list((tmp_path / "spread" / "segments").iterdir())) == 4  # two waves of two segments
    assert digest(in_memory.evidence) == digest(Evidence.open(whole)) == digest(spread.evidence)


def test_another_seed_changes_the_digest_and_not_the_first_seed(whole: Path) -> None:
    fewer = Study.prepare(Settings(**{**vars(SETTINGS), "seeds": (0,), "methods": ("fedavg",)})).run(execution=EXECUTION)
    assert digest(fewer.evidence) != digest(Evidence.open(whole))
    both = Evidence.open(whole).frame("clients").query("seed == 0 and method == 'fedavg'").drop(columns="method")
    alone = fewer.clients.drop(columns=["method", "id", "train", "test", "accuracy"])
    assert np.array_equal(
        both.sort_values(["round", "client"]).to_numpy(), alone.sort_values(["round", "client"]).to_numpy(), equal_nan=True
    )


def test_a_full_disk_loses_nothing_written(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "full"
    real = pq.write_table
    written = []

    def fails_later(table: object, where: object, **options: object) -> None:
        written.append(where)
        if len(written) == 12:
            raise OSError(28, "No space left on device")
        real(table, where, **options)

    monkeypatch.setattr(pq, "write_table", fails_later)
    with pytest.raises(WriteError, match="No space left on device"):
        Study.prepare(SETTINGS).run(out=folder, execution=EXECUTION)
    monkeypatch.undo()
    assert [path.name for path in (folder / "segments").iterdir()] == ["000001"]
    Study.prepare(SETTINGS).run(out=folder, resume=True)
    assert digest(Evidence.open(folder)) == digest(Evidence.open(whole))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 300 kB, where mounting one is permitted; elsewhere the failing writer above has to do."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        shutil.which("mount")
        and not subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], capture_output=True, check=False).returncode
    )
    if not mounted:
        pytest.skip("mounting a small disk is not permitted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_is_really_full_loses_nothing_written(small_disk: Path) -> None:
    settings = Settings(methods=("fedavg",), data=SETTINGS.data, plan=Plan(rounds=12, cohort=4, local=Local(lr=0.1)))
    every_round = Execution(engine="loop", checkpoint_every=1)
    with pytest.raises(WriteError, match="No space left on device"):
        Study.prepare(settings).run(out=small_disk / "study", execution=every_round)
    written = len(list((small_disk / "study" / "segments").iterdir()))
    assert 0 < written < 12
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    resumed = Study.prepare(settings).run(out=small_disk / "study", resume=True)
    assert digest(resumed.evidence) == digest(Study.prepare(settings).run(execution=every_round).evidence)


def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_a_damaged_table_is_named_and_made_again(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    damaged = sorted((folder / "segments").iterdir())[1] / "clients.parquet"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(UserError, match=r"clients\.parquet is not as it was written.* with resume=True"):
        digest(Evidence.open(folder))
    Study.prepare(SETTINGS).run(out=folder, resume=True)
    assert digest(Evidence.open(folder)) == digest(Evidence.open(whole))


def test_a_deleted_segment_is_made_again(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    shutil.rmtree(sorted((folder / "segments").iterdir())[1])
    Study.prepare(SETTINGS).run(out=folder, resume=True)
    assert digest(Evidence.open(folder)) == digest(Evidence.open(whole))


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_it_is_taken(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    last = sorted((folder / "segments").iterdir())[-1]
    (last / "states.safetensors").write_bytes(b"not a checkpoint")
    made: list[int] = []

    class Watch(Callback):
        def on_round(self, lane: Lane, record: RoundRecord) -> None:
            made.append(record.round_)

    Study.prepare(SETTINGS).run(out=folder, resume=True, callbacks=[Watch()])
    assert made == [5] * 4  # the rounds of the last segment, of every lane, and no other
    assert "states.safetensors is not as it was written" in (folder / "log.txt").read_text()
    assert digest(Evidence.open(folder)) == digest(Evidence.open(whole))


def test_a_folder_with_another_study_is_refused(whole: Path) -> None:
    with pytest.raises(UserError, match="not empty"):
        Study.prepare(SETTINGS).run(out=whole)
    other = Settings(**{**vars(SETTINGS), "plan": replace(SETTINGS.plan, rounds=2)})
    with pytest.raises(UserError, match=r"another study \(it differs in plan\.rounds, fewer than "):
        Study.prepare(other).run(out=whole, resume=True)


def test_opening_what_is_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no study"):
        Evidence.open(tmp_path / "nothing")
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(UserError, match=r"head\.json is missing"):
        Evidence.open(tmp_path)
    reseal(tmp_path)
    with pytest.raises(UserError, match=r"settings\.json cannot be read"):
        Evidence.open(tmp_path)


def test_a_cohort_larger_than_the_roster_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cohort is 9 clients but the federation has only 8"):
        ct.study("fedavg", data=SETTINGS.data, cohort=9, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_the_readme_example_returns_a_table() -> None:
    result = ct.study([ct.FedAvg(), ct.FedProx(mu=1)], data=SETTINGS.data, model="mclr", rounds=3, seeds=range(2))
    table = result.table()
    assert list(table.index) == ["fedavg", "fedprox"]  # mu=1 is the default, so it is not part of the name
    assert table["seeds"].tolist() == [2, 2]
    assert ((table["final"] > 0) & (table["final"] < 1)).all()
    assert len(result.rounds) == 2 * 2 * 4  # methods x seeds x rounds 0..3
    size, clients = 650, len(result.evidence.ids)  # numbers of a model of 64 features and ten classes
    assert table["MB/round"].tolist() == pytest.approx([4e-6 * clients * (size + size + 2)] * 2)  # a model each way, and two counts up


def test_scores_follow_from_the_counts() -> None:
    result = ct.study("fedavg", data=SETTINGS.data, rounds=12, seeds=[3])
    clients, rounds = result.clients, result.rounds.set_index("round")
    actual = result.evidence.actual
    hits = clients[[c for c in clients if str(c).startswith("hits_")]].sum(axis=1)
    for round_ in (0, 12):
        mine = clients["round"] == round_
        assert rounds.loc[round_, "accuracy"] == pytest.approx(hits[mine].sum() / actual.sum())
        assert rounds.loc[round_, "accuracy_macro"] == pytest.approx((hits[mine].to_numpy() / actual.sum(1)).mean())
    score = result.scores.iloc[0]
    assert score["final"] == rounds.loc[12, "accuracy"]
    assert score["last10"] == pytest.approx(rounds.loc[3:12, "accuracy"].mean())
    assert score["mean"] == pytest.approx(rounds.loc[1:12, "accuracy"].mean())


def test_a_federation_of_ones_own_and_evaluating_now_and_then() -> None:
    federation = ct.load(SETTINGS.data)
    result = ct.study(ct.FedAvg(), data=federation, plan=Plan(rounds=5, evaluate_every=2))
    assert result.rounds["round"].tolist() == [0, 2, 4, 5]
    assert result.evidence.settings.data == federation.name


def test_a_diverging_lane_is_recorded_and_the_others_are_whole(tmp_path: Path) -> None:
    plan = Plan(rounds=4, local=Local(lr=0.1))
    methods = ("fedavg", "fedprox(mu=1e30)")
    result = Study.prepare(Settings(methods=methods, data=SETTINGS.data, plan=plan)).run(out=tmp_path / "d", execution=EXECUTION)
    assert list(result.problems) == [LaneKey(0, "fedprox(mu=1e30)", 0)]
    end = result.problems[LaneKey(0, "fedprox(mu=1e30)", 0)]
    assert end.status == DIVERGED
    assert "no client sent a finite model" in end.reason
    assert end.round_ < 4
    rounds = result.rounds
    assert rounds[rounds["method"] == "fedavg"]["round"].max() == 4
    assert "fedprox(mu=1e30) seed 0: diverged" in (tmp_path / "d" / "log.txt").read_text()
    assert np.isnan(result.table()["final"].to_numpy()).tolist() == [False, True]  # no score, but in the table


def test_environment_and_execution_are_written_but_not_hashed(whole: Path, tmp_path: Path) -> None:
    folder = copy(whole, tmp_path)
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["torch"]
    before = digest(Evidence.open(folder))
    (folder / "environment.json").write_text("{}")
    assert digest(Evidence.open(folder)) == before
    settings = json.loads((folder / "settings.json").read_text())
    settings["plan"]["local"]["lr"] = 0.2
    (folder / "settings.json").write_text(json.dumps(settings))
    assert digest(Evidence.open(reseal(folder))) != before
    settings["plan"]["local"]["lr"] = 0.1
    settings["warp"] = 9
    (folder / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="warp"):
        Evidence.open(reseal(folder))


def test_an_engine_of_ones_own_is_used_and_left_open(whole: Path) -> None:
    """Its worlds must be those of the study; who made it closes it."""
    study = Study.prepare(SETTINGS)

    class Open(LoopEngine):
        closed = False

        def close(self) -> None:
            self.closed = True
            super().close()

    with Open(study.worlds) as engine:
        result = study.run(engine=engine)
        assert not engine.closed
    assert digest(result.evidence) == digest(Evidence.open(whole))


def test_a_study_closes_the_engine_that_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[LoopEngine] = []
    monkeypatch.setattr(LoopEngine, "close", lambda engine: closed.append(engine))
    ct.study("fedavg", data=SETTINGS.data, rounds=1, execution=EXECUTION)
    assert len(closed) == 1
    with pytest.raises(KeyboardInterrupt):
        ct.study("fedavg", data=SETTINGS.data, rounds=1, execution=EXECUTION, callbacks=[StopAt(1)])
    assert len(closed) == 2


def test_a_data_seed_is_the_draw_of_the_study() -> None:
    first, other = (ct.study("fedavg", data=SETTINGS.data, data_seed=seed, rounds=1, execution=EXECUTION) for seed in (0, 6))
    assert other.evidence.settings.draws == (6,)
    assert set(other.clients["draw"]) == {6}
    assert other.clients["loss"].tolist() != first.clients["loss"].tolist()
    federation = ct.load(SETTINGS.data, 6)
    again = ct.study("fedavg", data=federation, rounds=1, execution=EXECUTION)
    assert again.evidence.settings.draws == (6,)
    assert again.clients["loss"].tolist() == other.clients["loss"].tolist()
