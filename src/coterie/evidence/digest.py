"""Digests.

The hash that defines equality of evidence (what was studied and found, not how long it took), of one study or of all in a folder.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie._util.errors import UserError
from coterie._util.files import hash_text
from coterie._util.json_io import format_json, to_json_line
from coterie.evidence.manifest import find_broken_seals, find_studies
from coterie.evidence.reader import Evidence
from coterie.evidence.tables import ANSWERS, EXTRA, KEYS, TABLES

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
        raise UserError(f"{folder} is not whole: {folder / name} {wrong}; 'coterie verify {folder}' says what is still good.")
    return {path.relative_to(folder).as_posix(): digest(Evidence.open(path), counts=counts) for path in find_studies(folder)}


def combine_digests(digests: Mapping[str, str]) -> str:
    """One hash for several studies, of their paths and digests."""
    return hash_text(format_json(dict(digests)))
