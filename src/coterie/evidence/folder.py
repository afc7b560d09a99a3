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
from coterie._util.files import sync_to_disk
from coterie._util.json_io import read_json
from coterie._util.locks import LOCK_NAME, FolderLock
from coterie.evidence.records import LaneEnd, LaneKey

DRAFT = ".draft"


def create_folder(folder: Path, last: str, fill: Callable[[Path], object], what: str = "study") -> FolderLock:
    """Begin a folder that `fill` fills, `last` being the file that makes it one; it is held for this process.

    One that holds anything else, or that another process writes to, is refused.
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
            _move_into_place(draft / name, folder / name)
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
    """Whether there is nothing in a folder but perhaps a lock and what an unfinished creation left."""
    there = set(os.listdir(folder)) - {LOCK_NAME} if folder.is_dir() else set()
    unfinished = DRAFT in there and last not in there and not any((folder / "segments").glob("[!.]*"))
    return not folder.exists() or (folder.is_dir() and (not there or unfinished))


def _check_free(folder: Path, last: str, what: str) -> None:
    if not is_free(folder, last):
        raise UserError(f"{folder} is not empty: choose another --out, or continue the {what} in it with --resume.")


def _move_into_place(draft: Path, final: Path) -> None:
    """Move a file or folder to its place, where an unfinished creation may have left one."""
    if final.is_dir() and not final.is_symlink():
        shutil.rmtree(final)
    draft.replace(final)


QUARANTINE = "set-aside"


def quarantine_path(folder: Path, path: Path) -> Path:
    """Move a file or folder of a study into its folder of damaged parts; where it is now."""
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
    """Where the clients of a draw are listed."""
    return folder / "rosters" / f"{draw}.parquet"


def read_roster(path: Path) -> pa.Table:
    """A list of clients; one that is missing or damaged is named."""
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}): restore it from a copy of the study.") from error


def write_roster(path: Path, roster: pa.Table) -> None:
    """Put a list of clients in its place, whole or not at all."""
    draft = path.with_name(f".{path.name}")
    pq.write_table(roster, draft)
    sync_to_disk(draft)
    draft.replace(path)
    sync_to_disk(path.parent)


BATCH_ROWS = 1 << 18  # rows read at a time


class TableSource(ABC):
    """Tables piece by piece, and how far each lane has come."""

    folder: Path | None

    @abstractmethod
    def batches(self, name: str, columns: list[str] | None, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
        """A table in pieces, in the order it was written. A file that cannot be read is an error, or, with `faults`, a sentence there."""

    @abstractmethod
    def schema(self, name: str) -> pa.Schema | None:
        """The columns of a table; None where nothing has been written yet."""

    @abstractmethod
    def ends(self, faults: list[str] | None = None) -> dict[LaneKey, LaneEnd]:
        """How far each lane has come."""


@dataclass(frozen=True)
class MemorySource(TableSource):
    """What a run without a folder has kept."""

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
        schema = self._schema_or_none(name, faults)
        for segment in list_segments(self.folder):
            for batch in read_batches(segment / f"{name}.parquet", columns, faults):
                yield batch if schema is None else add_columns(batch, columns or schema.names, schema)

    def schema(self, name: str) -> pa.Schema | None:
        """The columns of the first segment and those that a later version added in the last."""
        found = list_segments(self.folder)
        ends = found if len(found) < 2 else (found[0], found[-1])
        return pa.unify_schemas([read_schema(segment / f"{name}.parquet") for segment in ends]) if ends else None

    def _schema_or_none(self, name: str, faults: list[str] | None) -> pa.Schema | None:
        try:
            return self.schema(name)
        except UserError:
            if faults is None:
                raise
            return None  # the batches themselves will name the file

    def ends(self, faults: list[str] | None = None) -> dict[LaneKey, LaneEnd]:
        return {
            parse_lane_key(entry): LaneEnd(entry["last"], entry["status"], entry["reason"])
            for entry in read_lane_entries(self.folder, faults)
        }


def add_columns(batch: pa.RecordBatch, names: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The batch with all these columns: one that an earlier version did not write yet says nothing in every row."""
    if list(names) == batch.schema.names:
        return batch
    kinds = {name: schema.field(name).type if name in schema.names else pa.float64() for name in names}
    columns = [batch.column(name) if name in batch.schema.names else pa.nulls(len(batch), kind) for name, kind in kinds.items()]
    return pa.RecordBatch.from_arrays(columns, list(names))


def list_segments(folder: Path) -> list[Path]:
    """The complete segments, in the order in which they were written (drafts of interrupted writes begin with a dot)."""
    return sorted(path for path in (folder / "segments").glob("[0-9]*") if path.name.replace("-", "").isdecimal() and path.is_dir())


def read_lane_entries(folder: Path, faults: list[str] | None) -> Iterator[Mapping[str, Any]]:
    """What every segment says of its lanes, in the order of the segments."""
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


def read_schema(path: Path) -> pa.Schema:
    """The columns of a Parquet file of the study."""
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise _make_damage_error(path, error) from error


def _make_damage_error(path: Path, error: Exception) -> UserError:
    reason = str(error).splitlines()[0]
    return UserError(f"{path} cannot be read ({reason}): restore it from a copy, or make it again with --resume.")


def read_batches(path: Path, columns: list[str] | None, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
    """A Parquet file of the study piece by piece; one that is missing or damaged is named."""
    try:
        file = pq.ParquetFile(path)
        known = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
        yield from file.iter_batches(batch_size=BATCH_ROWS, columns=known)
    except (OSError, pa.ArrowException) as error:
        if faults is None:
            raise _make_damage_error(path, error) from error
        faults.append(f"{path} cannot be read ({str(error).splitlines()[0]}): its rounds are left out.")
