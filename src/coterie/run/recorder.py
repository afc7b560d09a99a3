"""The recorder: writes a run's records to segments on disk or to tables in memory, and decides how far apart checkpoints are.

State sizes are known once lanes have started; how much of a state changes between checkpoints is not. So the bound is on whole states,
the most that can be written. With larger states, checkpoints are further apart.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from coterie._util.json_io import read_json_strings
from coterie.core.states import flatten
from coterie.evidence.checkpoint import KEPT_STATES
from coterie.evidence.folder import MemorySource
from coterie.evidence.reader import Evidence
from coterie.evidence.records import RUNNING, LaneKey, LaneProgress, RoundRecord
from coterie.evidence.tables import TABLES
from coterie.evidence.writer import Writer
from coterie.run.callbacks import Callback, notify
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.waves import estimate_state_bytes

if TYPE_CHECKING:
    from coterie.run.study import Study

GB = 10**9
NOTICE_GB = 1.0  # GB in all from which a notice is given
# The files that a checkpoint needs hold at most twice its own bytes, and the next one is written beside them.
MAX_STATES_ON_DISK = 2 * KEPT_STATES + 1


@dataclass(frozen=True)
class CheckpointSchedule:
    """The checkpoints of one study."""

    execution: Execution
    rounds: int
    lanes: int  # of the whole study

    def find_segment_end(self, wave: Sequence[Lane], reached: int) -> int:
        """The round at which the next segment of a wave ends; its lanes have started, and the slowest has `reached` this round."""
        every = self._every(self._gigabytes(wave))
        return min((max(reached, 0) // every + 1) * every, self.rounds)

    def describe(self, wave: Sequence[Lane], folder: Path) -> str | None:
        """The most that the study will write, judged by its first wave; None where that is little."""
        each = self._gigabytes(wave)
        every = self._every(each)
        count = ceil(self.rounds / every)
        if count * each < NOTICE_GB:
            return None
        text = f"Checkpoints will write at most {count * each:.1f} GB to {folder}: {count} of {each:.1f} GB"
        text += ", less what does not change between them"
        if every > self.execution.checkpoint_every:
            text += f"; they are {every} rounds apart, so as to write no more than --checkpoint-gb {self.execution.checkpoint_gb:g}"
        free = shutil.disk_usage(folder).free / GB
        at_once = min(count, MAX_STATES_ON_DISK) * each
        tight = f". Up to {at_once:.1f} GB lie there at a time, and only {free:.1f} are free: choose another --out, or fewer seeds."
        return text + (tight if free < at_once else ".")

    def _every(self, each: float) -> int:
        fitting = max(1, int(self.execution.checkpoint_gb // each)) if each > 0 else self.rounds
        return max(self.execution.checkpoint_every, ceil(self.rounds / fitting) if self.rounds else 1)

    def _gigabytes(self, wave: Sequence[Lane]) -> float:
        """The states of all lanes, if those of the others are as large as this wave's; models of clients that will have taken part
        count from the beginning."""
        return sum(max(_count_state_bytes(lane), estimate_state_bytes(lane)) for lane in wave) / GB * self.lanes / len(wave)


def _count_state_bytes(lane: Lane) -> int:
    states = [state for state in (lane.state, lane.pending) if state is not None]
    return sum(array.nbytes for state in states for array in flatten(state)[0].values())


@dataclass(frozen=True)
class WaveSegment:
    """The progress of a wave since its last segment."""

    before: Mapping[LaneKey, int]  # the last complete round of each lane at its beginning
    records: list[RoundRecord]
    routes: Mapping[str, str]


class Recorder:
    """Where a run's records go: to segments on disk or tables in memory, and to the callbacks."""

    def __init__(self, study: "Study", writer: Writer | None, schedule: CheckpointSchedule, watchers: Sequence[Callback]) -> None:
        self.study, self.writer, self.schedule, self.watchers = study, writer, schedule, watchers
        self.memory: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        self._is_announced = False

    @property
    def routes(self) -> Mapping[str, str] | None:
        """The routes that the study has taken before, which a resumed one keeps."""
        path = self.writer.folder / "routes.json" if self.writer is not None else None
        return read_json_strings(path) if path is not None and path.exists() else None

    def notify(self, sentence: str) -> None:
        """Log a sentence and show it to the user."""
        if self.writer is not None:
            self.writer.log(sentence)
        notify(self.watchers, sentence)

    def watch(self, lane: Lane, record: RoundRecord) -> None:
        for watcher in self.watchers:
            watcher.on_round(lane, record)

    def announce(self, wave: Sequence[Lane]) -> None:
        """Report once what checkpoints will write, where that is much."""
        if self._is_announced or self.writer is None:
            return
        self._is_announced = True
        if (sentence := self.schedule.describe(wave, self.writer.folder)) is not None:
            self.notify(sentence)

    def record(self, wave: Sequence[Lane], segment: WaveSegment) -> None:
        """Store the new rounds of a wave, by lane and round."""
        order, before = {lane.key: lane.number for lane in wave}, segment.before
        segment.records.sort(key=lambda record: (order[record.key], record.round_))
        tables = self.study.make_tables(segment.records)
        if self.writer is None:
            for name, table in tables.items():
                self.memory[name].append(table)
            return
        moved = [lane for lane in wave if lane.round_ > before[lane.key] or lane.status != RUNNING]
        self.writer.routes(segment.routes)
        self.writer.segment([LaneProgress(lane.key, before[lane.key] + 1, lane.end, lane.state, lane.pending) for lane in moved], tables)
        self.writer.log(f"seeds {wave[0].seed} to {wave[-1].seed}: rounds to {max(lane.round_ for lane in wave)} written")
        for lane in moved:
            if lane.status != RUNNING:
                self.writer.log(f"{lane.label} seed {lane.seed}: {lane.end}")

    def evidence(self, lanes: Sequence[Lane]) -> Evidence:
        """The evidence of the run."""
        if self.writer is not None:
            return Evidence.open(self.writer.folder)
        ends = {lane.key: lane.end for lane in lanes}
        return Evidence(self.study.settings, self.study.rosters, MemorySource(self.memory, ends))
