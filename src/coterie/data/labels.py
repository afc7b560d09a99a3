"""Labels of a column or an array: classes, a number (regression), several labels, or a time and whether the event was seen.

The task is inferred from the values or set by the user; unclear cases are refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Array, Doubles, Ints
from coterie.core.tasks import Task, TaskName
from coterie.data.readers.table_files import FileRows, locate_row
from coterie.data.table import make_class_names

if TYPE_CHECKING:
    import pandas as pd

TaskWord = Literal["auto", "classification", "regression", "multilabel", "survival"]
MAX_CLASS_NUMBERS = 20  # different whole numbers, up to which they are taken for classes
MARKS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1}  # of a label that is set or not


@dataclass(frozen=True)
class Labels:
    """The labels of samples: class numbers, targets, or a row of 0 and 1; and the names of the classes, of the target or of the labels."""

    y: Array
    classes: tuple[str, ...]
    task: TaskName = "classification"


def encode_label_columns(
    columns: Sequence[Sequence[Any]],
    names: Sequence[str],
    task: str,
    where: str,
    classes: Sequence[str] = (),
    rows: FileRows | None = None,
) -> Labels:
    """The labels in one column, in several of 0 and 1, or in two of times and events. `classes` are all there are, in their order, where a
    user states them."""
    if task not in get_args(TaskWord):
        raise UserError(f"{where}: task={task!r} is none of classification, regression, multilabel and survival.")
    if task == "survival":
        if len(columns) != 2 or classes:
            raise UserError(
                f"{where}: survival times have two label columns, the time and the event, and no classes: not {', '.join(names)}."
            )
        return Labels(parse_survival_times(columns, names, where, rows), make_interval_names(INTERVALS), "survival")
    if len(columns) > 1 or task == "multilabel":
        if task not in ("auto", "multilabel"):
            raise UserError(f"{where}: a {task} has one label column, not {', '.join(names)}.")
        return Labels(parse_label_marks(columns, names, where, rows), tuple(names), "multilabel")
    (column,), (name,) = columns, names
    if classes:
        if task == "regression":
            raise UserError(f"{where}: a regression has no classes: leave classes= out.")
        return _encode_stated_classes(column, name, classes, where, rows)
    words = [str(value) for value in column]
    if task == "regression" or (task == "auto" and _holds_amounts(words, name, where)):
        return Labels(parse_targets(words, name, where, rows), (name,), "regression")
    words = [word.strip() for word in words]
    found, numbers = np.unique(words, return_inverse=True)
    _check_spelling(list(map(str, found)), name, where)
    return Labels(numbers.astype(np.int64), tuple(map(str, found)))


def _encode_stated_classes(column: Sequence[Any], name: str, classes: Sequence[str], where: str, rows: FileRows | None) -> Labels:
    """Class numbers by the classes that a user states, of which some may be absent here."""
    known = {word.strip(): number for number, word in enumerate(classes)}
    if len(known) < max(len(classes), 2):
        raise UserError(f"{where}: classes={tuple(classes)} should be two or more different words.")
    words = [str(value).strip() for value in column]
    for row, word in enumerate(words):
        if word not in known:
            raise UserError(
                f"{where} has {word!r} in {locate_row(row, rows)}, which is no class of the label {name!r}: {suggest_names(word, known)}"
            )
    return Labels(np.array([known[word] for word in words], dtype=np.int64), tuple(known))


def _check_spelling(classes: Sequence[str], name: str, where: str) -> None:
    """Refuse two classes that differ only in capitals: one of them is a slip."""
    seen: dict[str, str] = {}
    for word in classes:
        other = seen.setdefault(word.casefold(), word)
        if other != word:
            raise UserError(f"{where}: the label {name!r} holds both {other!r} and {word!r}: write them alike, or rename one.")


def _holds_amounts(words: Sequence[str], name: str, where: str) -> bool:
    numbers = _parse_numbers(words)
    if numbers is None or not np.isfinite(numbers).all():
        return False
    if (numbers != np.round(numbers)).any():
        return True
    if len(np.unique(numbers)) > MAX_CLASS_NUMBERS:
        raise UserError(
            f"{where}: the label {name!r} holds {len(np.unique(numbers)):,} different whole numbers, which may be classes or amounts: set "
            "task=classification or task=regression."
        )
    return False


def parse_targets(cells: Sequence[Any], name: str, where: str, rows: FileRows | None = None) -> Doubles:
    """The numbers of a regression's target; the first that is none is named."""
    numbers = _parse_numbers([str(cell) for cell in cells])
    if numbers is None or not np.isfinite(numbers).all():
        row = next(i for i, cell in enumerate(cells) if _parse_numbers([str(cell)]) is None or not np.isfinite(float(cell)))
        raise UserError(
            f"{where}: {locate_row(row, rows)} has {str(cells[row])!r} in the target {name!r}: a regression needs a finite number in every "
            "row."
        )
    return numbers


def parse_label_marks(columns: Sequence[Sequence[Any]], names: Sequence[str], where: str, rows: FileRows | None = None) -> Array:
    """(N, L) labels of 0 and 1 from columns of them."""
    marks = []
    for cells, name in zip(columns, names, strict=True):
        words = [str(cell).strip().lower() for cell in cells]
        if wrong := [i for i, word in enumerate(words) if word not in MARKS]:
            raise UserError(
                f"{where}: {locate_row(wrong[0], rows)} has {str(cells[wrong[0]])!r} in the label {name!r}: where there are several "
                "labels, each is 0 or 1."
            )
        marks.append(np.array([MARKS[word] for word in words], dtype=np.uint8))
    return np.stack(marks, axis=1)


INTERVALS = 10  # of a grid, by default
MAX_INTERVALS = 1000


def make_interval_names(count: int) -> tuple[str, ...]:
    """What stands in the place of classes: a model has an output for each interval."""
    return tuple(f"interval {number}" for number in range(1, count + 1))


def parse_survival_times(columns: Sequence[Sequence[Any]], names: Sequence[str], where: str, rows: FileRows | None = None) -> Doubles:
    """(N, 2) times, in their own units, and events: 1, or 0 where the time is censored. The first that is wrong is named."""
    (times, events), (time, event) = columns, names
    numbers = [_parse_numbers([str(cell)]) for cell in times]
    for row, found in enumerate(numbers):
        if found is None or not np.isfinite(found[0]) or found[0] <= 0:
            raise UserError(f"{where}: {locate_row(row, rows)} has {str(times[row])!r} in the time {time!r}: times are numbers above 0.")
    words = [str(cell).strip().lower() for cell in events]
    for row, word in enumerate(words):
        if word not in MARKS:
            raise UserError(
                f"{where}: {locate_row(row, rows)} has {str(events[row])!r} in the event {event!r}: write 1 where it was seen, else 0."
            )
    marks = [MARKS[word] for word in words]
    return np.stack([np.concatenate([found for found in numbers if found is not None]), np.array(marks, dtype=np.float64)], axis=1)


def _parse_numbers(words: Sequence[str]) -> Doubles | None:
    try:
        return np.array([float(word) for word in words], dtype=np.float64)
    except ValueError:
        return None


TARGET_NAME = "target"  # what a regression's is called where nothing names it


def encode_memory_labels(y: Array, classes: Sequence[str] | None, task: str, where: str) -> Labels:
    """By `task` or by what they hold. Whole numbers that count 0, 1, 2, ... or have names are class numbers."""
    if task == "survival":
        if y.ndim != 2 or y.shape[1] != 2:
            raise UserError(f"{where}: survival times are two columns of labels, the time and the event, not {y.shape}.")
        return encode_label_columns(list(y.T.tolist()), ["time", "event"], task, where)
    if y.ndim == 2 and y.shape[1] == 1 and task != "multilabel":
        y = y[:, 0]
    if y.ndim == 2:
        names = tuple(map(str, classes)) if classes is not None else tuple(f"label {i}" for i in range(y.shape[1]))
        if len(names) != y.shape[1] or task not in ("auto", "multilabel"):
            raise UserError(
                f"{where}: {y.shape[1]} columns of labels are a multilabel task with as many names, not {task} with {len(names)}."
            )
        return Labels(parse_label_marks(list(y.T.tolist()), names, where), names, "multilabel")
    numbers = y.dtype.kind in "iu" and task in ("auto", "classification")
    present = np.unique(y) if numbers else y
    # whole numbers are class numbers by their task, where they are few, or without a gap from 0 on
    few = task == "classification" or len(present) <= MAX_CLASS_NUMBERS
    if numbers and (classes is not None or (len(y) and present[0] >= 0 and (few or int(present[-1]) == len(present) - 1))):
        return Labels(y.astype(np.int64), tuple(map(str, classes)) if classes is not None else make_class_names(y, where))
    if task == "classification" and y.dtype.kind == "f" and (y != np.round(y)).any():
        raise UserError(f"{where}: the labels are fractions such as {y[y != np.round(y)][0]:g}: give class numbers or names.")
    return encode_label_columns([y.tolist()], [TARGET_NAME], task, where)


def split_labelled_frame(frame: "pd.DataFrame", classes: Sequence[str], label: str, task: Task, where: str) -> "tuple[pd.DataFrame, Array]":
    """The same of a table that is there already."""
    several = task.name in ("multilabel", "survival")
    names = [label] if label in frame or not several else label.split(",")
    for name in names:
        if name not in frame:
            raise UserError(f"{where} has no label column {name!r}: {suggest_names(name, map(str, frame.columns))}")
    columns = [frame[name].tolist() for name in names]
    if task.name == "multilabel":
        if len(names) != len(classes):
            raise UserError(f"The model has the labels {', '.join(classes)}: name a column for each, --label {','.join(classes)}.")
        return frame.drop(columns=names), parse_label_marks(columns, names, where)
    if task.name == "survival":
        if len(names) != 2:
            raise UserError(f"{where}: the model predicts survival times: name the columns of the time and the event, --label time,event.")
        return frame.drop(columns=names), parse_survival_times(columns, names, where)
    return frame.drop(columns=label), encode_labels(columns[0], classes, task, label, where)


def encode_labels(cells: Sequence[object], classes: Sequence[str], task: Task, label: str, where: str) -> Array:
    """Class numbers, or targets in their own units."""
    return parse_targets(cells, label, where) if task.name == "regression" else encode_classes(cells, classes, where)


def encode_array_labels(found: Array, classes: Sequence[str], task: Task, where: str) -> Array:
    """Class numbers, several labels, or a time and an event a sample, from an array."""
    if task.name == "survival":
        return encode_memory_labels(found, None, "survival", where).y
    if task.name != "multilabel":
        return encode_labels(found.tolist(), classes, task, "label", where)
    if found.ndim != 2 or found.shape[1] != len(classes):
        raise UserError(f"{where}: the labels have shape {found.shape}: the model has {len(classes)} of them, a column each.")
    return parse_label_marks(list(found.T.tolist()), classes, where)


def encode_classes(labels: Sequence[object], classes: Sequence[str], where: str) -> Ints:
    """Class numbers of labels: by the classes' names, or, where no class is called by a number, by their numbers."""
    known = {name: number for number, name in enumerate(classes)}
    if not any(parse_number(name) is not None for name in classes):
        known |= {str(number): number for number in range(len(classes))}
    words = [str(label).strip() for label in labels]
    if unknown := [word for word in words if word not in known]:
        stored = ", ".join(classes[:10]) + (" ..." if len(classes) > 10 else "")
        raise UserError(f"{where} holds the label {unknown[0]!r}: the model knows {stored}.")
    return np.array([known[word] for word in words], dtype=np.int64)


def parse_number(cell: str) -> float | None:
    """The finite number that a cell holds, if it does."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if np.isfinite(value) else None
