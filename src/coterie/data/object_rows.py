"""The samples of one data set object: torch's pairs, or Hugging Face's columns; known by what they can do, so that neither is needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Array
from coterie.core.layout import Inputs

LABEL = "label"
Columns = str | Sequence[str]  # of which an input is made
Wanted = Columns | Mapping[str, Columns] | None


@dataclass(frozen=True)
class ObjectRows:
    """Samples with their labels, and the names of the classes where the object knows them."""

    x: Array
    y: Array
    classes: tuple[str, ...] | None = None
    inputs: Inputs | None = None  # what a row of x holds, where samples have several


def samples_of(dataset: Any, where: str, label: str, inputs: Wanted) -> ObjectRows:
    """The samples of a data set object."""
    try:
        found = _columns(dataset, where, label, inputs) if hasattr(dataset, "column_names") else _pairs(dataset, where)
    except UserError:
        raise
    except Exception as error:  # whatever an object of the user's own may raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"{where}: its samples cannot be read ({reason}): they should be pairs of numbers and a class, or columns."
        ) from error
    if not len(found.y):
        raise UserError(f"{where}: it holds no samples.")
    if found.x.dtype.kind not in "fiub":
        raise UserError(f"{where}: its samples are no numbers but {found.x.dtype}: turn them into numbers, or use from_frame(..., text=).")
    return found


def _pairs(dataset: Any, where: str) -> ObjectRows:
    pairs = [dataset[i] for i in range(len(dataset))]
    classes = getattr(dataset, "classes", None)
    y = np.array([value.item() if hasattr(value, "item") else value for _, value in pairs])
    named = tuple(map(str, classes)) if classes is not None else None
    first = pairs[0][0] if pairs else None
    if isinstance(first, (tuple, Mapping)):
        keys = list(first) if isinstance(first, Mapping) else list(range(len(first)))
        stacked = {key: np.stack([np.asarray(features[key]) for features, _ in pairs]) for key in keys}
        return _several(stacked if isinstance(first, Mapping) else tuple(stacked.values()), y, named, where)
    return ObjectRows(np.stack([np.asarray(features) for features, _ in pairs]) if pairs else np.zeros((0, 1)), y, named)


def _several(given: tuple[Array, ...] | Mapping[Any, Array], y: Array, classes: tuple[str, ...] | None, where: str) -> ObjectRows:
    inputs = Inputs.of(given, where)
    return ObjectRows(inputs.pack(given, where), y, classes, inputs)


def _columns(dataset: Any, where: str, label: str, inputs: Wanted) -> ObjectRows:
    names = list(dataset.column_names)
    wanted = [name for name in names if name != label] if inputs is None else inputs
    blocks = {key: _listed(chosen) for key, chosen in wanted.items()} if isinstance(wanted, Mapping) else {"": _listed(wanted)}
    for name in [label, *(name for chosen in blocks.values() for name in chosen)]:
        if name not in names:
            raise UserError(f"{where} has no column {name!r}: {suggest_names(name, names)}")
    made = {key: _block(dataset, chosen) for key, chosen in blocks.items()}
    known = getattr(getattr(dataset, "features", {}).get(label), "names", None)
    y, classes = np.asarray(list(dataset[label])), tuple(map(str, known)) if known is not None else None
    return _several(made, y, classes, where) if isinstance(wanted, Mapping) else ObjectRows(made[""], y, classes)


def _listed(columns: Columns) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _block(dataset: Any, columns: Sequence[str]) -> Array:
    """Columns as one array; a single one keeps the shape of its cells."""
    blocks = [np.stack([np.asarray(cell) for cell in dataset[name]]) for name in columns]
    if len(blocks) == 1 and blocks[0].ndim > 1:
        return blocks[0]
    return np.concatenate([block.reshape(len(block), -1) for block in blocks], axis=1)
