"""Tables.

Samples as their files hold them, before pixels are scaled and words are counted, and the checks that every data set must pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Ints
from coterie.core.tasks import Task, TaskName
from coterie.data.federation import NOWHERE, TEST, TRAIN, VALIDATION, Samples
from coterie.data.prepare import has_gaps
from coterie.data.readers.table_files import ROWS, get_file_rows

PARTS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
BLOCK_ROWS = 4096  # rows looked at together: a set may be larger than memory
MAX_CLASSES = 100_000  # what no set of classes has: labels beyond are ids, amounts or damage
MAX_CHECKED_BYTES = 1 << 30  # bytes of a mapped set up to which every value is looked at
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
    facts: Mapping[str, Any] = field(default_factory=dict)  # what provenance should tell beside source, licence and citation
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
    """Refuse what no model could be trained on, in one sentence that says where."""
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
        raise UserError(f"{where} holds one class only ({only!r}): there is nothing to tell apart; is the label column the right one?")


def samples_from_table(name: str, table: Table, provenance: Mapping[str, Any]) -> Samples:
    """The samples of a table whose values are the features.

    Where clients are not known, the set's own test part becomes the server's test set.
    """
    assert table.values is not None
    told, x, task = {**provenance, **table.facts}, table.values, Task(table.task)
    if table.owners is not None or table.part is None:
        return Samples(name, x, table.y, table.classes, None, told, table.owners, table.owner_names, table.part, task)
    tests, rest = table.part == TEST, (table.part != TEST) & (table.part != NOWHERE)
    central = (x[tests], table.y[tests]) if tests.any() else None
    if (rows := get_file_rows(told)) is not None:
        told[ROWS] = rows.select(np.flatnonzero(rest)).told()
    return Samples(name, x[rest], table.y[rest], table.classes, central, told, task=task)
