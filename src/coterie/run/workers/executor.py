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
from coterie.run.driver import run_segments
from coterie.run.environment import WorkerHost
from coterie.run.execution import Execution
from coterie.run.lanes import EarlyStopping, Lane
from coterie.run.recorder import CheckpointSchedule, WaveSegment


@dataclass(frozen=True)
class LaneSnapshot:
    """The progress of a lane: all that another process needs to continue it."""

    key: LaneKey
    end: LaneEnd
    state: bytes | None  # as in a checkpoint, so that no array of a device is sent
    pending: bytes | None
    patience: EarlyStopping

    @classmethod
    def from_lane(cls, lane: Lane) -> "LaneSnapshot":
        return cls(lane.key, lane.end, _pack(lane.state), _pack(lane.pending), copy(lane.patience))

    def apply_to(self, lane: Lane) -> Lane:
        """Bring a lane of this key to this progress."""
        lane.resume_from(self.end, _unpack(self.state), _unpack(self.pending))
        lane.patience = copy(self.patience)  # a running lane changes it
        return lane


def _pack(state: State | None) -> bytes | None:
    return None if state is None else to_bytes(state)


def _unpack(data: bytes | None) -> State | None:
    return None if data is None else from_bytes(data)


@dataclass(frozen=True)
class WaveTask:
    """A wave to be run."""

    lanes: tuple[LaneSnapshot, ...]
    schedule: CheckpointSchedule
    execution: Execution  # resolved, with the threads of one worker
    routes: Mapping[str, str]  # that the study has taken so far


@dataclass(frozen=True)
class WaveReport:
    """A completed segment of a task, and the progress of its lanes."""

    segment: WaveSegment
    lanes: tuple[LaneSnapshot, ...]


def run_task(lanes: Sequence[Lane], task: WaveTask, engine: Engine) -> Iterator[WaveReport]:
    """Run a task with a study's lanes, segment by segment."""
    by_key = {lane.key: lane for lane in lanes}
    wave = [snapshot.apply_to(by_key[snapshot.key]) for snapshot in task.lanes]
    live = [lane for lane in wave if lane.status == RUNNING]
    for segment in run_segments(wave, engine, task.schedule):
        yield WaveReport(segment, tuple(map(LaneSnapshot.from_lane, live)))
        live = [lane for lane in live if lane.status == RUNNING]


@dataclass(frozen=True)
class TaskFailed:
    """A task that cannot be run, on any worker."""

    sentence: str
    is_user_error: bool


@dataclass(frozen=True)
class WorkerLost:
    """A worker that is gone, with its progress since its last report."""

    why: str


class TaskCompleted:
    """The end of a task."""


WorkerMessage = WorkerHost | WaveReport | TaskCompleted | WorkerLost  # in this order; a worker may be lost at any time


class Executor(ABC):
    """Workers. Messages about a task are the worker's host, a report for every segment, and the end.

    An error of the study on a worker is raised by `wait` as it would be here.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of tasks that can run at once, now."""

    @abstractmethod
    def begin(self, number: int, task: WaveTask) -> None:
        """Start a task under a number that no running task has."""

    @abstractmethod
    def wait(self) -> tuple[int, WorkerMessage]:
        """The next message about any running task, with its number."""

    @abstractmethod
    def stop(self, number: int) -> None:
        """Stop a task: there are no more messages about it."""

    @abstractmethod
    def close(self) -> None:
        """End all workers, whatever they are doing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
