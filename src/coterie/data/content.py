"""Hashes of what a federation holds, so that a study resumes with the same data only; and what another data seed changes."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie._util.json_io import to_json_line
from coterie._util.threads import count_cores, map_in_order
from coterie.core.arrays import Array, Ints
from coterie.core.specs import parse_path
from coterie.data.federation import Federation

HASH_BLOCK = 1 << 24  # bytes that a thread hashes at a time
ROW_BLOCK = 1 << 26  # bytes of rows that are hashed together
MAX_HASHED = 1 << 31  # bytes of one array that are read: of a larger one, evenly spaced blocks


def hash_contents(federation: Federation) -> dict[str, str]:
    """By part of a federation, the hash of what it holds, whatever it is called and wherever it came from."""
    task = federation.task
    targets = [] if task.counts_classes else [task.name, repr(task.mean), repr(task.deviation)]
    targets += [repr(values) for values in (task.grid, task.censoring, task.reference) if values]
    found = {
        "features": hash_array(federation.x),
        "labels": _join_words([hash_array(federation.y), *federation.classes, *targets]),
        "clients": _join_words(federation.ids),
        "parts": _join_words([hash_array(part.offsets) + hash_array(part.indices) for part in federation.parts.values()]),
    }
    if federation.central is not None:
        found["server's test set"] = _join_words(map(hash_array, federation.central))
    if federation.groups is not None:
        found["true groups"] = hash_array(federation.groups)
    if federation.arrivals is not None:
        found["arrivals"] = hash_array(federation.arrivals)
    if federation.inputs is not None:
        found["inputs"] = to_json_line(federation.inputs.to_dict())
    if federation.sites is not None and len(set(federation.sites)) < len(federation):  # several clients at a site
        found["sites"] = _join_words(federation.sites)
    if federation.unseen:
        found["clients that take no part"] = f"{federation.unseen}{', without labels' if federation.unlabelled else ''}"
    if federation.later:
        stored = [str(value) for begin, world in federation.later for value in (begin, *hash_contents(world).values())]
        found["later rounds"] = _join_words(stored)
    return found


def find_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts of a federation that are another than they were, in words."""
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def hash_array(array: Array) -> str:
    """SHA-256 of the kind, the shape and the blocks of an array, whose own hashes are found on all cores."""
    row = max(array[:1].nbytes, 1)
    rows = max(HASH_BLOCK // row, 1)
    begins = range(0, len(array), rows)
    step = -(-len(begins) * rows * row // MAX_HASHED) if begins else 1
    blocks = map_in_order(lambda begin: sha256(array[begin : begin + rows].tobytes()).hexdigest(), begins[::step], count_cores())
    return _join_words([array.dtype.str, str(array.shape), *blocks])


def hash_rows(x: Array, y: Array, rows: Ints) -> Ints:
    """(rows,) a word of 64 bits for what each row holds."""
    made = np.zeros(len(rows), dtype=np.int64)
    block = max(ROW_BLOCK // max(x[:1].nbytes, 1), 1)
    for begin in range(0, len(rows), block):
        some = np.asarray(x[rows[begin : begin + block]])
        made[begin : begin + block] = np.fromiter((hash(row.tobytes()) for row in some), dtype=np.int64, count=len(some))
    labels = y[rows].reshape(len(rows), -1).astype(np.float64) @ np.arange(1.0, 1 + y[:1].size)
    return made ^ (labels.view(np.int64) * np.int64(0x9E3779B97F4A7C1))


def _join_words(words: "Sequence[str] | map[str]") -> str:
    total = sha256()
    for word in words:
        total.update(f"{len(word)}:{word}".encode())
    return total.hexdigest()


# everything: new samples; partition: the samples are divided among clients again; split: every client's samples into its parts
Redrawn = Literal["everything", "partition", "split"]
FIXED_STEPS = ("natural", "arrivals")  # steps of a spec after which a client holds what its name implies


def get_redrawn(spec: str) -> Redrawn:
    """What a draw of these data draws. A federation that no spec names is taken for a partition: of its clients nothing is presumed."""
    try:
        first, *rest = parse_path(spec)
    except UserError:
        return "partition"
    if first.name in ("synthetic", "linear"):
        return "everything"
    return "split" if all(step.name in FIXED_STEPS for step in rest) else "partition"


def is_same_data(one: Federation, other: Federation) -> bool:
    """Whether two draws are the same data: then there is nothing to be drawn, as where a set brings its own split."""
    return hash_contents(one) == hash_contents(other)


def share_arrays(one: Federation, other: Federation) -> Federation:
    """The other federation with the arrays of the first where they are the same: ten draws of a partition need one copy of the samples."""
    same = one.x.shape == other.x.shape and one.x.dtype == other.x.dtype and bool((one.x == other.x).all())
    return other.replace(x=one.x) if same else other
