"""Tables: samples as their files hold them, and the checks that every data set must pass.

Pixels are not yet scaled and words not yet counted. Several inputs of a sample are packed into one row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Floats, Ints
from coterie.core.layout import Inputs
from coterie.core.tasks import Task, TaskName
from coterie.data.federation import NOWHERE, TEST, TRAIN, VALIDATION, Samples
from coterie.data.prepare import has_gaps
from coterie.data.readers.table_files import ROWS, get_file_rows

PARTS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
BLOCK_ROWS = 4096  # rows looked at together: a set may be larger than memory
MAX_CLASSES = 100_000  # what no set of classes has: labels beyond are ids, amounts or damage
MAX_CHECKED_BYTES = 1 << 30  # bytes of a mapped set up to which every value is looked at
MAX_TOKEN = 1 << 24  # the largest number of a word, which a float32 holds exactly
SAMPLED_ROWS = 256  # rows, evenly spread, that are looked at of a larger one


@dataclass(frozen=True)
class Table:
    """Rows of one data set. `values` are pixels (uint8), numbers or tokens; a set of texts has `texts` instead, one of pairs has both."""

    y: Array  # (N,) class numbers or targets, or (N, L) labels of 0 and 1
    classes: tuple[str, ...]
    values: Array | None = None
    texts: Sequence[str] | None = None
    part: Ints | None = None  # (N,) the set's own split
    owners: Ints | None = None  # (N,) rows of owner_names
    owner_names: tuple[str, ...] = ()
    task: TaskName = "classification"
    facts: Mapping[str, Any] = field(default_factory=dict)  # what provenance holds beside source, licence and citation
    stated: bool = False  # whether a user states the classes, of which all but one may then be absent

    def count(self, part: str) -> int:
        """How many rows a part of the set's own split has; without such a split, all rows are train."""
        split = self.part if self.part is not None else np.full(len(self.y), TRAIN)
        return int((split == PARTS[part]).sum())

    def rows(self, chosen: Ints) -> "Table":
        """Some of the rows, with the clients that still have any."""
        owners, names = self.owners, self.owner_names
        if owners is not None:
            kept, owners = np.unique(owners[chosen], return_inverse=True)
            names = tuple(names[i] for i in kept)
        return replace(
            self,
            y=self.y[chosen],
            values=self.values[chosen] if self.values is not None else None,
            texts=[self.texts[i] for i in chosen] if self.texts is not None else None,
            part=self.part[chosen] if self.part is not None else None,
            owners=owners,
            owner_names=names,
        )


def encode_names(names: Sequence[str] | Array) -> tuple[Ints, tuple[str, ...]]:
    """Names as numbers, and the names in sorted order: ``owners, owner_names = coded(writers)``."""
    found, numbers = np.unique(names, return_inverse=True)
    return numbers.astype(np.int64), tuple(map(str, found))


def check_table(table: Table, where: str) -> None:
    """Refuse what no model could be trained on, in one sentence that names the place."""
    check_labels(table, where)
    if table.values is not None:
        _check_features(table.values, np.arange(len(table.y)), where, gaps=has_gaps(table.facts))


def check_mapped_table(table: Table, where: str) -> None:
    """The same for a set that is mapped, not read: of one larger than a GiB only some rows are looked at."""
    check_labels(table, where)
    assert table.values is not None
    n = len(table.y)
    rows = np.arange(n) if table.values.nbytes <= MAX_CHECKED_BYTES else np.unique(np.linspace(0, n - 1, SAMPLED_ROWS).astype(np.int64))
    _check_features(table.values, rows, where)


def _check_features(values: Array, rows: Ints, where: str, *, gaps: bool = False) -> None:
    if values.ndim < 2 or not all(values.shape[1:]):
        raise UserError(f"{where} holds samples without features: each should be a list of numbers.")
    if values.dtype.kind != "f" or gaps:
        return
    for begin in range(0, len(rows), BLOCK_ROWS):
        chosen = rows[begin : begin + BLOCK_ROWS]
        bad = ~np.isfinite(values[chosen].reshape(len(chosen), -1)).all(axis=1)
        if bad.any():
            raise UserError(f"{where}: sample {int(chosen[bad.argmax()])} holds a value that is no finite number; fill it in or drop it.")


def make_class_names(y: Array, where: str) -> tuple[str, ...]:
    """The classes that whole numbers name: all from 0 to the largest."""
    count = int(y.max(initial=0)) + 1
    if count > MAX_CLASSES:
        raise UserError(f"{where}: labels up to {count - 1} would make {count:,} classes: number them 0, 1, 2, ...")
    return tuple(str(c) for c in range(count))


def check_labels(table: Table, where: str) -> None:
    """The part of the checks that reads no features."""
    n = len(table.y)
    lengths = {len(v) for v in (table.values, table.texts, table.part, table.owners) if v is not None} | {n}
    if len(lengths) > 1:
        raise UserError(f"{where} is inconsistent: its features, labels and clients number {', '.join(map(str, sorted(lengths)))}.")
    if n == 0:
        raise UserError(f"{where} holds no samples.")
    if len(table.classes) > MAX_CLASSES:
        raise UserError(f"{where} would have {len(table.classes):,} classes: is the label column the right one?")
    if table.task == "classification":
        _check_classes(table, where)
    elif table.task == "next-token":
        pass  # texts are their own labels
    elif table.task == "survival" and np.isfinite(table.y).all():
        pass  # times and events were looked at when they were read
    elif not np.isfinite(table.y).all() or (table.task == "multilabel" and table.y.shape[1:] != (len(table.classes),)):
        raise UserError(f"{where} holds a label that is no finite number.")
    elif all(len(np.unique(own)) < 2 for own in np.atleast_2d(table.y.T)):
        raise UserError(f"{where} holds the same label in every row: there is nothing to predict; is the label column the right one?")
    if table.owners is not None:
        held = np.bincount(table.owners, minlength=len(table.owner_names))
        if (held == 0).any():
            raise UserError(f"{where}: client {table.owner_names[int(held.argmin())]!r} has no samples; leave it out.")


def _check_classes(table: Table, where: str) -> None:
    if table.y.min() < 0 or table.y.max() >= len(table.classes):
        wrong = table.y.min() if table.y.min() < 0 else table.y.max()
        raise UserError(f"{where} holds a label of {wrong} where 0 to {len(table.classes) - 1} are expected.")
    if len(np.unique(table.y)) < 2 and not table.stated:
        only = table.classes[int(table.y[0])]
        raise UserError(f"{where} holds one class only ({only!r}): there is nothing to learn; is the label column the right one?")


def samples_from_table(name: str, table: Table, provenance: Mapping[str, Any]) -> Samples:
    """The samples of a table whose values are the features.

    Where clients are not known, the set's own test part becomes the server's test set.
    """
    assert table.values is not None
    stored, x, task = {**provenance, **table.facts}, table.values, Task(table.task)
    if table.owners is not None or table.part is None:
        return Samples(name, x, table.y, table.classes, None, stored, table.owners, table.owner_names, table.part, task)
    tests, rest = table.part == TEST, (table.part != TEST) & (table.part != NOWHERE)
    central = (x[tests], table.y[tests]) if tests.any() else None
    if (rows := get_file_rows(stored)) is not None:
        stored[ROWS] = rows.select(np.flatnonzero(rest)).to_list()
    return Samples(name, x[rest], table.y[rest], table.classes, central, stored, task=task)


def parse_split(words: Sequence[Any], where: str) -> Ints:
    """A column of the words train, validation and test as parts."""
    if unknown := [word for word in words if str(word) not in PARTS]:
        raise UserError(f"{where}: {str(unknown[0])!r} is no part: the split should hold {', '.join(PARTS)}.")
    return np.array([PARTS[str(word)] for word in words], dtype=np.int64)


def has_several_inputs(given: Any) -> bool:
    """Whether samples are given as several inputs: a dictionary, or a tuple of arrays of which each has a row a sample."""
    if isinstance(given, Mapping):
        return True
    return isinstance(given, tuple) and all(np.ndim(each) >= 1 and hasattr(each, "shape") for each in given) and len(given) > 0


def infer_inputs(given: Sequence[Any] | Mapping[Any, Any], where: str) -> Inputs:
    """The layout of arrays that all have a row a sample; a list of single numbers is a column."""
    names = tuple(map(str, given)) if isinstance(given, Mapping) else ()
    arrays = [np.asarray(each) for each in (given.values() if isinstance(given, Mapping) else given)]
    for place, array in enumerate(arrays):
        name = names[place] if names else str(place)
        if array.ndim == 0 or array.dtype.kind not in "fiub" or not all(array.shape[1:]):
            raise UserError(f"{where}: the input {name!r} should be numbers, a row a sample, not {array.dtype} of shape {array.shape}.")
    counts = [len(array) for array in arrays]
    if len(set(counts)) != 1:
        raise UserError(f"{where}: its inputs have {', '.join(map(str, counts))} rows: each needs one for every sample.")
    return Inputs(tuple(array.shape[1:] or (1,) for array in arrays), tuple(array.dtype.kind in "iu" for array in arrays), names)


def pack_inputs(inputs: Inputs, given: Sequence[Any] | Mapping[Any, Any], where: str) -> Floats:
    """(n, width) rows of what is given as these inputs."""
    if isinstance(given, Mapping) != bool(inputs.names) or (inputs.names and set(given) != set(inputs.names)):
        wanted = f"a dictionary of {', '.join(inputs.names)}" if inputs.names else f"a tuple of {len(inputs.shapes)} arrays"
        raise UserError(f"{where}: the model takes {wanted}.")
    ordered = {name: given[name] for name in inputs.names} if isinstance(given, Mapping) else given
    found = infer_inputs(ordered, where)
    if found.shapes != inputs.shapes:
        raise UserError(f"{where}: samples have the shapes {_format_shapes(found)}, and the model takes {_format_shapes(inputs)}.")
    arrays = [np.asarray(each) for each in (ordered.values() if isinstance(ordered, Mapping) else ordered)]
    rows = np.empty((len(arrays[0]), inputs.width), dtype=np.float32)
    for array, piece, is_tokens in zip(arrays, inputs.pieces, inputs.tokens, strict=True):
        if is_tokens:
            _check_tokens(array, where)
        rows[:, piece] = array.reshape(len(array), -1)
    return rows


def pack_samples(given: Sequence[Any] | Mapping[Any, Any], where: str) -> tuple[Floats, Inputs]:
    """Several inputs in one row a sample, and their layout."""
    inputs = infer_inputs(given, where)
    return pack_inputs(inputs, given, where), inputs


def _check_tokens(array: Array, where: str) -> None:
    if array.size and (array.min() < 0 or array.max() > MAX_TOKEN or (array.dtype.kind == "f" and (array != np.round(array)).any())):
        raise UserError(f"{where}: whole numbers that stand for words should lie between 0 and {MAX_TOKEN:,}; give amounts as floats.")


def _format_shapes(inputs: Inputs) -> str:
    names = inputs.names or tuple(map(str, range(len(inputs.shapes))))
    return ", ".join(f"{name}: {shape}" for name, shape in zip(names, inputs.shapes, strict=True))
