"""Writing evidence: one folder a study, filled with segments that are written atomically; and studies that grow.

A segment holds the tables of some rounds of some lanes, and the states at its end, from which a run resumes. It is written as a draft,
flushed to disk and then renamed, so that a kill or a full disk costs at most the rounds since the last one. Its `lanes.json` lists its
lanes and rounds, its manifest the hashes of its files.

A study grows by more methods, seeds, draws or rounds, with nothing else changed. Randomness is keyed, so existing results stay as they
are and the whole equals one run of all.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from coterie._util.files import FolderLock, hash_file, sync_to_disk
from coterie._util.json_io import format_json, read_json, write_json
from coterie.evidence.checkpoint import CheckpointRetention
from coterie.evidence.folder import create_folder, get_roster_path, list_segments, read_roster, write_roster
from coterie.evidence.manifest import HEAD, MANIFEST, Link, StudyHead, compute_origin, describe_rewrite, make_manifest, read_study_head
from coterie.evidence.records import LaneProgress
from coterie.evidence.settings import Settings


class WriteError(RuntimeError):
    """The evidence could not be written, for example because the disk is full; what was written before is intact."""


class Writer:
    """Writes one study's folder, which is locked until the writer is closed."""

    def __init__(self, folder: Path, hold: FolderLock | None = None) -> None:
        self.folder = folder
        self._hold = hold
        self._head = read_study_head(folder) or StudyHead.from_folder(folder)
        for name in ("segments", "rosters"):
            (folder / name).mkdir(exist_ok=True)
        self._next = 1 + max((int(path.name) for path in list_segments(folder)), default=0)
        self._kept = CheckpointRetention(folder)
        self._routes = dict(read_json(folder / "routes.json")) if (folder / "routes.json").is_file() else {}

    @classmethod
    def create(cls, folder: Path, settings: Settings, extras: Mapping[str, Any], rosters: Mapping[int, pa.Table]) -> "Writer":
        """Create a study's folder; one that is not empty is refused."""

        def fill(draft: Path) -> None:
            for name in ("segments", "rosters"):
                (draft / name).mkdir()
            for name, tree in extras.items():
                write_json(draft / f"{name}.json", tree)
            for draw, roster in rosters.items():
                write_roster(get_roster_path(draft, draw), roster)
            write_json(draft / "settings.json", settings.as_json())
            StudyHead.from_folder(draft).write(draft)

        return cls(folder, create_folder(folder, "settings.json", fill))  # a folder with settings is a study

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._hold is not None:
            self._hold.close()

    def rosters(self, rosters: Mapping[int, pa.Table]) -> list[str]:
        """Write rosters that have grown or are damaged; notices about the latter."""
        notices = []
        for draw, roster in rosters.items():
            path = get_roster_path(self.folder, draw)
            name = f"rosters/{path.name}"
            is_intact = path.exists() and self._head.files.get(name) == hash_file(path)
            if not is_intact or not read_roster(path).equals(roster):
                write_roster(path, roster)
                self._head = self._head.with_file(name, hash_file(path))
                self._head.write(self.folder)
            if not is_intact:
                notices.append(describe_rewrite(path))
        return notices

    def segment(self, lanes: Sequence[LaneProgress], tables: Mapping[str, pa.Table]) -> None:
        """Write the progress of these lanes since their last segment."""
        final = self.folder / "segments" / f"{self._next:06d}"
        draft = final.with_name(f".draft-{final.name}")
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            for name, table in tables.items():
                write_table(table, draft / f"{name}.parquet")
            entries = [
                {**lane.key._asdict(), "first": lane.first, "last": lane.end.round_, "status": lane.end.status, "reason": lane.end.reason}
                for lane in lanes
            ]
            (draft / "lanes.json").write_text(format_json(entries), encoding="utf-8")  # all are flushed together, below
            checkpoint = self._kept.draft(self._next, lanes)
            checkpoint.write(draft)
            make_manifest(draft, final.name, self._head, entries, tables, self._routes).write(draft)
            head = replace(self._head, last=Link(final.name, hash_file(draft / MANIFEST)))
            for path in (*draft.iterdir(), draft):
                sync_to_disk(path)
            draft.rename(final)
            sync_to_disk(final.parent)
            head.write(self.folder)
            self._head = head
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise WriteError(
                f"Cannot write to {self.folder}: {error.strerror or error}. Rounds before {min(lane.first for lane in lanes)} are safe; "
                "make room and resume with --resume."
            ) from error
        self._kept.record_written(self._next, lanes, checkpoint)
        self._next += 1

    def routes(self, routes: Mapping[str, str]) -> None:
        """Record the routes of training, for the reader and for a resumed run."""
        if not routes.items() <= self._routes.items():
            self._routes |= routes
            write_json(self.folder / "routes.json", self._routes)

    def log(self, line: str) -> None:
        """Append a line to the study's log."""
        with (self.folder / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n")


def write_table(table: pa.Table, file: Path | IO[bytes]) -> None:
    """Write a table of a segment as Parquet.

    Only the few methods get a dictionary: repeated numbers are found by the compression as well, in less time.
    """
    pq.write_table(table, file, compression="zstd", compression_level=1, use_dictionary=["method"])


GROWTH_FOLDER = ".growing"  # the files of the grown study, complete: a resumed run moves them into place first


def grow(folder: Path, settings: Settings, data: Mapping[str, Any], rosters: Mapping[int, pa.Table]) -> None:
    """Replace the settings of the study in a folder. After a kill, a resumed run finds either the old or the new study."""
    head = read_study_head(folder)
    assert head is not None  # it has been repaired
    draft = folder / f".draft{GROWTH_FOLDER}"
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "rosters").mkdir(parents=True)
    (draft / "settings.json").write_text(format_json(settings.as_json()), encoding="utf-8", newline="\n")
    if "data.json" in head.files:
        (draft / "data.json").write_text(format_json(data), encoding="utf-8", newline="\n")
    for draw, roster in rosters.items():
        write_roster(get_roster_path(draft, draw), roster)
    files = {**head.files, **{path.relative_to(draft).as_posix(): hash_file(path) for path in draft.rglob("*") if path.is_file()}}
    start, segments = compute_origin(files), list_segments(folder)
    follows = {**head.follows, segments[0].name: start} if segments else {}
    replace(head, files=files, last=head.last if segments else start, follows=follows).write(draft)
    for path in (*draft.rglob("*"), draft):
        sync_to_disk(path)
    draft.rename(folder / GROWTH_FOLDER)
    sync_to_disk(folder)
    finish_growing(folder)


def finish_growing(folder: Path) -> None:
    """Move the files of an interrupted growth into place; the head comes last."""
    ready = folder / GROWTH_FOLDER
    if not ready.is_dir():
        return
    names = [path.relative_to(ready) for path in ready.rglob("*") if path.is_file()]
    for name in sorted(names, key=lambda name: (name.name == HEAD, name)):
        (folder / name).parent.mkdir(exist_ok=True)
        (ready / name).replace(folder / name)
        sync_to_disk((folder / name).parent)
    shutil.rmtree(ready)
    sync_to_disk(folder)
