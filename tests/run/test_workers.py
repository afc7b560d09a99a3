"""Waves on several workers: the same digest however they are cut, handed out, lost and handed out again."""

import os
import pickle
import signal
import struct
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.evidence import Evidence, digest
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.methods.fedavg import FedAvg
from coterie.run.callbacks import Callback
from coterie.run.environment import WorkerHost
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.study import Study
from coterie.run.waves import split_for_workers
from coterie.run.workers import processes, scheduler
from coterie.run.workers.executor import WorkerLost
from coterie.run.workers.processes import ALIGNMENT, read_shared_file, write_shared_file
from run.executor_here import ExecutorHere
from run.failing_methods import BrokenMethod, RefusingMethod

FIVE = ("fedavg", "fedsim(clusters=2)", "fesem(groups=2)", "ifca(groups=2)", "local")
SETTINGS = Settings(
    methods=FIVE, data="digits/rotated(clients=8,groups=4)", seeds=(0, 1), plan=Plan(rounds=5, cohort=4, local=Local(epochs=1, lr=0.1))
)
ALONE = Execution(checkpoint_every=2, threads=1)


@pytest.fixture(scope="module")
def alone() -> str:
    """The digest of the study in one process."""
    return digest(Study.prepare(SETTINGS).run(execution=ALONE).evidence)


Hired = Callable[..., list[ExecutorHere]]


@pytest.fixture
def hired(monkeypatch: pytest.MonkeyPatch) -> Hired:
    """Lets studies have executors of this process; those that they had."""

    def hire(loses: Callable[[int, int], bool] = lambda number, reports: False) -> list[ExecutorHere]:
        executors: list[ExecutorHere] = []

        def make(study: Study, size: int) -> ExecutorHere:
            executors.append(ExecutorHere(study, size, loses))
            return executors[-1]

        monkeypatch.setattr(scheduler, "ProcessExecutor", make)
        return executors

    return hire


class Told(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.rounds: list[tuple[Any, int]] = []

    def on_notice(self, sentence: str) -> None:
        self.notices.append(sentence)

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        self.rounds.append((lane.key, record.round_))


@pytest.mark.parametrize("workers", [2, 3, 20])
def test_however_it_is_spread_the_digest_is_the_same(hired: Hired, alone: str, workers: int) -> None:
    executors = hired()
    result = Study.prepare(SETTINGS).run(execution=replace(ALONE, workers=workers))
    assert digest(result.evidence) == alone
    assert executors[0].most == min(workers, 10)  # of ten lanes: methods of one seed are spread as well
    assert result.run is not None
    assert all(lane.round_ == 5 and lane.state is not None for lane in result.run.lanes)  # the driver has the models


def test_what_is_lost_goes_on_from_its_last_segment_and_every_round_is_told_once(hired: Hired, alone: str, tmp_path: Path) -> None:
    lost: list[int] = []

    def loses(number: int, reports: int) -> bool:
        again = reports == 1 and lost.count(number) < 2  # each worker twice, after its first report
        if again:
            lost.append(number)
        return again

    executors, told = hired(loses), Told()
    result = Study.prepare(SETTINGS).run(out=tmp_path / "s", execution=replace(ALONE, workers=2), callbacks=[told])
    assert digest(result.evidence) == alone
    assert len(lost) == 4
    again = [task for number, task in executors[0].begun[2:]]
    assert {snapshot.end.round_ for task in again for snapshot in task.lanes} == {2}  # none started over
    assert len(told.rounds) == len(set(told.rounds)) == 10 * 6
    assert sum("continue on another one from round 2" in sentence for sentence in told.notices) == 4


def test_rounds_that_no_worker_survives_end_the_study_and_keep_the_others(hired: Hired, alone: str, tmp_path: Path) -> None:
    hired(lambda number, reports: number == 1 and reports == 1)
    with pytest.raises(UserError, match="3 workers in a row were lost over the same rounds of seeds 1 to 1"):
        Study.prepare(SETTINGS).run(out=tmp_path / "s", execution=replace(ALONE, workers=2))
    assert all(end.round_ >= 2 for end in Evidence.open(tmp_path / "s").ends().values())
    hired()
    result = Study.prepare(SETTINGS).run(out=tmp_path / "s", resume=True, execution=replace(ALONE, workers=3))
    assert digest(result.evidence) == alone


def test_a_study_that_stops_early_does_so_in_the_same_round_after_a_loss(hired: Hired) -> None:
    plan = replace(SETTINGS.plan, rounds=25, patience=1)
    patient = replace(SETTINGS, data="digits/rotated(clients=8,groups=4,validation=0.3)", plan=plan, methods=("fedavg", "local"))
    whole = Study.prepare(patient).run(execution=ALONE)
    assert {end.status for end in whole.evidence.ends().values()} == {"stopped"}
    lost: set[tuple[int, int]] = set()

    def loses(number: int, reports: int) -> bool:
        first = (number, reports) not in lost
        lost.add((number, reports))
        return first  # before each of its reports once

    hired(loses)
    assert digest(Study.prepare(patient).run(execution=replace(ALONE, workers=2)).evidence) == digest(whole.evidence)


def test_answers_that_are_on_their_way_travel_with_their_lane(hired: Hired) -> None:
    plan = replace(SETTINGS.plan, cohort=6, buffer_size=2, concurrency=5, speeds="lognormal(1.0)")
    late = replace(SETTINGS, plan=plan, methods=("fedavg", "simprox"))
    lost: set[tuple[int, int]] = set()

    def loses(number: int, reports: int) -> bool:
        first = (number, reports) not in lost
        lost.add((number, reports))
        return first

    hired(loses)
    spread = Study.prepare(late).run(execution=replace(ALONE, workers=2)).evidence
    assert digest(spread) == digest(Study.prepare(late).run(execution=ALONE).evidence)


class OverAfter:
    """A budget that allows so many waves, and is over once it was asked so often."""

    def __init__(self, waves: int, looks: int) -> None:
        self.waves, self.looks = waves, looks

    @property
    def over(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def begin_wave(self) -> bool:
        self.waves -= 1
        return self.waves >= 0


def test_a_budget_ends_with_whole_segments_of_whole_seeds(hired: Hired) -> None:
    hired()
    result = Study.prepare(SETTINGS).run(execution=replace(ALONE, workers=4), budget=OverAfter(waves=1, looks=1))
    ends = result.evidence.ends()
    assert {key.seed: end.round_ for key, end in ends.items()} == {0: 4, 1: -1}  # the second wave was not begun
    assert len({(key.seed, end.round_) for key, end in ends.items()}) == 2  # the same of all methods


@settings(max_examples=40, deadline=None)
@example(seeds=4, methods=2, places=6, whole_seeds=False, most=3)  # waves of unequal size
@given(
    seeds=st.integers(1, 9),
    methods=st.integers(1, 5),
    places=st.integers(1, 12),
    whole_seeds=st.booleans(),
    most=st.none() | st.integers(1, 4),
)
def test_cuts_hold_every_lane_once(seeds: int, methods: int, places: int, whole_seeds: bool, most: int | None) -> None:
    lanes = Study.prepare(replace(SETTINGS, seeds=tuple(range(seeds)), methods=FIVE[:methods])).lanes()
    pieces = split_for_workers(lanes, 1 << 40, most, places, whole_seeds=whole_seeds)
    assert [lane for wave in pieces for lane in wave] == lanes
    assert all(pieces)
    if whole_seeds:
        assert all(len(wave) % methods == 0 for wave in pieces)
    else:
        assert len(pieces) >= min(places, len(lanes))  # no place is idle while there are lanes to give it
    if most is not None:
        assert all(len({lane.seed for lane in wave}) <= most for wave in pieces)


def test_a_shared_file_is_mapped_and_not_copied() -> None:
    made: dict[str, Any] = {"a": np.arange(1000, dtype=np.float32), "b": np.ones((7, 3)), "c": "words"}
    with write_shared_file(made) as file:
        again = read_shared_file(file.fileno())
    assert again["c"] == "words"
    for name in ("a", "b"):
        assert np.array_equal(again[name], made[name])
        assert not again[name].flags.writeable
        assert again[name].ctypes.data % ALIGNMENT == 0


def test_what_has_no_name_cannot_be_sent() -> None:
    def own_loss(outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(UserError, match=r"cannot be sent to workers .* must stand in a module"):
        ct.study("fedavg", data="synthetic(0,0,clients=4)", rounds=1, loss=own_loss, workers=2)


@pytest.mark.parametrize("data", ["digits/rotated(clients=10,groups=2)/unseen(0.3)", "digits/rotated(clients=4,groups=2)/drift(at=2)"])
def test_a_study_survives_being_sent(data: str) -> None:
    """A drifting world keeps what it has found out by the identity of its phases: that must not travel."""
    plan = replace(SETTINGS.plan, cohort=2)
    study = Study.prepare(replace(SETTINGS, data=data, methods=("fedavg",), seeds=(0,), plan=plan))
    before = digest(study.run(execution=ALONE).evidence)
    assert digest(pickle.loads(pickle.dumps(study)).run(execution=ALONE).evidence) == before


def test_given_models_can_be_sent() -> None:
    federation = load("digits/rotated(clients=4,groups=2)", 0, None)
    inputs = int(np.prod(federation.input_shape))
    from coterie.models.catalogue import resolve_model

    for model in (nn.Sequential(nn.Flatten(), nn.Linear(inputs, 10)), nn.Flatten):
        _, make = resolve_model(model)
        assert type(pickle.loads(pickle.dumps(make))("", federation.input_shape, 10)) in (nn.Sequential, nn.Flatten)


def test_a_worker_that_computes_otherwise_is_refused() -> None:
    here = WorkerHost.current()
    here.check_same_as(here)
    kernels = dict.fromkeys(here.environment["blas"], "Prescott")
    assert kernels
    other = WorkerHost("elsewhere", 1, {**here.environment, "blas": kernels})
    with pytest.raises(UserError, match=r"The worker on elsewhere does not compute as the driver on .* Prescott .*OPENBLAS_CORETYPE"):
        other.check_same_as(here)
    with pytest.raises(UserError, match="kernels for no vector units"):
        WorkerHost("elsewhere", 1, {**here.environment, "compiled": "no vector units"}).check_same_as(here)


class KillsAWorker(Callback):
    """Ends a worker as kill -9 does, by its process id, when the first report is there."""

    def __init__(self) -> None:
        self.killed = 0

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        if not self.killed:
            own = [child for child in psutil.Process().children() if "coterie.run.workers.processes" in child.cmdline()]
            self.killed = own[-1].pid
            os.kill(self.killed, signal.SIGKILL)


def test_real_processes_give_the_same_digest_though_one_is_killed(alone: str, tmp_path: Path) -> None:
    watcher, told = KillsAWorker(), Told()
    execution = replace(ALONE, workers=2, checkpoint_every=1)
    result = Study.prepare(SETTINGS).run(out=tmp_path / "s", execution=execution, callbacks=[watcher, told])
    assert digest(result.evidence) == alone
    assert watcher.killed
    assert not psutil.pid_exists(watcher.killed)
    assert any(f"the process {watcher.killed} ended (-9)" in sentence for sentence in told.notices)
    assert not [child for child in psutil.Process().children() if "coterie.run.workers.processes" in child.cmdline()]


def test_a_worker_that_ends_in_the_middle_of_a_message_is_lost_as_any_other() -> None:
    with write_shared_file({}) as file:
        process = processes._WorkerProcess(file)
    process.close()
    process.connection, theirs = Pipe()
    os.write(theirs.fileno(), struct.pack("!i", 1000) + b"the beginning")  # a message of a thousand bytes, as `Connection` writes it
    theirs.close()
    assert process.receive() == WorkerLost(f"the process {process.process.pid} ended (-9)")


@pytest.mark.parametrize(
    ("method", "error", "sentence"),
    [
        (RefusingMethod(), UserError, "^The method cannot run round 1: choose another one.$"),
        (BrokenMethod(), RuntimeError, "^A worker failed.\n(.*\n)*TypeError: arrays, scalars, tuples and known kinds can be written"),
    ],
)
def test_an_error_on_a_worker_arrives_with_its_sentence(method: FedAvg, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        ct.study(method, data="synthetic(0,0,clients=4)", rounds=2, seeds=range(2), workers=2)


@pytest.mark.parametrize(("words", "sentence"), [({"workers": 0}, "workers"), ({"gpus_per_wave": 1}, "gpus_per_wave= is for waves on Ray")])
def test_workers_that_cannot_be_are_refused(words: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Execution(**words)  # type: ignore[arg-type]
