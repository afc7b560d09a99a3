"""Evidence as it was written before format 2: one draw, lanes by number, clusters and refusals among the notes. It opens; it cannot be
resumed.

Two methods have other names since: what was called `moon` was never the published MOON, and IFCA's several starts are a wrapper.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie._util.errors import UserError
from coterie.core.specs import Spec, parse, split_at
from coterie.evidence.folder import TableSource, list_segments, read_batches, read_lane_entries, read_schema
from coterie.evidence.records import LaneEnd, LaneKey
from coterie.evidence.settings import FORMAT, Settings


def wrote(tree: Mapping[str, Any]) -> bool:
    """Whether settings are of format 1."""
    return isinstance(tree, Mapping) and tree.get("schema") == 1


def settings_of(tree: Mapping[str, Any]) -> Settings:
    """The settings of an old study, under the names of today."""
    try:
        names = {name: tree[name] for name in ("plan", "data", "model", "seeds")}
        today = {**names, "format": FORMAT, "methods": [renamed(label) for label in tree["methods"]], "draws": [tree["data_seed"]]}
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"The study's settings cannot be read ({type(error).__name__}: {error}): restore them from a copy.") from error
    return Settings.from_json(today)


def renamed(label: str) -> str:
    """What a method is called today."""
    first, *wrappers = split_at(label, "+")
    try:
        spec = parse(first)
    except UserError:
        return label
    if spec.name == "moon":
        first = str(Spec("neighbourprox", spec.args, spec.kwargs))
    elif spec.name in ("ifca", "hypocluster"):
        kept = {name: value for name, value in spec.kwargs.items() if name not in ("starts", "trial")}
        own = {name: value for name, value in spec.kwargs.items() if name in ("starts", "trial")}
        if own.get("starts", 5) != 1:
            wrappers = [str(Spec("restarts", (), own)), *wrappers]
        first = str(Spec(spec.name, spec.args, kept))
    elif spec.name == "fedsim" and "criterion" in spec.kwargs:
        first = str(Spec("fedsim", spec.args, {"choice" if name == "criterion" else name: value for name, value in spec.kwargs.items()}))
    return "+".join([first, *wrappers])


@dataclass(frozen=True)
class OldFolder(TableSource):
    """A folder of format 1, read as if it were one of format 2."""

    folder: Path
    settings: Settings
    labels: list[str]  # as they were

    def batches(self, name: str, columns: list[str] | None, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
        for segment in list_segments(self.folder):
            if name == "clusters":
                yield from self._clusters(segment, faults)
                continue
            stored = "notes" if name == "absences" else name
            for batch in read_batches(segment / f"{stored}.parquet", None, faults):
                found = self._keyed(batch)
                found = self._absences(found) if name == "absences" else _present(found, name)
                yield found.select(columns) if columns else found

    def schema(self, name: str) -> pa.Schema | None:
        for segment in list_segments(self.folder):
            stored = {"absences": "notes", "clusters": "groups"}.get(name, name)
            nothing = self._keyed(pa.RecordBatch.from_pylist([], schema=read_schema(segment / f"{stored}.parquet")))
            if name == "clusters":
                return nothing.rename_columns([{"group": "cluster"}.get(column, column) for column in nothing.schema.names]).schema
            return (self._absences(nothing) if name == "absences" else _present(nothing, name)).schema
        return None

    def ends(self, faults: list[str] | None = None) -> dict[LaneKey, LaneEnd]:
        entries = read_lane_entries(self.folder, faults)
        return {self._key(entry["lane"]): LaneEnd(entry["round"], entry["status"], entry["reason"]) for entry in entries}

    def _key(self, lane: int) -> LaneKey:
        """Lanes were numbered seed by seed, method by method."""
        seed, method = divmod(lane, len(self.labels))
        return LaneKey(self.settings.draws[0], self.settings.methods[method], self.settings.seeds[seed])

    def _keyed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        lanes = batch.column("lane").to_numpy()
        seeds = np.asarray(self.settings.seeds, dtype=np.int64)[lanes // len(self.labels)]
        codes = pa.array((lanes % len(self.labels)).astype(np.int32))
        keys = {
            "draw": pa.array(np.full(len(lanes), self.settings.draws[0], dtype=np.int64)),
            "method": pa.DictionaryArray.from_arrays(codes, pa.array(self.settings.methods, pa.string())),
            "seed": pa.array(seeds),
        }
        rest = {name: batch.column(name) for name in batch.schema.names if name != "lane"}
        return pa.RecordBatch.from_pydict(keys | rest)

    def _absences(self, notes: pa.RecordBatch) -> pa.RecordBatch:
        """Refusals stood among the notes; who did not answer was not written down."""
        own = notes.filter(pc.equal(notes.column("name"), "refused"))
        values = [json.loads(value) for value in own.column("value").to_pylist()]
        columns = {name: own.column(name) for name in ("draw", "method", "seed", "round")}
        told = {"ask": "", "why": "REFUSED"}
        return pa.RecordBatch.from_pydict(
            columns
            | {"client": pa.array([value["client"] for value in values], pa.int32())}
            | {name: pa.array([word] * len(values), pa.string()) for name, word in told.items()}
            | {"detail": pa.array([value["why"] for value in values], pa.string())}
        )

    def _clusters(self, segment: Path, faults: list[str] | None) -> Iterator[pa.RecordBatch]:
        """Groups of one round: labels were noted in the order of the clients of the aggregation matrix."""
        noted: dict[tuple[int, int], list[int]] = {}
        for batch in read_batches(segment / "notes.parquet", ["lane", "round", "name", "value"], faults):
            for row in batch.filter(pc.equal(batch.column("name"), "clusters")).to_pylist():
                noted[row["lane"], row["round"]] = json.loads(row["value"])
        rows: dict[tuple[int, int], list[int]] = {at: [] for at in noted}
        for batch in read_batches(segment / "mixing.parquet", ["lane", "round", "source", "kept"], faults) if noted else ():
            for row in batch.filter(pc.invert(batch.column("kept"))).to_pylist():
                if (row["lane"], row["round"]) in rows:
                    rows[row["lane"], row["round"]].append(row["source"])
        for (lane, round_), clients in rows.items():
            if len(clients) == len(noted[lane, round_]):
                n = len(clients)
                table = {"lane": [lane] * n, "round": pa.array([round_] * n, pa.int32()), "client": pa.array(clients, pa.int32())}
                yield self._keyed(pa.RecordBatch.from_pydict({**table, "cluster": pa.array(noted[lane, round_], pa.int32())}))


def _present(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """What has a place of its own since is taken out of the notes, and what rounds have since got is not known."""
    if name == "notes":
        return batch.filter(pc.invert(pc.is_in(batch.column("name"), value_set=pa.array(["clusters", "refused"]))))
    if name == "rounds":
        renamed_ = batch.rename_columns(["absent" if column == "refused" else column for column in batch.schema.names])
        return renamed_.append_column("clock", pa.array(np.full(len(batch), np.nan)))
    return batch
