"""Where tables come from: a run's memory, or a folder of segments."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from coterie.core.errors import UserError
from coterie.core.plain import read_json
from coterie.evidence.record import LaneEnd, LaneKey

PIECE = 1 << 18  # rows read at a time


class Source(ABC):
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
class Memory(Source):
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
class Folder(Source):
    """A study's folder."""

    folder: Path

    def batches(self, name: str, columns: list[str] | None, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
        schema = self._schema_or_none(name, faults)
        for segment in segments(self.folder):
            for batch in read_batches(segment / f"{name}.parquet", columns, faults):
                yield batch if schema is None else with_columns(batch, columns or schema.names, schema)

    def schema(self, name: str) -> pa.Schema | None:
        """The columns of the first segment and those that a later version added in the last."""
        found = segments(self.folder)
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
        return {key_of(entry): LaneEnd(entry["last"], entry["status"], entry["reason"]) for entry in lane_entries(self.folder, faults)}


def with_columns(batch: pa.RecordBatch, names: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The batch with all these columns: one that an earlier version did not write yet says nothing in every row."""
    if list(names) == batch.schema.names:
        return batch
    kinds = {name: schema.field(name).type if name in schema.names else pa.float64() for name in names}
    columns = [batch.column(name) if name in batch.schema.names else pa.nulls(len(batch), kind) for name, kind in kinds.items()]
    return pa.RecordBatch.from_arrays(columns, list(names))


def segments(folder: Path) -> list[Path]:
    """The complete segments, in the order in which they were written (drafts of interrupted writes begin with a dot)."""
    return sorted(path for path in (folder / "segments").glob("[0-9]*") if path.name.replace("-", "").isdecimal() and path.is_dir())


def lane_entries(folder: Path, faults: list[str] | None) -> Iterator[Mapping[str, Any]]:
    """What every segment says of its lanes, in the order of the segments."""
    for segment in segments(folder):
        try:
            yield from read_json(segment / "lanes.json")
        except UserError as error:
            if faults is None:
                raise
            faults.append(str(error))


def key_of(entry: Mapping[str, Any]) -> LaneKey:
    """The lane that an entry of `lanes.json` is about."""
    return LaneKey(entry["draw"], entry["method"], entry["seed"])


def read_schema(path: Path) -> pa.Schema:
    """The columns of a Parquet file of the study."""
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    reason = str(error).splitlines()[0]
    return UserError(f"{path} cannot be read ({reason}): restore it from a copy, or make it again with --resume.")


def read_batches(path: Path, columns: list[str] | None, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
    """A Parquet file of the study piece by piece; one that is missing or damaged is named."""
    try:
        file = pq.ParquetFile(path)
        known = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
        yield from file.iter_batches(batch_size=PIECE, columns=known)
    except (OSError, pa.ArrowException) as error:
        if faults is None:
            raise _damaged(path, error) from error
        faults.append(f"{path} cannot be read ({str(error).splitlines()[0]}): its rounds are left out.")
