"""Where a run's records go: into segments on disk, or into tables in memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from coterie.core.json_object import read_words
from coterie.evidence.reader import Evidence
from coterie.evidence.record import RUNNING, LaneKey, Progress, RoundRecord
from coterie.evidence.source import Memory
from coterie.evidence.tables import TABLES, tables_of
from coterie.evidence.writer import Writer
from coterie.run.callbacks import Callback
from coterie.run.checkpoints import Checkpoints
from coterie.run.lanes import Lane

if TYPE_CHECKING:
    from coterie.run.study import Study


class Keeper:
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
        return read_words(stored) if stored is not None and stored.exists() else None

    def announce(self, checkpoints: Checkpoints, wave: Sequence[Lane], watchers: Sequence[Callback]) -> None:
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
        tables = tables_of(records, problem.model.outputs, drifting=self.study.changing, sampled=sampled, task=problem.task)
        if self.writer is None:
            for name, table in tables.items():
                self.memory[name].append(table)
            return
        moved = [lane for lane in wave if lane.round_ > before[lane.key] or lane.status != RUNNING]
        self.writer.routes(routes)
        self.writer.segment([Progress(lane.key, before[lane.key] + 1, lane.end, lane.state, lane.aloft) for lane in moved], tables)
        self.writer.log(f"seeds {wave[0].seed} to {wave[-1].seed}: rounds to {max(lane.round_ for lane in wave)} written")
        for lane in moved:
            if lane.status != RUNNING:
                self.writer.log(f"{lane.label} seed {lane.seed}: {lane.end}")

    def evidence(self, lanes: Sequence[Lane]) -> Evidence:
        """What the run has found."""
        if self.writer is not None:
            return Evidence.open(self.writer.folder)
        ends = {lane.key: lane.end for lane in lanes}
        return Evidence(self.study.settings, self.study.rosters, Memory(self.memory, ends))
