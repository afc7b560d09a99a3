"""A study's folder: atomic creation, segments, rosters, tables by batches, and quarantine for damaged parts.

Everything is made in a draft within the folder, flushed to disk, then renamed; the file that makes it a study comes last. After a kill
or on a full disk the same command starts over.
"""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from coterie._util.errors import UserError
from coterie._util.files import LOCK_NAME, FolderLock, sync_to_disk
from coterie._util.json_io import read_json
from coterie.evidence.records import LaneEnd, LaneKey

DRAFT, QUARANTINE = ".draft", "set-aside"
BATCH_ROWS = 1 << 18  # rows read at a time


def create_folder(folder: Path, last: str, fill: Callable[[Path], object], what: str = "study") -> FolderLock:
    """Create a folder and lock it for this process. One that is not empty, or that another process writes to, is refused.

    `fill` writes everything into a draft of the folder; the file `last`, which makes it a study, is moved into place last.
    """
    _check_free(folder, last, what)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    hold = FolderLock(folder)
    draft = folder / DRAFT
    try:
        _check_free(folder, last, what)  # another process may have been faster
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        fill(draft)
        for path in (*draft.rglob("*"), draft):
            sync_to_disk(path)
        for name in sorted(os.listdir(draft), key=lambda name: name == last):
            if (folder / name).is_dir() and not (folder / name).is_symlink():  # of an unfinished creation
                shutil.rmtree(folder / name)
            (draft / name).replace(folder / name)
        draft.rmdir()
        sync_to_disk(folder)
    except OSError as error:
        hold.close()
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    except BaseException:
        hold.close()
        raise
    return hold


def is_free(folder: Path, last: str) -> bool:
    """Whether a folder holds nothing but perhaps a lock and the remains of an unfinished creation."""
    there = set(os.listdir(folder)) - {LOCK_NAME} if folder.is_dir() else set()
    unfinished = DRAFT in there and last not in there and not any((folder / "segments").glob("[!.]*"))
    return not folder.exists() or (folder.is_dir() and (not there or unfinished))


def _check_free(folder: Path, last: str, what: str) -> None:
    if not is_free(folder, last):
        raise UserError(f"{folder} is not empty: choose another --out, or continue the {what} in it with --resume.")


def quarantine_path(folder: Path, path: Path) -> Path:
    """Move a file or folder of a study to its folder of damaged parts; returns the new path."""
    place = folder / QUARANTINE
    place.mkdir(exist_ok=True)
    name = "-".join(path.relative_to(folder).parts)
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    final = next(place / each for each in names if not (place / each).exists())
    path.rename(final)
    for changed in (place, path.parent):
        sync_to_disk(changed)
    return final


def get_roster_path(folder: Path, draw: int) -> Path:
    """The file with the roster of a draw."""
    return folder / "rosters" / f"{draw}.parquet"


def read_roster(path: Path) -> pa.Table:
    """A roster from a file."""
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}): restore it from a copy of the study.") from error


def write_roster(path: Path, roster: pa.Table) -> None:
    """Write a roster atomically."""
    draft = path.with_name(f".{path.name}")
    pq.write_table(roster, draft)
    sync_to_disk(draft)
    draft.replace(path)
    sync_to_disk(path.parent)


class TableSource(ABC):
    """A study's tables in batches, and the progress of each lane."""

    folder: Path | None

    @abstractmethod
    def batches(self, name: str, columns: list[str] | None, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
        """A table in the order it was written. A file that cannot be read is an error, or, with `faults`, a sentence there."""

    @abstractmethod
    def schema(self, name: str) -> pa.Schema | None:
        """The columns of a table; None where nothing has been written yet."""

    @abstractmethod
    def ends(self, faults: list[str] | None = None) -> dict[LaneKey, LaneEnd]:
        """The progress of each lane."""


@dataclass(frozen=True)
class MemorySource(TableSource):
    """The tables of a run without a folder."""

    tables: Mapping[str, Sequence[pa.Table]]
    lanes: Mapping[LaneKey, LaneEnd] = field(default_factory=dict)
    folder: None = None

    def batches(self, name: str, columns: list[str] | None, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
        for table in self.tables[name]:
            yield from (table.select(columns) if columns else table).to_batches()

    def schema(self, name: str) -> pa.Schema | None:
        return self.tables[name][0].schema if self.tables[name] else None

    def ends(self, faults: list[str] | None = None) -> dict[LaneKey, LaneEnd]:
        return dict(self.lanes)


@dataclass(frozen=True)
class FolderSource(TableSource):
    """A study's folder."""

    folder: Path

    def batches(self, name: str, columns: list[str] | None, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
        for segment in list_segments(self.folder):
            for batch in read_batches(segment / f"{name}.parquet", columns, faults):
                yield batch if columns is None else batch.select(columns)

    def schema(self, name: str) -> pa.Schema | None:
        for segment in list_segments(self.folder)[:1]:
            path = segment / f"{name}.parquet"
            try:
                return pq.read_schema(path)
            except (OSError, pa.ArrowException) as error:
                raise _make_damage_error(path, error) from error
        return None

    def ends(self, faults: list[str] | None = None) -> dict[LaneKey, LaneEnd]:
        return {
            parse_lane_key(entry): LaneEnd(entry["last"], entry["status"], entry["reason"])
            for entry in read_lane_entries(self.folder, faults)
        }


def list_segments(folder: Path) -> list[Path]:
    """The complete segments, in the order in which they were written (drafts of interrupted writes begin with a dot)."""
    return sorted(path for path in (folder / "segments").glob("[0-9]*") if path.name.replace("-", "").isdecimal() and path.is_dir())


def read_lane_entries(folder: Path, faults: list[str] | None) -> Iterator[Mapping[str, Any]]:
    """The entries of `lanes.json` of every segment, in the order of the segments."""
    for segment in list_segments(folder):
        try:
            yield from read_json(segment / "lanes.json")
        except UserError as error:
            if faults is None:
                raise
            faults.append(str(error))


def parse_lane_key(entry: Mapping[str, Any]) -> LaneKey:
    """The lane that an entry of `lanes.json` is about."""
    return LaneKey(entry["draw"], entry["method"], entry["seed"])


def _make_damage_error(path: Path, error: Exception) -> UserError:
    reason = str(error).splitlines()[0]
    return UserError(f"{path} cannot be read ({reason}): restore it from a copy, or run its rounds again with --resume.")


def read_batches(path: Path, columns: list[str] | None, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
    """A Parquet file of a study in batches."""
    try:
        yield from pq.ParquetFile(path).iter_batches(batch_size=BATCH_ROWS, columns=columns)
    except (OSError, pa.ArrowException) as error:
        if faults is None:
            raise _make_damage_error(path, error) from error
        faults.append(f"{path} cannot be read ({str(error).splitlines()[0]}): its rounds are omitted.")
