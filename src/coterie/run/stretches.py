"""A wave of lanes, carried out from one segment to the next: the same wherever that is, in this process or in another."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.engines.engine import Engine
from coterie.evidence.record import RUNNING, LaneKey, RoundRecord
from coterie.run.checkpoints import Checkpoints
from coterie.run.drive import Watch, drive
from coterie.run.lanes import Lane


@dataclass(frozen=True)
class Stretch:
    """What a wave has done since its last segment."""

    before: Mapping[LaneKey, int]  # the last complete round of each lane at its beginning
    records: list[RoundRecord]
    routes: Mapping[str, str]


def stretches(
    wave: Sequence[Lane],
    engine: Engine,
    checkpoints: Checkpoints,
    watch: Watch = lambda lane, record: None,
    started: Callable[[], None] = lambda: None,
) -> Iterator[Stretch]:
    """Advance a wave, stretch by stretch, to its end. `started` is called when it is known how large the states of lanes are."""
    while not all_ended(wave, checkpoints.rounds):
        reached = min(lane.round_ for lane in wave if lane.status == RUNNING)
        before = {lane.key: lane.round_ for lane in wave}
        records: list[RoundRecord] = []

        def watched(lane: Lane, record: RoundRecord, kept: list[RoundRecord] = records) -> None:
            kept.append(record)
            watch(lane, record)

        drive(wave, engine, 0, watched)
        started()
        drive(wave, engine, checkpoints.last_round(wave, reached), watched)
        yield Stretch(before, records, dict(engine.routes()))


def all_ended(wave: Sequence[Lane], rounds: int) -> bool:
    """Whether no lane of a wave has a round to go."""
    return all(lane.round_ >= rounds or lane.status != RUNNING for lane in wave)
