"""The hash that defines equality of evidence: what was studied and what was found, not how long it took or on what."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.plain import as_json
from coterie.evidence.reader import Evidence
from coterie.evidence.tables import ANSWERS, EXTRA, KEYS, TABLES

COUNTED = ("clients", "central", "groups", "clusters")  # the tables whose whole numbers `counts` covers


def digest(evidence: Evidence, *, counts: bool = False) -> str:
    """SHA-256 over the settings that are not defaults and every table except the timings.

    Losses depend, in their last bits, on the width of the processor's vector units and on the kernels of its linear algebra. With `counts`,
    only whole numbers are covered: right answers and predictions by class, groups, and the roster.

    The answers to single samples are left out: their counts are covered, and where they were not kept the findings are the same. What is
    kept for a study that may grow is, too.

    Rows are taken by draw, method, seed and round, so that it does not matter how lanes were spread over waves and segments, or in which
    order a study grew. Columns are taken by name, and those that hold nothing are left out, so that one that a later version adds changes
    nothing. Files are hashed by content, so neither does the version of the library that wrote them.
    """
    total = hashlib.sha256(as_json(evidence.settings.identity()).encode())
    for name in TABLES:
        if name in COUNTED or (not counts and name != "timings"):
            total.update(name.encode())
            _add(total, _whole_numbers(evidence.table(name)) if counts else evidence.table(name))
    if (unseen := evidence.of_unseen()) is not None:
        total.update(b"unseen")
        _add(total, _whole_numbers(unseen.table("clients")) if counts else unseen.table("clients"))
    for draw, roster in sorted(evidence.rosters.items()):
        total.update(f"roster {draw}".encode())
        _add(total, roster)
    return total.hexdigest()


def _whole_numbers(table: pa.Table) -> pa.Table:
    return table.select([field.name for field in table.schema if not pa.types.is_floating(field.type)])


def _add(total: "hashlib._Hash", table: pa.Table) -> None:
    if set(KEYS) <= set(table.column_names):
        table = table.take(pa.array(_order(table)))
    for name in sorted(set(table.column_names) - {ANSWERS, EXTRA}):
        column = table[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray) or pa.types.is_dictionary(column.type):
            column = column.cast(pa.string())
        if not len(column) or _empty(column):
            continue
        total.update(name.encode())
        if pa.types.is_string(column.type):
            total.update(json.dumps(column.to_pylist()).encode())
        else:
            total.update(np.ascontiguousarray(column.to_numpy(zero_copy_only=False)).tobytes())


def _order(table: pa.Table) -> np.ndarray:
    """Rows by draw, method, seed and round, those of one round in the order they have."""
    labels = np.asarray(table["method"].cast(pa.string()).to_pylist(), dtype=object).astype(str)
    columns = [table[name].to_numpy() for name in ("round", "seed")]
    return np.lexsort((columns[0], columns[1], np.unique(labels, return_inverse=True)[1], table["draw"].to_numpy()))


def _empty(column: pa.Array) -> bool:
    """Whether a column says nothing in any row: null, or no number."""
    known = pc.is_valid(column)
    if pa.types.is_floating(column.type):
        known = pc.and_kleene(known, pc.invert(pc.is_nan(column)))
    return not pc.any(known).as_py()
