"""The labels of arrays in memory: class numbers as they are, fractions as targets, rows of 0 and 1 as several labels."""

from collections.abc import Sequence

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array
from coterie.data.labels import FEW_NUMBERS, Labels, label_marks, labels_of
from coterie.data.table import numbered_classes

TARGET = "target"  # what a regression's is called where nothing names it


def array_labels(y: Array, classes: Sequence[str] | None, task: str, where: str) -> Labels:
    """By `task` or by what they hold. Whole numbers that count 0, 1, 2, ... or have names are class numbers."""
    if y.ndim == 2 and y.shape[1] == 1 and task != "multilabel":
        y = y[:, 0]
    if y.ndim == 2:
        names = tuple(map(str, classes)) if classes is not None else tuple(f"label {i}" for i in range(y.shape[1]))
        if len(names) != y.shape[1] or task not in ("auto", "multilabel"):
            raise UserError(
                f"{where}: {y.shape[1]} columns of labels are a multilabel task with as many names, not {task} with {len(names)}."
            )
        return Labels(label_marks(list(y.T.tolist()), names, where), names, "multilabel")
    whole = y.dtype.kind in "iu" and len(y) > 0 and y.min() >= 0
    if y.dtype.kind in "iu" and task in ("auto", "classification") and (classes is not None or (whole and _numbered(y, task))):
        return Labels(y.astype(np.int64), tuple(map(str, classes)) if classes is not None else numbered_classes(y, where))
    if task == "classification" and y.dtype.kind == "f" and (y != np.round(y)).any():
        raise UserError(f"{where}: the labels are fractions such as {y[y != np.round(y)][0]:g}: give class numbers or names.")
    return labels_of([y.tolist()], [TARGET], task, where)


def _numbered(y: Array, task: str) -> bool:
    """Whether whole numbers are numbers of classes: said to be, few, or without a gap from 0 on."""
    present = np.unique(y)
    return task == "classification" or len(present) <= FEW_NUMBERS or int(present[-1]) == len(present) - 1
