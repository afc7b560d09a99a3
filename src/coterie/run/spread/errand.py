"""What travels between the driver and a worker: a wave as it stands, and what has been done of it. Never data, which are sent once."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from coterie.core.states import State, from_bytes, to_bytes
from coterie.engines.engine import Engine
from coterie.evidence.record import RUNNING, LaneEnd, LaneKey
from coterie.run.checkpoints import Checkpoints
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.patience import Patience
from coterie.run.stretches import Stretch, stretches


@dataclass(frozen=True)
class LaneStanding:
    """Where a lane stands: all that another process needs to go on with it."""

    key: LaneKey
    end: LaneEnd
    state: bytes | None  # as in a checkpoint: no array of a device travels
    aloft: bytes | None  # answers that are on their way
    patience: Patience

    @classmethod
    def of(cls, lane: Lane) -> "LaneStanding":
        return cls(lane.key, lane.end, _packed(lane.state), _packed(lane.aloft), copy(lane.patience))

    def put(self, lane: Lane) -> Lane:
        """Let a lane of that name stand there."""
        lane.go_on(self.end, _unpacked(self.state), _unpacked(self.aloft))
        lane.patience = copy(self.patience)  # which a lane that runs changes
        return lane


def _packed(state: State | None) -> bytes | None:
    return None if state is None else to_bytes(state)


def _unpacked(data: bytes | None) -> State | None:
    return None if data is None else from_bytes(data)


@dataclass(frozen=True)
class Errand:
    """A wave to be carried out."""

    lanes: tuple[LaneStanding, ...]
    checkpoints: Checkpoints
    execution: Execution  # settled, with the threads of one worker
    routes: Mapping[str, str]  # that the study has taken so far


@dataclass(frozen=True)
class WaveReport:
    """A stretch of an errand, done: the driver writes it down, and its lanes stand where the worker's do."""

    stretch: Stretch
    moved: tuple[LaneStanding, ...]


def carry_out(lanes: Sequence[Lane], errand: Errand, engine: Engine) -> Iterator[WaveReport]:
    """Carry out an errand with a study's lanes, stretch by stretch."""
    by_key = {lane.key: lane for lane in lanes}
    wave = [standing.put(by_key[standing.key]) for standing in errand.lanes]
    live = [lane for lane in wave if lane.status == RUNNING]
    for stretch in stretches(wave, engine, errand.checkpoints):
        yield WaveReport(stretch, tuple(map(LaneStanding.of, live)))
        live = [lane for lane in live if lane.status == RUNNING]
