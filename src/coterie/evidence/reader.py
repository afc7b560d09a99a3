"""Reading evidence back: tables as data frames, states to go on from."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError
from safetensors.numpy import load

from coterie.core.errors import UserError
from coterie.core.states import unflatten
from coterie.evidence.settings import Settings
from coterie.evidence.tables import TABLES
from coterie.run.lanes import Lane

if TYPE_CHECKING:
    import pandas as pd  # imported where frames are made: running a study does not need it


@dataclass(frozen=True)
class Evidence:
    """A study's records, from a folder or from memory."""

    settings: Settings
    roster: pa.Table
    folder: Path | None = None
    memory: Mapping[str, Sequence[pa.Table]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path | str) -> "Evidence":
        folder = Path(folder)
        if not (folder / "settings.json").is_file():
            raise UserError(f"{folder} holds no study: name the folder that --out made.")
        settings = Settings.from_json(read_json(folder / "settings.json"))
        return cls(settings, read_table(folder / "roster.parquet"), folder)

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """A whole table, in the order of waves and rounds."""
        if self.folder is None:
            return pa.concat_tables([t.select(columns) if columns else t for t in self.memory[name]])
        tables = [read_table(segment / f"{name}.parquet", columns) for segment in segments(self.folder)]
        if not tables:
            raise UserError(f"{self.folder} holds no complete segment yet: let the study run to its first checkpoint.")
        return pa.concat_tables(tables)

    def batches(self, name: str, columns: list[str], faults: list[str]) -> Iterator[pa.RecordBatch]:
        """A table piece by piece, for more rows than memory should hold. A file that cannot be read becomes a sentence in `faults`."""
        if self.folder is None:
            for table in self.memory[name]:
                yield from table.select(columns).to_batches()
            return
        for segment in segments(self.folder):
            path = segment / f"{name}.parquet"
            try:
                yield from pq.ParquetFile(path).iter_batches(batch_size=1 << 18, columns=columns)
            except (OSError, pa.ArrowException) as error:
                faults.append(f"{path} cannot be read ({str(error).splitlines()[0]}): its rounds are left out.")

    def frame(self, name: str, columns: list[str] | None = None) -> "pd.DataFrame":
        """A table as a data frame, with the method and seed of each lane beside its number."""
        if name not in TABLES:
            raise UserError(f"There is no table {name!r}: choose from {', '.join(TABLES)}.")
        import pandas as pd

        frame: pd.DataFrame = self.table(name, columns).to_pandas()
        lanes = frame["lane"].to_numpy()
        methods = self.settings.methods  # lanes are numbered seed by seed, method by method
        frame.insert(0, "method", pd.Series(pd.Categorical.from_codes(lanes % len(methods), categories=pd.Index(methods))))
        frame.insert(1, "seed", np.asarray(self.settings.seeds)[lanes // len(methods)])
        return frame

    @cached_property
    def classes(self) -> int:
        return sum(name.startswith("actual_") for name in self.roster.column_names)

    @property
    def actual(self) -> Any:
        """(n, C) test samples by class of each client."""
        table = np.stack([self.roster[f"actual_{c}"].to_numpy() for c in range(self.classes)], axis=1)
        return table[self.roster["id"].is_valid().to_numpy()]

    @property
    def ids(self) -> list[str]:
        return [name for name in self.roster["id"].to_pylist() if name is not None]


def segments(folder: Path) -> list[Path]:
    """The complete segments, in the order of waves and rounds (drafts of interrupted writes begin with a dot)."""
    return sorted(path for path in (folder / "segments").iterdir() if path.is_dir() and not path.name.startswith("."))


def restore(folder: Path, wave: int, lanes: Sequence[Lane]) -> int:
    """Put the lanes of a wave where their last usable segment left them; the round to which that is, or -1 for the very start.

    Usable means: no segment before it is missing, and it still has its states. What lies beyond is made again, to the same bits.
    """
    segment, last, reached = None, -1, -1
    for path in segments(folder):
        owner, first, end = (int(number) for number in path.name.split("-"))
        if owner != wave or first != reached + 1:
            continue
        reached = end
        if (path / "states.safetensors").exists():
            segment, last = path, end
    return -1 if segment is None else _restore_from(segment, last, lanes)


def _restore_from(segment: Path, last: int, lanes: Sequence[Lane]) -> int:
    path = segment / "states.safetensors"
    try:
        data = path.read_bytes()
        arrays = load(data)
        trees = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["trees"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise UserError(
            f"The checkpoint {path} cannot be read ({type(error).__name__}): delete the folder {segment} to go on from the one before."
        ) from error
    kept = {entry["lane"]: entry for entry in read_json(segment / "lanes.json")}
    for lane in lanes:
        entry = kept[lane.number]
        own = {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{lane.number}/")}
        lane.state = unflatten(own, trees[str(lane.number)]) if str(lane.number) in trees else None
        lane.round_ = entry["round"]
        lane.stop(entry["status"], entry["reason"])
    return last


def read_json(path: Path) -> Any:
    """A JSON file of the study; one that is missing or damaged is named."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): the study is damaged there; restore the file or run the study again.") from error


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A Parquet file of the study; one that is missing or damaged is named."""
    try:
        return pq.read_table(path, columns=columns)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read ({reason}): delete its folder and go on with --resume to make it again.") from error
