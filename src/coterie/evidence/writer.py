"""Writing evidence: a folder a study, filled with segments that appear whole or not at all.

A segment holds the tables of some rounds of some lanes, and the states at its end, from which a run goes on. It is written beside its
place, flushed to the disk and then renamed, so that a kill or a full disk costs at most the rounds since the last one. Segments are
numbered as they come; which lanes and rounds one holds is in its `lanes.json`.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from coterie.core.arrays import Array
from coterie.core.errors import UserError
from coterie.core.plain import read_json, write_json
from coterie.core.states import flatten
from coterie.evidence.reader import roster_path
from coterie.evidence.record import LaneKey, Progress
from coterie.evidence.settings import Settings
from coterie.evidence.source import key_of, segments

KEPT_STATES = 2  # segments of a lane that keep their states: the last, and one to go back to


class WriteError(RuntimeError):
    """The evidence could not be written (a full disk, say); what was written before is whole."""


class Writer:
    """Writes one study's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        there = segments(folder)
        self._next = 1 + max((int(path.name) for path in there), default=0)
        self._lanes = {path: [key_of(entry) for entry in read_json(path / "lanes.json")] for path in there if _has_states(path)}

    @classmethod
    def create(cls, folder: Path, settings: Settings, extras: Mapping[str, Any], rosters: Mapping[int, pa.Table]) -> "Writer":
        """Begin a study's folder. One that holds another study, or anything else, is refused."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is not empty: choose another --out, or continue the study in it with --resume.")
        try:
            for name in ("segments", "rosters"):
                (folder / name).mkdir(parents=True)
            for name, tree in extras.items():
                write_json(folder / f"{name}.json", tree)
            _write_rosters(folder, rosters)
            write_json(folder / "settings.json", settings.as_json())  # last: a folder with settings is a study
        except OSError as error:
            raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
        return cls(folder)

    def rosters(self, rosters: Mapping[int, pa.Table]) -> None:
        """Write rosters that have grown; each appears whole or not at all."""
        _write_rosters(self.folder, rosters)

    def segment(self, lanes: Sequence[Progress], tables: Mapping[str, pa.Table]) -> None:
        """Write what these lanes have done since their last segment."""
        final = self.folder / "segments" / f"{self._next:06d}"
        draft = final.with_name(f".draft-{final.name}")
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            for name, table in tables.items():
                # a dictionary for the few methods only: of numbers compression finds repeated ones as well, in less time
                pq.write_table(table, draft / f"{name}.parquet", compression="zstd", compression_level=1, use_dictionary=["method"])
            write_json(draft / "lanes.json", [_entry(lane) for lane in lanes])
            (draft / "states.safetensors").write_bytes(_states(lanes))
            for path in draft.iterdir():
                _flush(path)
            draft.rename(final)
            _flush(final.parent)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise WriteError(
                f"Cannot write to {self.folder}: {error.strerror or error}. Rounds before {min(lane.first for lane in lanes)} are safe; "
                "make room and go on with --resume."
            ) from error
        self._next += 1
        self._lanes[final] = [lane.key for lane in lanes]
        self._drop_old_states()

    def routes(self, routes: Mapping[str, str]) -> None:
        """Keep how trainings were carried out, for the reader and for a resumed run."""
        if routes:
            write_json(self.folder / "routes.json", dict(routes))

    def log(self, line: str) -> None:
        """Append a line to the study's log."""
        with (self.folder / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n")

    def _drop_old_states(self) -> None:
        """States are large: a segment whose lanes all have enough later ones gives its own up."""
        later: Counter[LaneKey] = Counter()
        for path in sorted(self._lanes, reverse=True):
            keys = self._lanes[path]
            if all(later[key] >= KEPT_STATES for key in keys):
                (path / "states.safetensors").unlink(missing_ok=True)
                del self._lanes[path]
            later.update(keys)


def _write_rosters(folder: Path, rosters: Mapping[int, pa.Table]) -> None:
    """Each appears whole or not at all; one that is there already as it is stays."""
    for draw, roster in rosters.items():
        path = roster_path(folder, draw)
        if path.exists() and pq.read_table(path).equals(roster):
            continue
        draft = path.with_name(f".{path.name}")
        pq.write_table(roster, draft)
        draft.replace(path)


def _has_states(segment: Path) -> bool:
    return (segment / "states.safetensors").exists()


def _entry(lane: Progress) -> dict[str, Any]:
    return {**lane.key._asdict(), "first": lane.first, "last": lane.end.round_, "status": lane.end.status, "reason": lane.end.reason}


def _states(lanes: Sequence[Progress]) -> bytes:
    """All states in one file: arrays by the lane's place in `lanes.json`, and where they belong in the header."""
    arrays: dict[str, Array] = {}
    trees: dict[str, Any] = {}
    for place, lane in enumerate(lanes):
        if lane.state is not None:
            parts, trees[str(place)] = flatten(lane.state)
            arrays |= {f"{place}/{path}": value for path, value in parts.items()}
    return bytes(save(arrays, metadata={"trees": json.dumps(trees, sort_keys=True)}))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
