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
from coterie.evidence.tables import TABLES, make_tables
from coterie.evidence.writer import Writer
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.waves import estimate_state_bytes

if TYPE_CHECKING:
    from coterie.run.study import Study


GB = 10**9


NOTICE_GB = 1.0  # GB in all


MAX_STATES_ON_DISK = (
    2 * KEPT_STATES + 1
)  # whole states on the disk: the files that a checkpoint rests on hold at most twice its own, and the next


@dataclass(frozen=True)
class CheckpointSchedule:
    """Those of one study."""

    execution: Execution
    rounds: int
    lanes: int  # of the whole study, wave after wave

    def find_segment_end(self, wave: Sequence[Lane], reached: int) -> int:
        """The round at which the next segment of a wave ends, whose lanes, of which the slowest has `reached` this round, have started."""
        every = self._every(self._gigabytes(wave))
        return min((max(reached, 0) // every + 1) * every, self.rounds)

    def told(self, wave: Sequence[Lane], folder: Path) -> str | None:
        """What the study will write at most, judged by its first wave; nothing where that is little."""
        each = self._gigabytes(wave)
        every = self._every(each)
        count = ceil(self.rounds / every)
        if count * each < NOTICE_GB:
            return None
        said = f"Checkpoints will write at most {count * each:.1f} GB to {folder}: {count} of {each:.1f} GB"
        said += ", less what does not change between them"
        if every > self.execution.checkpoint_every:
            said += f"; they are {every} rounds apart, so as to write no more than --checkpoint-gb {self.execution.checkpoint_gb:g}"
        free = shutil.disk_usage(folder).free / GB
        at_once = min(count, MAX_STATES_ON_DISK) * each
        tight = f". Up to {at_once:.1f} GB lie there at a time, and only {free:.1f} are free: choose another --out, or fewer seeds."
        return said + (tight if free < at_once else ".")

    def _every(self, each: float) -> int:
        fitting = max(1, int(self.execution.checkpoint_gb // each)) if each > 0 else self.rounds
        return max(self.execution.checkpoint_every, ceil(self.rounds / fitting) if self.rounds else 1)

    def _gigabytes(self, wave: Sequence[Lane]) -> float:
        """The states of all lanes, if those of the others are as large as this wave's; models of clients that will have taken part
        count from the beginning."""
        return sum(max(_count_state_bytes(lane), estimate_state_bytes(lane)) for lane in wave) / GB * self.lanes / len(wave)


def _count_state_bytes(lane: Lane) -> int:
    """Bytes of a lane's state as it is."""
    states = [state for state in (lane.state, lane.pending) if state is not None]
    return sum(array.nbytes for state in states for array in flatten(state)[0].values())


class Recorder:
    """Where a run's records go: into segments on disk, or into tables in memory."""

    def __init__(self, study: "Study", writer: Writer | None) -> None:
        self.study, self.writer = study, writer
        self.memory: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        self._announced = writer is None

    @property
    def folder(self) -> Path | None:
        return self.writer.folder if self.writer is not None else None

    @property
    def routes(self) -> Mapping[str, str] | None:
        """Those that the study has taken before, which a resumed one keeps to."""
        stored = self.folder / "routes.json" if self.folder is not None else None
        return read_json_strings(stored) if stored is not None and stored.exists() else None

    def announce(self, checkpoints: CheckpointSchedule, wave: Sequence[Lane], watchers: Sequence[Callback]) -> None:
        """Say, once, what checkpoints will write, where that is much."""
        sentence = None if self._announced or self.folder is None else checkpoints.told(wave, self.folder)
        self._announced = True
        if sentence is not None and self.writer is not None:
            self.writer.log(sentence)
            for watcher in watchers:
                watcher.on_notice(sentence)

    def keep(self, wave: Sequence[Lane], before: Mapping[LaneKey, int], records: list[RoundRecord], routes: Mapping[str, str]) -> None:
        """The new rounds of a wave, by lane and round."""
        order = {lane.key: lane.number for lane in wave}
        records.sort(key=lambda record: (order[record.key], record.round_))
        problem = next(iter(self.study.problems.values()))
        sampled = self.study.settings.plan.keep_clients is not None
        tables = make_tables(records, problem.model.outputs, drifting=self.study.changing, sampled=sampled, task=problem.task)
        if self.writer is None:
            for name, table in tables.items():
                self.memory[name].append(table)
            return
        moved = [lane for lane in wave if lane.round_ > before[lane.key] or lane.status != RUNNING]
        self.writer.routes(routes)
        self.writer.segment([LaneProgress(lane.key, before[lane.key] + 1, lane.end, lane.state, lane.pending) for lane in moved], tables)
        self.writer.log(f"seeds {wave[0].seed} to {wave[-1].seed}: rounds to {max(lane.round_ for lane in wave)} written")
        for lane in moved:
            if lane.status != RUNNING:
                self.writer.log(f"{lane.label} seed {lane.seed}: {lane.end}")

    def evidence(self, lanes: Sequence[Lane]) -> Evidence:
        """What the run has found."""
        if self.writer is not None:
            return Evidence.open(self.writer.folder)
        ends = {lane.key: lane.end for lane in lanes}
        return Evidence(self.study.settings, self.study.rosters, MemorySource(self.memory, ends))
