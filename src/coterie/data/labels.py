"""What a label column asks for: classes, a number, or several labels. Read off what stands in it, or said; refused where unclear."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Array, Doubles
from coterie.core.tasks import TaskName
from coterie.data.table_files import FileRows, locate

TaskWord = Literal["auto", "classification", "regression", "multilabel"]
FEW_NUMBERS = 20  # different whole numbers, up to which they are taken for classes
MARKS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1}  # of a label that is set or not


@dataclass(frozen=True)
class Labels:
    """The labels of samples: class numbers, targets, or a row of 0 and 1; and the names of the classes, of the target or of the labels."""

    y: Array
    classes: tuple[str, ...]
    task: TaskName = "classification"


def labels_of(
    columns: Sequence[Sequence[Any]],
    names: Sequence[str],
    task: str,
    where: str,
    classes: Sequence[str] = (),
    rows: FileRows | None = None,
) -> Labels:
    """The labels in one column, or in several of 0 and 1. `classes` are all there are, in their order, where a user states them."""
    if task not in ("auto", "classification", "regression", "multilabel"):
        raise UserError(f"{where}: task={task!r} is none of classification, regression and multilabel.")
    if len(columns) > 1 or task == "multilabel":
        if task not in ("auto", "multilabel"):
            raise UserError(f"{where}: a {task} has one label column, not {', '.join(names)}.")
        return Labels(label_marks(columns, names, where, rows), tuple(names), "multilabel")
    (column,), (name,) = columns, names
    if classes:
        if task == "regression":
            raise UserError(f"{where}: a regression has no classes: leave classes= out.")
        return _stated_classes(column, name, classes, where, rows)
    words = [str(value) for value in column]
    if task == "regression" or (task == "auto" and _asks_for_numbers(words, name, where)):
        return Labels(targets_of(words, name, where, rows), (name,), "regression")
    words = [word.strip() for word in words]
    found, numbers = np.unique(words, return_inverse=True)
    _check_spelling(list(map(str, found)), name, where)
    return Labels(numbers.astype(np.int64), tuple(map(str, found)))


def _stated_classes(column: Sequence[Any], name: str, classes: Sequence[str], where: str, rows: FileRows | None) -> Labels:
    """Class numbers by the classes that a user states, of which some may be absent here."""
    known = {word.strip(): number for number, word in enumerate(classes)}
    if len(known) < max(len(classes), 2):
        raise UserError(f"{where}: classes={tuple(classes)} should be two or more different words.")
    words = [str(value).strip() for value in column]
    for row, word in enumerate(words):
        if word not in known:
            raise UserError(
                f"{where} has {word!r} in {locate(row, rows)}, which is no class of the label {name!r}: {suggest_names(word, known)}"
            )
    return Labels(np.array([known[word] for word in words], dtype=np.int64), tuple(known))


def _check_spelling(classes: Sequence[str], name: str, where: str) -> None:
    """Refuse two classes that differ only in capitals: one of them is a slip."""
    seen: dict[str, str] = {}
    for word in classes:
        other = seen.setdefault(word.casefold(), word)
        if other != word:
            raise UserError(f"{where}: the label {name!r} holds both {other!r} and {word!r}: write them alike, or rename one.")


def _asks_for_numbers(words: Sequence[str], name: str, where: str) -> bool:
    """Whether a column holds amounts and no classes."""
    numbers = _numbers(words)
    if numbers is None or not np.isfinite(numbers).all():
        return False
    if (numbers != np.round(numbers)).any():
        return True
    if len(np.unique(numbers)) > FEW_NUMBERS:
        raise UserError(
            f"{where}: the label {name!r} holds {len(np.unique(numbers)):,} different whole numbers, which may be classes or amounts: say "
            "task=classification or task=regression."
        )
    return False


def targets_of(cells: Sequence[Any], name: str, where: str, rows: FileRows | None = None) -> Doubles:
    """The numbers of a regression's target; the first that is none is named."""
    numbers = _numbers([str(cell) for cell in cells])
    if numbers is None or not np.isfinite(numbers).all():
        row = next(i for i, cell in enumerate(cells) if _numbers([str(cell)]) is None or not np.isfinite(float(cell)))
        raise UserError(
            f"{where}: {locate(row, rows)} has {str(cells[row])!r} in the target {name!r}: a regression needs a finite number in every row."
        )
    return numbers


def _marks(cells: Sequence[Any], name: str, where: str, rows: FileRows | None) -> Array:
    """(N,) 0 or 1."""
    words = [str(cell).strip().lower() for cell in cells]
    if wrong := [i for i, word in enumerate(words) if word not in MARKS]:
        raise UserError(
            f"{where}: {locate(wrong[0], rows)} has {str(cells[wrong[0]])!r} in the label {name!r}: where there are several labels, each "
            "is 0 or 1."
        )
    return np.array([MARKS[word] for word in words], dtype=np.uint8)


def label_marks(columns: Sequence[Sequence[Any]], names: Sequence[str], where: str, rows: FileRows | None = None) -> Array:
    """(N, L) labels of 0 and 1 from columns of them."""
    return np.stack([_marks(own, name, where, rows) for own, name in zip(columns, names, strict=True)], axis=1)


def _numbers(words: Sequence[str]) -> Doubles | None:
    try:
        return np.array([float(word) for word in words], dtype=np.float64)
    except ValueError:
        return None
