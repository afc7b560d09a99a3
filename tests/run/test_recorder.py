"""Checkpoints of large states: written once, bounded, and announced."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.states import ClientTable, flatten, from_bytes, to_bytes
from coterie.engines import device
from coterie.engines.device import get_host_memory, get_wave_memory
from coterie.evidence import Evidence, digest
from coterie.evidence.settings import Settings
from coterie.methods.local_only import LocalOnly, LocalOnlyState
from coterie.run import recorder
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.lanes import Lane, make_lanes
from coterie.run.recorder import CheckpointSchedule
from coterie.run.study import Study
from coterie.testing import worlds

SETTINGS = Settings(
    methods=("local",),
    data="synthetic(0,0,clients=4)",
    seeds=(0, 1),
    plan=Plan(rounds=6, cohort=2, local=Local(epochs=1, lr=0.1, max_steps=2)),
)
LOOP = Execution(engine="loop", checkpoint_every=2)


class Heard(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def on_notice(self, sentence: str) -> None:
        self.sentences.append(sentence)


def alone(seed: int = 0) -> LocalOnlyState:
    models = np.random.default_rng(seed).normal(size=(8, 650)).astype(np.float32)
    own = ClientTable.empty(8, models[0].copy()).put(np.arange(8), models)
    return LocalOnlyState(own, own, np.zeros(8), np.zeros(8, np.int64))


def test_an_array_that_a_state_holds_twice_is_written_once() -> None:
    state = alone()
    arrays, _ = flatten(state)
    assert sum(array.nbytes for array in arrays.values()) == 4 * 650 * 9 + 192
    again = from_bytes(to_bytes(state))
    assert again.best.rows is again.models.rows
    np.testing.assert_array_equal(again.models.rows, state.models.rows)
    apart = replace(state, best=replace(state.models, rows=state.models.rows.copy()))  # another array, though the numbers are the same
    assert len(flatten(apart)[0]) == len(arrays) + 1


def wave_of(count: int) -> list[Lane]:
    """Lanes whose states have 23,592 bytes each."""
    problem = worlds.make_world().problem
    lanes = make_lanes([("local", LocalOnly())], range(count), problem, Plan(rounds=30))
    for lane in lanes:
        lane.state = alone(lane.seed)
    return lanes


@pytest.mark.parametrize(
    ("lanes", "gigabytes", "reached", "expected"),
    [
        (2, 50.0, -1, 10),
        (2, 50.0, 10, 20),
        (2, 50.0, 29, 30),
        (2, 3 * 47_184e-9, 0, 10),  # three checkpoints fit, as many as there are
        (2, 2.5 * 47_184e-9, 0, 15),  # two fit
        (2, 2.5 * 47_184e-9, 15, 30),
        (4, 2.5 * 47_184e-9, 0, 30),  # of twice as many lanes one, in waves of two
        (2, 1e-9, 0, 30),  # there is always one
    ],
)
def test_checkpoints_are_so_far_apart_that_all_of_them_fit(lanes: int, gigabytes: float, reached: int, expected: int) -> None:
    planned = CheckpointSchedule(Execution(checkpoint_gb=gigabytes), 30, lanes)
    assert planned.find_segment_end(wave_of(2), reached) == expected


def test_what_they_will_write_is_said_where_it_is_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, wave = CheckpointSchedule(Execution(), 30, 4), wave_of(2)
    assert planned.describe(wave, tmp_path) is None
    monkeypatch.setattr(recorder, "GB", 10**4)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10**9}))
    said = f"Checkpoints will write at most 28.3 GB to {tmp_path}: 3 of 9.4 GB, less what does not change between them."
    assert planned.describe(wave, tmp_path) == said
    tight = replace(planned, execution=Execution(checkpoint_gb=20.0))
    assert "2 of 9.4 GB" in str(tight.describe(wave, tmp_path))
    assert "they are 15 rounds apart, so as to write no more than --checkpoint-gb 20." in str(tight.describe(wave, tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 28 * 10**4}))
    short = "Up to 28.3 GB lie there at a time, and only 28.0 are free: choose another --out, or fewer seeds."
    assert short in str(planned.describe(wave, tmp_path))
    many = CheckpointSchedule(Execution(checkpoint_every=3), 30, 4)  # ten, of which two, whatever else lies in their files, and a draft
    assert "Up to 47.2 GB lie there at a time" in str(many.describe(wave, tmp_path))


def test_models_of_clients_that_have_yet_to_take_part_count_from_the_beginning() -> None:
    wave = wave_of(1)
    nobody = ClientTable.empty(6, np.zeros(18, np.float32))
    wave[0].state = LocalOnlyState(nobody, nobody, np.zeros(6), np.zeros(6, np.int64))
    planned = CheckpointSchedule(Execution(checkpoint_gb=432e-9), 30, 1)  # six models of 18 numbers: one checkpoint fits, no more
    assert planned.find_segment_end(wave, 0) == 30
    assert replace(planned, execution=Execution(checkpoint_gb=864e-9)).find_segment_end(wave, 0) == 15


def test_a_study_says_it_once_and_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    plain = Study.prepare(SETTINGS).run(out=tmp_path / "plain", execution=LOOP, callbacks=[heard])
    assert heard.sentences == []
    monkeypatch.setattr(recorder, "GB", 10**3)
    bounded = replace(LOOP, checkpoint_gb=30.0, seeds_per_wave=1)
    found = Study.prepare(SETTINGS).run(out=tmp_path / "bounded", execution=bounded, callbacks=[heard])
    assert len(heard.sentences) == 1
    assert "they are 6 rounds apart" in heard.sentences[0]
    assert heard.sentences[0] in (tmp_path / "bounded" / "log.txt").read_text()
    assert len(list((tmp_path / "bounded" / "segments").iterdir())) == 2  # a wave for each seed, one segment each
    assert digest(found.evidence) == digest(plain.evidence) == digest(Evidence.open(tmp_path / "bounded"))


def test_waves_are_as_large_as_the_device_and_the_host_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    assert get_wave_memory("cpu") == 2.0
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (80 * gib, 141 * gib))
    monkeypatch.setattr(device, "get_host_memory", lambda: 500 * gib)
    assert get_wave_memory("cuda") == 40.0
    monkeypatch.setattr(device, "get_host_memory", lambda: 30 * gib)
    assert get_wave_memory("cuda:1") == 15.0
    monkeypatch.setattr(device, "get_host_memory", lambda: gib)
    assert get_wave_memory("cuda") == 2.0
    (tmp_path / "told").write_text("MemTotal:  99 kB\nMemAvailable:   2048 kB\n")
    (tmp_path / "silent").write_text("MemTotal:  99 kB\n")
    assert get_host_memory(tmp_path / "told") == 2 << 20
    assert get_host_memory(tmp_path / "silent") == get_host_memory(tmp_path / "missing") == 1 << 62


def test_the_memory_of_a_study_is_settled_when_it_begins_and_kept() -> None:
    assert Execution(device="cpu").resolve() == Execution(device="cpu", memory=2.0)
    assert Execution(device="cpu", memory=7.5).resolve().memory == 7.5
