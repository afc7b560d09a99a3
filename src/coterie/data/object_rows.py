"""The samples of one data set object: torch's pairs, or Hugging Face's columns; known by what they can do, so that neither is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.arrays import Array
from coterie.core.errors import UserError, suggestion

LABEL = "label"


@dataclass(frozen=True)
class ObjectRows:
    """Samples with their labels, and the names of the classes where the object knows them."""

    x: Array
    y: Array
    classes: tuple[str, ...] | None = None


def samples_of(dataset: Any, where: str, label: str, inputs: str | Sequence[str] | None) -> ObjectRows:
    """The samples of a data set object."""
    try:
        found = _columns(dataset, where, label, inputs) if hasattr(dataset, "column_names") else _pairs(dataset)
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


def _pairs(dataset: Any) -> ObjectRows:
    pairs = [dataset[i] for i in range(len(dataset))]
    classes = getattr(dataset, "classes", None)
    return ObjectRows(
        np.stack([np.asarray(features) for features, _ in pairs]) if pairs else np.zeros((0, 1)),
        np.array([value.item() if hasattr(value, "item") else value for _, value in pairs]),
        tuple(map(str, classes)) if classes is not None else None,
    )


def _columns(dataset: Any, where: str, label: str, inputs: str | Sequence[str] | None) -> ObjectRows:
    names = list(dataset.column_names)
    chosen = [name for name in names if name != label] if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    for name in [label, *chosen]:
        if name not in names:
            raise UserError(f"{where} has no column {name!r}: {suggestion(name, names)}")
    blocks = [np.stack([np.asarray(cell) for cell in dataset[name]]) for name in chosen]
    if len(blocks) == 1 and blocks[0].ndim > 1:
        x = blocks[0]
    else:
        x = np.concatenate([block.reshape(len(block), -1) for block in blocks], axis=1)
    known = getattr(getattr(dataset, "features", {}).get(label), "names", None)
    return ObjectRows(x, np.asarray(list(dataset[label])), tuple(map(str, known)) if known is not None else None)
