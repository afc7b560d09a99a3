"""The executor interface: tasks and lane snapshots sent to workers, and the messages they send back.

Data are sent once, not with each task.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from coterie.core.states import State, from_bytes, to_bytes
from coterie.engines.engine import Engine
from coterie.evidence.records import RUNNING, LaneEnd, LaneKey
from coterie.run.driver import WaveSegment, run_segments
from coterie.run.environment import WorkerHost
from coterie.run.execution import Execution
from coterie.run.lanes import EarlyStopping, Lane
from coterie.run.recorder import CheckpointSchedule


@dataclass(frozen=True)
class LaneSnapshot:
    """Where a lane stands: all that another process needs to go on with it."""

    key: LaneKey
    end: LaneEnd
    state: bytes | None  # as in a checkpoint: no array of a device travels
    pending: bytes | None  # answers that are on their way
    patience: EarlyStopping

    @classmethod
    def of(cls, lane: Lane) -> "LaneSnapshot":
        return cls(lane.key, lane.end, _pack(lane.state), _pack(lane.pending), copy(lane.patience))

    def put(self, lane: Lane) -> Lane:
        """Let a lane of that name stand there."""
        lane.resume_from(self.end, _unpack(self.state), _unpack(self.pending))
        lane.patience = copy(self.patience)  # which a lane that runs changes
        return lane


def _pack(state: State | None) -> bytes | None:
    return None if state is None else to_bytes(state)


def _unpack(data: bytes | None) -> State | None:
    return None if data is None else from_bytes(data)


@dataclass(frozen=True)
class WaveTask:
    """A wave to be carried out."""

    lanes: tuple[LaneSnapshot, ...]
    checkpoints: CheckpointSchedule
    execution: Execution  # settled, with the threads of one worker
    routes: Mapping[str, str]  # that the study has taken so far


@dataclass(frozen=True)
class WaveReport:
    """A stretch of an errand, done: the driver writes it down, and its lanes stand where the worker's do."""

    segment: WaveSegment
    moved: tuple[LaneSnapshot, ...]


def run_task(lanes: Sequence[Lane], errand: WaveTask, engine: Engine) -> Iterator[WaveReport]:
    """Carry out an errand with a study's lanes, stretch by stretch."""
    by_key = {lane.key: lane for lane in lanes}
    wave = [standing.put(by_key[standing.key]) for standing in errand.lanes]
    live = [lane for lane in wave if lane.status == RUNNING]
    for stretch in run_segments(wave, engine, errand.checkpoints):
        yield WaveReport(stretch, tuple(map(LaneSnapshot.of, live)))
        live = [lane for lane in live if lane.status == RUNNING]


@dataclass(frozen=True)
class TaskFailed:
    """An errand could not be carried out, and would not be elsewhere."""

    sentence: str
    is_user_error: bool  # something to correct, and no fault of Coterie's


@dataclass(frozen=True)
class WorkerLost:
    """A worker that is gone, with what it had done since its last report."""

    why: str


class TaskCompleted:
    """An errand has come to its end."""


WorkerMessage = WorkerHost | WaveReport | TaskCompleted | WorkerLost  # in this order; a worker that is gone may come at any time


class Executor(ABC):
    """Workers. Each errand is told of by where it is carried out, by a report for every stretch, and by its end.

    What a worker cannot do by the study's fault is raised by `wait` as it would be here.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Errands that can be carried out at once, now."""

    @abstractmethod
    def begin(self, number: int, errand: WaveTask) -> None:
        """Have an errand carried out, by a number that nobody else has at the moment."""

    @abstractmethod
    def wait(self) -> tuple[int, WorkerMessage]:
        """The next news of any errand that was begun, by its number."""

    @abstractmethod
    def stop(self, number: int) -> None:
        """Give up an errand: nothing more is told of it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all workers, whatever they are at."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
