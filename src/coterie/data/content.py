"""What a federation holds, as hashes: a study goes on with the data it began with, and no others."""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from coterie._util.json_io import to_json_line
from coterie._util.threads import count_cores, map_in_order
from coterie.core.arrays import Array
from coterie.core.tasks import Task
from coterie.data.federation import Federation, Parts

BLOCK = 1 << 24  # bytes that a thread hashes at a time
MOST = 1 << 31  # bytes of one array that are read: of a larger one, evenly spaced blocks


def contents(federation: Federation) -> dict[str, str]:
    """By part of a federation, the hash of what it holds, whatever it is called and wherever it came from."""
    parts = [federation.train, federation.test, *([federation.validation] if federation.validation is not None else [])]
    found = {
        "features": array_hash(federation.x),
        "labels": _joined([array_hash(federation.y), *federation.classes, *_task(federation.task)]),
        "clients": _joined(federation.ids),
        "parts": _joined([_parts(part) for part in parts]),
    }
    if federation.central is not None:
        found["server's test set"] = _joined(map(array_hash, federation.central))
    if federation.groups is not None:
        found["true groups"] = array_hash(federation.groups)
    if federation.arrivals is not None:
        found["arrivals"] = array_hash(federation.arrivals)
    if federation.inputs is not None:
        found["inputs"] = to_json_line(federation.inputs.told())
    if federation.sites is not None and len(set(federation.sites)) < len(federation):  # several clients at a site
        found["sites"] = _joined(federation.sites)
    if federation.unseen:
        found["clients that take no part"] = str(federation.unseen)
    if federation.later:
        told = [str(value) for begin, world in federation.later for value in (begin, *contents(world).values())]
        found["later rounds"] = _joined(told)
    return found


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts of a federation that are another than they were, in words."""
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def array_hash(array: Array) -> str:
    """SHA-256 of the kind, the shape and the blocks of an array, whose own hashes are found on all cores."""
    row = max(array[:1].nbytes, 1)
    rows = max(BLOCK // row, 1)
    begins = range(0, len(array), rows)
    step = -(-len(begins) * rows * row // MOST) if begins else 1
    blocks = map_in_order(lambda begin: sha256(array[begin : begin + rows].tobytes()).hexdigest(), begins[::step], count_cores())
    return _joined([array.dtype.str, str(array.shape), *blocks])


def _task(task: Task) -> list[str]:
    """Nothing of a classification, whose hashes are as they have always been."""
    return [] if task.counts_classes else [task.name, repr(task.mean), repr(task.deviation)]


def _parts(parts: Parts) -> str:
    return array_hash(parts.offsets) + array_hash(parts.indices)


def _joined(words: "Sequence[str] | map[str]") -> str:
    total = sha256()
    for word in words:
        total.update(f"{len(word)}:{word}".encode())
    return total.hexdigest()
