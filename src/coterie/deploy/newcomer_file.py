"""A client that the study never knew, from its own rows with their labels: a file, or a table in memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.arrays import Array, Ints
from coterie.core.errors import UserError
from coterie.core.rng import key, shuffle
from coterie.core.specs import parse_path
from coterie.data.assemble import check_fractions, split_one
from coterie.data.federation import INPUTS, Federation, Parts
from coterie.data.files import read_npz
from coterie.data.preparing.prepared import DONE, preparation_of
from coterie.data.preparing.targets import standardised
from coterie.data.preparing.worded import worded_column_of
from coterie.data.scaling import Scaling
from coterie.deploy.newcomer_texts import newcomer_texts
from coterie.deploy.rows import (
    check_words,
    classes_of,
    columns_by_name,
    in_one_row,
    input_names,
    labelled_arrays,
    labelled_frame,
    labelled_table,
)
from coterie.deploy.served import feature_names, table_schema

if TYPE_CHECKING:
    import pandas as pd

LEAST = 4  # rows: two to place it by, and two for a half of them


def label_column(data: str) -> str | None:
    """The label column that a study's own spec names, if it is one of a table; of several, with commas between."""
    try:
        found = parse_path(data)[0].kwargs.get("label")
        return ",".join(map(str, found)) if isinstance(found, tuple) else found
    except UserError:  # objects in memory have any name
        return None


def newcomer_from(
    source: "Path | pd.DataFrame", known: Federation, name: str, label: str | None, test: float, data_seed: int = 0
) -> Federation:
    """The federation of one client, in the units of those that the study knows; a share `test` of its rows is kept to judge by.

    Texts to be continued have no labels; others need the column of theirs, the study's own unless given.
    """
    check_fractions("Placing a client", test, 0.0)
    if isinstance(source, Path) and not source.is_file():
        raise UserError(f"There is no file {source}.")
    if known.task.name == "next-token":
        if label is not None:
            raise UserError(f"Texts to be continued have no labels: leave label {label!r} away.")
        return newcomer_texts(source, known, name, test, data_seed)
    label = label or label_column(known.name)
    if label is None:
        raise UserError(f"Say which column of {source if isinstance(source, Path) else 'the table'} holds the labels: --label NAME.")
    raw, y = _rows(source, known, label, where := str(source) if isinstance(source, Path) else f"The table of {name!r}")
    if len(y) < LEAST:
        raise UserError(f"{where} holds {len(y)} rows: a client is placed by {LEAST} or more.")
    order = shuffle(key(data_seed, "place", name), len(y))
    train, _, tests = split_one(order.astype(np.int64), test, 0.0)
    x, told = _prepared(raw, train, known, name)
    y = standardised(y, known.task) if known.task.name == "regression" else y
    return Federation(name, x, y, known.classes, (name,), Parts.of([train]), Parts.of([tests]), provenance=told, task=known.task)


def _rows(source: "Path | pd.DataFrame", known: Federation, label: str, where: str) -> tuple[Array, Array]:
    """The rows as they are given, encoded where they are a table of words and numbers."""
    if isinstance(source, Path):
        if known.inputs is not None:
            arrays = read_npz(source, [*input_names(known.inputs), label])
            return in_one_row(known.inputs, arrays, where), classes_of(arrays[label].tolist(), known.classes, where)
        if source.suffix in (".npy", ".npz"):
            return labelled_arrays(source, known.input_shape, known.classes, label, known.task)
        frame, y = labelled_table(source, known.classes, label, known.task)
    else:
        frame, y = labelled_frame(source, known.classes, label, known.task, where)
    preparation, names = preparation_of(known), feature_names(known)
    check_words(frame, table_schema(known), where)
    if preparation is not None:
        return preparation.columns.encode(frame, where), y
    if (worded := worded_column_of(known.provenance)) is not None:
        return worded.rows(frame, where), y
    if names is None:
        raise UserError(f"The columns of {known.name!r} have no names: give the rows as .npz with arrays x and {label}.")
    return np.stack(columns_by_name(frame, names, where), axis=1), y


def _prepared(raw: Array, train: Ints, known: Federation, name: str) -> tuple[Array, dict[str, Any]]:
    """The rows in the units of training, and what to remember of them; statistics are those of the rows that the client is placed by."""
    preparation = preparation_of(known)
    if preparation is not None:
        preparation = preparation.with_client(name, np.asarray(raw[train], dtype=np.float64))
        made = preparation.apply(raw, name)
        if np.isnan(made).any():
            raise UserError(f"Row {int(np.isnan(made).any(1).argmax())} of {name!r} has a gap, which the study did not fill: fill it in.")
        return made, {DONE: preparation.told()}
    if "scaling" in known.provenance:
        scaling = Scaling.of(np.asarray(raw[train], dtype=np.float64))
        return scaling.apply(raw), {"scaling": {name: scaling.told()}}
    return raw.astype(known.x.dtype), {} if known.inputs is None else {INPUTS: known.inputs.told()}
