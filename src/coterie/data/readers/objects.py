"""Federations from objects in memory: data frames, arrays, torch and Hugging Face data sets (`Federation.from_frame` and others).

Data set objects are recognised by their methods, so neither torch nor `datasets` is imported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError, check_names, suggest_names, summarize_error
from coterie.core.arrays import Array
from coterie.core.layout import Inputs
from coterie.data.client_scenarios import move_unseen_last
from coterie.data.federation import INPUTS, Federation, Samples
from coterie.data.labels import encode_memory_labels
from coterie.data.partitions import natural
from coterie.data.readers.frames import TableOptions, make_table, mark_missing
from coterie.data.readers.table_files import to_words
from coterie.data.readers.user_files import USER_PROVENANCE
from coterie.data.table import PARTS, Table, check_table, encode_names, has_several_inputs, pack_samples, parse_split, samples_from_table

if TYPE_CHECKING:
    import pandas as pd

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


def read_dataset(dataset: Any, where: str, label: str, inputs: Wanted) -> ObjectRows:
    """The samples of a data set object."""
    try:
        found = _read_columns(dataset, where, label, inputs) if hasattr(dataset, "column_names") else _read_pairs(dataset, where)
    except UserError:
        raise
    except Exception as error:  # whatever an object of the user's own may raise
        raise UserError(
            f"{where}: its samples cannot be read ({summarize_error(error)}): they should be pairs of numbers and a class, or columns."
        ) from error
    if not len(found.y):
        raise UserError(f"{where}: it holds no samples.")
    if found.x.dtype.kind not in "fiub":
        raise UserError(f"{where}: its samples are no numbers but {found.x.dtype}: turn them into numbers, or use from_frame(..., text=).")
    return found


def _read_pairs(dataset: Any, where: str) -> ObjectRows:
    pairs = [dataset[i] for i in range(len(dataset))]
    classes = getattr(dataset, "classes", None)
    y = np.array([value.item() if hasattr(value, "item") else value for _, value in pairs])
    named = tuple(map(str, classes)) if classes is not None else None
    first = pairs[0][0] if pairs else None
    if isinstance(first, (tuple, Mapping)):
        keys = list(first) if isinstance(first, Mapping) else list(range(len(first)))
        stacked: dict[Any, Array] = {key: np.stack([np.asarray(features[key]) for features, _ in pairs]) for key in keys}
        x, inputs = pack_samples(stacked if isinstance(first, Mapping) else tuple(stacked.values()), where)
        return ObjectRows(x, y, named, inputs)
    return ObjectRows(np.stack([np.asarray(features) for features, _ in pairs]) if pairs else np.zeros((0, 1)), y, named)


def _read_columns(dataset: Any, where: str, label: str, inputs: Wanted) -> ObjectRows:
    names = list(dataset.column_names)
    wanted = [name for name in names if name != label] if inputs is None else inputs
    blocks = {key: _list_columns(chosen) for key, chosen in wanted.items()} if isinstance(wanted, Mapping) else {"": _list_columns(wanted)}
    for name in [label, *(name for chosen in blocks.values() for name in chosen)]:
        if name not in names:
            raise UserError(f"{where} has no column {name!r}: {suggest_names(name, names)}")
    made = {key: _stack_columns(dataset, chosen) for key, chosen in blocks.items()}
    known = getattr(getattr(dataset, "features", {}).get(label), "names", None)
    y, classes = np.asarray(list(dataset[label])), tuple(map(str, known)) if known is not None else None
    x, layout = pack_samples(made, where) if isinstance(wanted, Mapping) else (made[""], None)
    return ObjectRows(x, y, classes, layout)


def _list_columns(columns: Columns) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _stack_columns(dataset: Any, columns: Sequence[str]) -> Array:
    """Columns as one array; a single one keeps the shape of its cells."""
    blocks = [np.stack([np.asarray(cell) for cell in dataset[name]]) for name in columns]
    if len(blocks) == 1 and blocks[0].ndim > 1:
        return blocks[0]
    return np.concatenate([block.reshape(len(block), -1) for block in blocks], axis=1)


def federation_from_frame(
    frame: "pd.DataFrame",
    *,
    client: str,
    label: Sequence[str] | str = (),
    name: str = "frame",
    groups: str | Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Federation:
    """The clients of a data frame; settings are those of the spec ``csv(...)`` and of the partition ``natural``.

    `groups` are the clients' known groups, for the control with the true groups: a column, which is not learned from, or a dictionary.
    `facts` are added to the provenance before anything is prepared.
    """
    where = f"The frame {name!r}"
    if isinstance(groups, str):
        column, groups = groups, _read_group_column(frame, client, groups, where)
        frame = frame.drop(columns=[column])
    known = {each.name for each in fields(TableOptions)} - {"sep", "encoding", "decimal"}
    own, parts = ({key: value for key, value in settings.items() if (key in known) is chosen} for chosen in (True, False))
    options = TableOptions(label=label if isinstance(label, str) else tuple(label), client=client, **own)
    options.check(where)
    whole = mark_missing(frame.reset_index(drop=True), to_words(options.missing))
    table = make_table(whole, where, options)
    table = replace(table, facts={**table.facts, **(facts or {})})
    return _federation_from_table(table, name, "a data frame", {**parts, "groups": groups})


def federation_from_arrays(
    x: Any,
    y: Any,
    client: Sequence[Any] | Array,
    *,
    split: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    task: str = "auto",
    **parts: Any,
) -> Federation:
    """The clients of arrays: samples, their class numbers or names, targets, or rows of 0 and 1, and the client of each."""
    where, y = f"The arrays {name!r}", np.asarray(y)
    x, inputs = pack_samples(x, where) if has_several_inputs(x) else (np.asarray(x), None)
    if x.ndim < 2 or x.dtype.kind not in "fiu" or y.ndim not in (1, 2) or not len(x) == len(y) == len(client):
        raise UserError(
            f"{where}: x should be numbers, a row a sample, with a label and a client for each; not {x.shape}, {y.shape}, {len(client)}."
        )
    labels = encode_memory_labels(y, classes, task, where)
    owners, names = encode_names([str(each) for each in client])
    table = Table(labels.y, labels.classes, _to_floats(x), owners=owners, owner_names=names, task=labels.task)
    table = table if inputs is None else replace(table, facts={INPUTS: inputs.to_dict()})
    table = table if split is None else replace(table, part=parse_split(list(split), where))
    return _federation_from_table(table, name, "arrays in memory", parts)


def federation_from_datasets(
    datasets: Mapping[str, Any],
    *,
    label: str = LABEL,
    inputs: Wanted = None,
    name: str = "datasets",
    task: str = "auto",
    **parts: Any,
) -> Federation:
    """A client for each data set of torch (pairs of features and a label) or Hugging Face (columns, of which `label` is one).

    A site may hold ``{"train": ..., "test": ...}``, which then is its split. `inputs` are the columns to learn from (default: all);
    a dictionary makes several inputs of them. Samples of torch may be tuples or dictionaries of inputs.
    """
    where = f"The data sets {name!r}"
    if not isinstance(datasets, Mapping) or not datasets:
        raise UserError(f"{where}: give a dictionary of a data set for each site.")
    pieces: list[tuple[str, str, ObjectRows]] = []
    for site, held in datasets.items():
        for part, each in held.items() if isinstance(held, Mapping) else [("", held)]:
            pieces.append((str(site), str(part), read_dataset(each, f"{where}, {site}", label, inputs)))
    stated = {part for _, part, _ in pieces}
    if stated != {""} and not stated <= set(PARTS):
        raise UserError(
            f"{where}: a site's parts should be called {', '.join(PARTS)}, at every site or at none; not {', '.join(sorted(stated))}."
        )
    shapes = {rows.x.shape[1:] if rows.inputs is None else rows.inputs for _, _, rows in pieces}
    if len(shapes) > 1:
        raise UserError(f"{where}: sites have samples of different shapes, {' and '.join(map(str, sorted(shapes, key=str)))}.")
    (shape,) = shapes
    stored = {INPUTS: shape.to_dict()} if isinstance(shape, Inputs) else {}
    words = next((rows.classes for _, _, rows in pieces if rows.classes is not None), None)
    labels = encode_memory_labels(np.concatenate([rows.y for _, _, rows in pieces]), words, task, where)
    owners, names = encode_names(np.repeat([site for site, _, _ in pieces], [len(rows.y) for _, _, rows in pieces]))
    split = None if stated == {""} else np.repeat([PARTS[part] for _, part, _ in pieces], [len(rows.y) for _, _, rows in pieces])
    x = _to_floats(np.concatenate([rows.x for _, _, rows in pieces]))
    table = Table(labels.y, labels.classes, x, part=split, owners=owners, owner_names=names, task=labels.task, facts=stored)
    return _federation_from_table(table, name, "data sets in memory", parts)


def _federation_from_table(table: Table, name: str, source: str, parts: Mapping[str, Any]) -> Federation:
    """The clients of a table; `parts` are the settings of the partition ``natural``, and the data seed."""
    chosen = dict(parts)
    seed, unseen, groups = chosen.pop("data_seed", 0), chosen.pop("unseen", 0.0), chosen.pop("groups", None)
    known = ("test", "validation", "clients", "least", "most")
    if wrong := [each for each in chosen if each not in known]:
        raise UserError(f"There is no setting {wrong[0]!r} of a federation: there are {', '.join(known)}, unseen, groups and data_seed.")
    check_table(table, f"The data of {name!r}")
    samples = replace(samples_from_table(name, table, {"source": source, **USER_PROVENANCE}), unseen=unseen)
    draw = partial(_draw_split, samples, chosen, groups)
    return draw(seed).replace(redraw=draw)


def _draw_split(samples: Samples, chosen: Mapping[str, Any], groups: Mapping[str, Any] | None, seed: int) -> Federation:
    made = natural(samples, **chosen, _data_seed=seed).replace(name=samples.name)
    made = made if groups is None else made.replace(groups=_number_groups(groups, made.ids, samples.name))
    return move_unseen_last(made, samples.unseen) if samples.unseen else made


def _number_groups(groups: Mapping[str, Any], ids: Sequence[str], name: str) -> Array:
    """(clients,) the number of each client's known group, groups in the order of their names."""
    where = f"The groups of {name!r}"
    if not isinstance(groups, Mapping):
        raise UserError(f"{where}: give a dictionary of each client's group, or the name of a column.")
    named = {str(client): str(group) for client, group in groups.items()}
    if missing := [client for client in ids if client not in named]:
        raise UserError(f"{where} lack the client {missing[0]!r}: name a group for each of the {len(ids)} clients.")
    order = sorted({named[client] for client in ids})
    return np.array([order.index(named[client]) for client in ids], dtype=np.int64)


def _read_group_column(frame: "pd.DataFrame", client: str, column: str, where: str) -> dict[str, str]:
    """Each client's group, from a column that must not change within a client."""
    check_names([column], map(str, frame.columns), f"column of {where}")
    pairs = frame[[client, column]].astype(str).drop_duplicates()
    if twice := pairs[client][pairs[client].duplicated()].tolist():
        raise UserError(f"{where}: client {twice[0]!r} has several values in the column of groups {column!r}: a client is in one group.")
    return dict(zip(pairs[client], pairs[column], strict=True))


def _to_floats(x: Array) -> Array:
    return x if x.dtype.kind in "iu" or x.dtype == np.float32 else x.astype(np.float32)
