"""Evidence: a study's records read back as tables and data frames."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie._util.errors import UserError
from coterie._util.json_io import read_json
from coterie.core.arrays import Array, Ints
from coterie.core.tasks import TaskName
from coterie.evidence.folder import FolderSource, TableSource, get_roster_path, read_roster
from coterie.evidence.manifest import check_integrity, is_study
from coterie.evidence.records import LaneEnd, LaneKey
from coterie.evidence.settings import Settings
from coterie.evidence.tables import (
    ANSWERS,
    EXITS,
    EXTRA,
    KEYS,
    TABLES,
    UNSEEN,
    LaneRound,
    LastEvaluation,
    PlannedAbsences,
    drop_unplanned,
    find_implausible,
    find_last_evaluations,
    get_class_names,
    get_grid,
)

if TYPE_CHECKING:
    import pandas as pd


def insert_column(frame: "pd.DataFrame", at: int, name: str, values: "pd.Series") -> "pd.DataFrame":
    """Insert a column into a frame, without the warning of pandas about many blocks: they keep a large table from being copied."""
    from pandas.errors import PerformanceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        frame.insert(at, name, values)
    return frame


@dataclass(frozen=True)
class Evidence:
    """A study's records, from a folder or from memory.

    Args:
        settings: The settings of the study.
        rosters: By draw, the clients.
        source: The tables, on disk or in memory.
        is_unseen: Whether the records are of the clients that take no part in training.

    Example:
        >>> rounds = ct.Evidence.open("runs/heart").frame("rounds")  # doctest: +SKIP
    """

    settings: Settings
    rosters: Mapping[int, pa.Table]  # by draw
    source: TableSource
    is_unseen: bool = False  # whether it is of the clients that took no part, or of those that did

    def __repr__(self) -> str:
        made = self.settings
        return f"<Evidence of {', '.join(made.methods)} on {made.data!r}, {self.source.folder or 'in memory'}>"

    @classmethod
    def open(cls, folder: Path | str) -> "Evidence":
        """The study in a folder; a damaged one is refused."""
        folder = Path(folder)
        if not is_study(folder):
            raise UserError(f"{folder} holds no study: name the folder that --out made.")
        if wrong := check_integrity(folder).describe(folder):
            more = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise UserError(
                f"{folder} is not whole: {wrong[0]}{more}. 'coterie verify {folder}' shows what is intact; the command that made the study "
                "runs damaged rounds again with --resume."
            )
        settings = Settings.from_json(read_json(folder / "settings.json"))
        return cls(settings, {draw: read_roster(get_roster_path(folder, draw)) for draw in settings.draws}, FolderSource(folder))

    @property
    def folder(self) -> Path | None:
        return self.source.folder

    def select_draw(self, draw: int) -> "Evidence":
        """The part of one draw of the data."""
        return replace(self, settings=replace(self.settings, draws=(draw,)), rosters={draw: self.rosters[draw]})

    def select_unseen(self) -> "Evidence | None":
        """The same of the clients that took no part; None where all did. It has no groups, weights or notes."""
        return replace(self, is_unseen=True) if any(UNSEEN in roster.column_names for roster in self.rosters.values()) else None

    def batches(self, name: str, columns: list[str] | None = None, faults: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """A table in batches, for more rows than fit into memory. With `faults`, a damaged file becomes a sentence there."""
        if name not in TABLES:
            raise UserError(f"There is no table {name!r}: choose from {', '.join(TABLES)}.")
        wanted = None if columns is None else _add_keys(["client", *columns] if name == "clients" and self._taking_part else columns)
        draws, plan = pa.array(self.settings.draws, pa.int64()), self.settings.plan
        last_evaluations = self._last_evaluations if name in ("rounds", "notes", "absences") else {}
        absences = PlannedAbsences(plan, last_evaluations)
        for batch in self.source.batches(name, wanted, faults):
            if (wrong := find_implausible(name, batch, self.rosters)) is not None:
                sentence = f"{self.folder or 'The study'} holds what cannot be in its table {name}: {wrong}; run the study again."
                if faults is None:
                    raise UserError(sentence)
                faults.append(sentence)
                continue
            own = pc.is_in(batch.column("draw"), value_set=draws)
            batch = batch if pc.all(own).as_py() is not False else batch.filter(own)
            yield self._own(name, absences(batch) if name == "absences" else drop_unplanned(name, batch, plan, last_evaluations))

    def _own(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of these clients, which are numbered by their place in the roster."""
        if self.is_unseen and name in ("mixing", "groups", "clusters", "absences", "notes"):
            return batch.slice(0, 0)
        if name != "clients" or not self._taking_part or "client" not in batch.schema.names:
            return batch
        client = batch.column("client").to_numpy()
        count = np.array([self._taking_part.get(draw, len(client)) for draw in batch.column("draw").to_pylist()], dtype=client.dtype)
        own = (client >= count) == self.is_unseen
        at = batch.schema.get_field_index("client")
        placed = batch.set_column(at, "client", pa.array(client - count * self.is_unseen, batch.column(at).type))
        return placed.filter(pa.array(own))

    @cached_property
    def _taking_part(self) -> dict[int, int]:
        """By draw in which not all clients take part, the number that do: the first of the roster."""
        apart = {draw: roster[UNSEEN].to_numpy() for draw, roster in self.rosters.items() if UNSEEN in roster.column_names}
        return {draw: int(found.argmax()) for draw, found in apart.items()}

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """A whole table, in the order in which it was written."""
        pieces = _decode_methods(self.batches(name, columns))
        if pieces:
            return pa.Table.from_batches(pieces)
        schema = self.source.schema(name)
        if schema is None:
            raise UserError(f"{self.folder or 'The study'} holds no complete segment yet: let the study run to its first checkpoint.")
        (nothing,) = _decode_methods([pa.RecordBatch.from_pylist([], schema=schema)])
        return pa.Table.from_batches([nothing.select(_add_keys(columns)) if columns else nothing])

    def columns(self, name: str) -> list[str]:
        """The columns that a table has."""
        schema = self.source.schema(name)
        return [] if schema is None else list(schema.names)

    def frame(self, name: str, columns: list[str] | None = None) -> "pd.DataFrame":
        """A table as a data frame; methods are a category in the order of the study. Answers to single samples come only if named."""
        import pandas as pd

        wanted = [column for column in self.columns(name) if column not in (ANSWERS, EXTRA)] if columns is None else columns
        table = self.table(name, wanted)
        at = table.column_names.index("method")
        codes = [encode_methods(piece, self.settings.methods) for piece in table.column("method").chunks]
        method = pd.Categorical.from_codes(np.concatenate(codes or [np.zeros(0, np.int64)]), categories=pd.Index(self.settings.methods))
        table = table.drop_columns(["method"])
        frame: pd.DataFrame = table.to_pandas(split_blocks=True, self_destruct=True)  # a column at a time: never two whole tables
        return insert_column(frame, at, "method", pd.Series(method, index=frame.index))

    def ends(self, faults: list[str] | None = None) -> dict[LaneKey, LaneEnd]:
        """The progress of each lane, and why it ended."""
        return {key: end for key, end in self.source.ends(faults).items() if key.draw in self.settings.draws}

    @cached_property
    def _last_evaluations(self) -> dict[LaneRound, LastEvaluation]:
        """The evaluations of rounds that were the last before the study grew, where they would not have been evaluated otherwise."""
        if self.settings.plan.evaluate_every == 1 or EXTRA not in self.columns("rounds"):
            return {}
        pieces = self.source.batches("rounds", _add_keys(["absent", EXTRA]), [])
        return {key: last for batch in pieces for key, last in find_last_evaluations(batch, self.settings.plan).items()}

    @cached_property
    def roster(self) -> pa.Table:
        """The clients of the only draw, or of the first."""
        roster = self.rosters[self.settings.draws[0]]
        return roster.filter(pc.equal(roster[UNSEEN], self.is_unseen)) if UNSEEN in roster.column_names else roster

    @cached_property
    def classes(self) -> int:
        return sum(name.startswith("actual_") for name in self.roster.column_names)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        return get_class_names(self.roster, self.classes)

    @cached_property
    def task(self) -> TaskName:
        """What is predicted, by the columns of the roster."""
        names = self.roster.column_names
        if "samples" not in names:
            return "classification"
        marks: dict[str, TaskName] = {"target_squares": "regression", "target_pairs": "survival", "actual_0": "multilabel"}
        return next((task for name, task in marks.items() if name in names), "next-token")

    @cached_property
    def grid(self) -> tuple[float, ...]:
        """The edges of the intervals of survival times."""
        return get_grid(self.roster)

    @cached_property
    def exits(self) -> Ints:
        """(n, 2, K + 1) each client's samples by the intervals that they complete: see `core.survival.count_exits`."""
        return np.array([[self.get_roster_column(f"{name}{j}") for j in range(len(self.grid))] for name in EXITS]).transpose(2, 0, 1)

    @cached_property
    def tested(self) -> Ints:
        """(n,) test samples of each client."""
        return self.get_roster_column("samples").astype(np.int64) if self.task != "classification" else np.asarray(self.actual.sum(axis=1))

    def get_roster_column(self, name: str) -> Array:
        """(n,) a column of the roster, of the clients."""
        return np.asarray(self.roster[name].to_numpy()[self.roster["id"].is_valid().to_numpy()])

    @cached_property
    def actual(self) -> Ints:
        """(n, C) test samples by class of each client."""
        return np.asarray(self._counted[self.roster["id"].is_valid().to_numpy()])

    @cached_property
    def actual_central(self) -> Ints | None:
        """(C,) samples by class of the server's own test set, where there is one."""
        central = self._counted[~self.roster["id"].is_valid().to_numpy()]
        return central[0] if len(central) else None

    @cached_property
    def _counted(self) -> Ints:
        columns = [self.roster[f"actual_{c}"].to_numpy() for c in range(self.classes)]
        return np.array(columns, dtype=np.int64).reshape(self.classes, len(self.roster)).T

    @cached_property
    def ids(self) -> list[str]:
        return [name for name in self.roster["id"].to_pylist() if name is not None]


def encode_methods(column: pa.Array, labels: Sequence[str]) -> Ints:
    """(rows,) the place of each row's method among these labels; -1 for others."""
    known = {label: i for i, label in enumerate(labels)}
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = np.array([known.get(label, -1) for label in column.dictionary.to_pylist()] or [-1], dtype=np.int64)
    found: Array = codes[column.indices.to_numpy(zero_copy_only=False)]
    return found


def _add_keys(columns: list[str]) -> list[str]:
    return list(dict.fromkeys([*KEYS, *columns]))


def _decode_methods(pieces: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Batches whose methods are plain strings: dictionaries differ from segment to segment."""
    places = [(batch, batch.schema.get_field_index("method")) for batch in pieces]
    return [batch.set_column(at, "method", batch.column(at).cast(pa.string())) for batch, at in places]


def read_notes(evidence: Evidence, name: str, faults: list[str] | None = None) -> Iterator[tuple[LaneKey, int, Any]]:
    """Every note of a name: its lane, its round and its value."""
    for batch in evidence.batches("notes", ["name", "value"], faults):
        own = batch.filter(pc.equal(batch.column("name"), name)).to_pylist()
        yield from ((LaneKey(row["draw"], row["method"], row["seed"]), row["round"], json.loads(row["value"])) for row in own)
