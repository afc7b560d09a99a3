"""Verification and digests: whether a study's folder is intact, and the hash that defines equality of evidence.

The digest covers what was studied and found, not how long it took.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie._util.errors import UserError
from coterie._util.files import hash_text
from coterie._util.json_io import format_json, read_json, to_json_line
from coterie._util.progress import track
from coterie.evidence.folder import QUARANTINE, read_batches, read_roster
from coterie.evidence.manifest import (
    COUNTED_TABLES,
    IntegrityReport,
    Manifest,
    check_integrity,
    count_rows_by_lane,
    find_broken_seals,
    find_studies,
)
from coterie.evidence.reader import Evidence
from coterie.evidence.restore import load_lanes
from coterie.evidence.tables import ANSWERS, EXTRA, KEYS, TABLES, find_implausible


@dataclass(frozen=True)
class Verification:
    """What was found in one study's folder."""

    folder: Path
    damaged: tuple[str, ...]  # in sentences
    good: Mapping[str, int] = field(default_factory=dict)  # by intact segment, the number of rounds of its lanes
    set_aside: tuple[str, ...] = ()  # what resumed runs have quarantined

    @property
    def whole(self) -> bool:
        return not self.damaged

    def as_json(self) -> dict[str, Any]:
        return {
            "study": str(self.folder),
            "whole": self.whole,
            "damaged": list(self.damaged),
            "good": {"segments": list(self.good), "rounds": sum(self.good.values())},
            "set_aside": list(self.set_aside),
        }


def verify(folder: Path) -> Verification:
    """Check every file, checkpoint and row of a study's folder. Nothing is changed."""
    integrity = check_integrity(folder, everything=True)
    damaged, manifests = integrity.describe(folder), integrity.manifests
    rosters = {}
    for path in (folder / "rosters").glob("[!.]*.parquet"):
        with suppress(UserError):  # a damaged roster is among the damaged files
            rosters[int(path.stem)] = read_roster(path)
    wrong = {name: _check_rows(folder / "segments" / name, manifests[name], rosters) for name in track(integrity.intact, "checking rows")}
    damaged += [f"{folder / 'segments' / name} {problem}" for name, problem in wrong.items() if problem]
    damaged = damaged or load_lanes(folder, ()).notices or _check_routes(folder, integrity)
    good = {name: sum(lane["rounds"] for lane in manifests[name].lanes) for name, problem in wrong.items() if not problem}
    quarantine = folder / QUARANTINE
    aside = sorted(path.name for path in quarantine.iterdir()) if quarantine.is_dir() else []
    return Verification(folder, tuple(damaged), good, tuple(aside))


def _check_rows(segment: Path, manifest: Manifest, rosters: Mapping[int, pa.Table]) -> str:
    """What is wrong in the tables of an intact segment; nothing if all is right."""
    for name in TABLES:
        pieces = []
        for batch in read_batches(segment / f"{name}.parquet", None, []):
            if wrong := find_implausible(name, batch, rosters):
                return f"holds what cannot be in {name}.parquet: {wrong}"
            pieces.append(batch)
        if sum(map(len, pieces)) != manifest.rows[name]:
            return f"holds {sum(map(len, pieces))} rows in {name}.parquet where {manifest.rows[name]} were written"
        if name in COUNTED_TABLES and pieces:
            found = count_rows_by_lane(pa.Table.from_batches(pieces))
            if any(found.get(key, 0) != lane[name] for key, lane in zip(manifest.keys, manifest.lanes, strict=True)):
                return f"holds other lanes in {name}.parquet than were written"
    return ""


def _check_routes(folder: Path, integrity: IntegrityReport) -> list[str]:
    """Whether `routes.json` is what the last segment has, or more, of a segment that was never written."""
    try:
        stored = read_json(folder / "routes.json") if integrity.routes else {}
    except UserError as error:
        return [str(error)]
    return [] if integrity.routes.items() <= stored.items() else [f"{folder / 'routes.json'} is not what the last segment has"]


COUNT_TABLES = ("clients", "central", "groups", "clusters")  # the tables whose integers `counts` covers


def digest(evidence: Evidence, *, counts: bool = False) -> str:
    """SHA-256 over the settings that are not defaults and every table except the timings.

    Rows are sorted by draw, method, seed and round, and columns by name; empty columns are omitted. So the digest depends neither on
    waves and segments, nor on the order in which a study grew, nor on a column that a later version adds. The answers to single samples
    and what is kept for growing are omitted.

    Args:
        evidence: The study.
        counts: Whether to cover integers only: right answers and predictions by class, groups, and the roster. Losses differ in their
            last bits between processors.

    Returns:
        The hash in hexadecimal.

    Example:
        >>> ct.digest(ct.Evidence.open("runs/heart"))  # doctest: +SKIP
    """
    total = hashlib.sha256(to_json_line(evidence.settings.identity()).encode())
    for name in TABLES:
        if name in COUNT_TABLES or (not counts and name != "timings"):
            total.update(name.encode())
            _update_hash(total, _select_integers(evidence.table(name)) if counts else evidence.table(name))
    if (unseen := evidence.select_unseen()) is not None:
        total.update(b"unseen")
        _update_hash(total, _select_integers(unseen.table("clients")) if counts else unseen.table("clients"))
    for draw, roster in sorted(evidence.rosters.items()):
        total.update(f"roster {draw}".encode())
        _update_hash(total, roster)
    return total.hexdigest()


def _select_integers(table: pa.Table) -> pa.Table:
    return table.select([field.name for field in table.schema if not pa.types.is_floating(field.type)])


def _update_hash(total: "hashlib._Hash", table: pa.Table) -> None:
    if set(KEYS) <= set(table.column_names):
        table = table.take(pa.array(_sort_rows(table)))
    for name in sorted(set(table.column_names) - {ANSWERS, EXTRA}):
        column = table[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray) or pa.types.is_dictionary(column.type):
            column = column.cast(pa.string())
        if not len(column) or _is_empty(column):
            continue
        total.update(name.encode())
        if pa.types.is_string(column.type):
            total.update(json.dumps(column.to_pylist()).encode())
        else:
            total.update(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)).tobytes())


def _sort_rows(table: pa.Table) -> np.ndarray:
    """Rows by draw, method, seed and round, those of one round in the order they have."""
    labels = np.asarray(table["method"].cast(pa.string()).to_pylist(), dtype=object).astype(str)
    columns = [table[name].to_numpy() for name in ("round", "seed")]
    return np.lexsort((columns[0], columns[1], np.unique(labels, return_inverse=True)[1], table["draw"].to_numpy()))


def _is_empty(column: pa.Array) -> bool:
    """Whether all values of a column are null or nan."""
    known = pc.is_valid(column)
    if pa.types.is_floating(column.type):
        known = pc.and_kleene(known, pc.invert(pc.is_nan(column)))
    return not pc.any(known).as_py()


def compute_digests(folder: Path, *, counts: bool = False) -> dict[str, str]:
    """By path in the folder, the digest of each study; a folder that is itself a study has the path '.'."""
    if broken := find_broken_seals(folder):
        name, wrong = next(iter(broken.items()))
        raise UserError(f"{folder} is not whole: {folder / name} {wrong}; 'coterie verify {folder}' shows what is intact.")
    studies = track(find_studies(folder), "hashing")
    return {path.relative_to(folder).as_posix(): digest(Evidence.open(path), counts=counts) for path in studies}


def combine_digests(digests: Mapping[str, str]) -> str:
    """One hash for several studies, of their paths and digests."""
    return hash_text(format_json(dict(digests)))
