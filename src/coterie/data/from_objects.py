"""Federations of what is in memory already: data frames, arrays, torch and Hugging Face data sets. `Federation.from_frame` and its like."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError, check_names
from coterie.core.arrays import Array
from coterie.core.layout import Inputs, has_several_inputs
from coterie.data.array_labels import array_labels
from coterie.data.federation import INPUTS, Federation, Samples
from coterie.data.frames import ColumnRoles, Stated, mark_missing, table_of, with_words
from coterie.data.object_rows import LABEL, ObjectRows, Wanted, samples_of
from coterie.data.own import TOLD, split_words
from coterie.data.partitions import natural
from coterie.data.preparing.wishes import Wishes
from coterie.data.table import PARTS, Table, as_samples, check_table, coded
from coterie.data.table_files import listed
from coterie.data.text import Wording
from coterie.data.unseen import with_unseen

if TYPE_CHECKING:
    import pandas as pd


def frame_federation(
    frame: "pd.DataFrame",
    *,
    label: Sequence[str] | str,
    client: str,
    text: str | None = None,
    split: str | None = None,
    name: str = "frame",
    scale: str = "none",
    impute: str = "none",
    categories: str = "none",
    drop: Sequence[str] | str = (),
    statistics: str = "federated",
    features: str = "bag",
    width: int = 1024,
    vocabulary: int = 4096,
    length: int = 32,
    tokenizer: str | None = None,
    task: str = "auto",
    columns: Mapping[str, Any] | Sequence[str] | str = (),
    classes: Sequence[str] | str = (),
    missing: Sequence[Any] | str | float = (),
    groups: str | Mapping[str, Any] | None = None,
    site: str | None = None,
    **parts: Any,
) -> Federation:
    """The clients of a data frame; its settings are those of the spec ``csv(...)``.

    `groups` are the clients' known groups, for the control with the true groups: a column, which is not learned from, or a dictionary.
    """
    if isinstance(groups, str):
        column, groups = groups, _groups_of_column(frame, client, groups, f"The frame {name!r}")
        frame = frame.drop(columns=[column])
    wishes = Wishes(scale=scale, impute=impute, categories=categories, drop=listed(drop), statistics=statistics)
    wording = Wording(features, width, vocabulary, length, tokenizer=tokenizer)
    wishes.check(f"The frame {name!r}")
    wording.check(f"The frame {name!r}")
    roles = ColumnRoles(label if isinstance(label, str) else tuple(label), client, text, split, site)
    marks = listed(missing)
    whole = mark_missing(frame.reset_index(drop=True), marks)
    table = table_of(whole, f"The frame {name!r}", roles, wishes, task, Stated.of(columns, classes), missing=marks)
    return _federation(with_words(table, roles, wording), name, "a data frame", {**parts, "groups": groups})


def arrays_federation(
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
    """The clients of arrays: samples, their class numbers or names, targets, or rows of 0 and 1, and whose each is."""
    where, y = f"The arrays {name!r}", np.asarray(y)
    x, told = _rows(x, where)
    if x.ndim < 2 or x.dtype.kind not in "fiu" or y.ndim not in (1, 2) or not len(x) == len(y) == len(client):
        raise UserError(
            f"{where}: x should be numbers, a row a sample, with a label and a client for each; not {x.shape}, {y.shape}, {len(client)}."
        )
    labels = array_labels(y, classes, task, where)
    owners, names = coded([str(each) for each in client])
    table = Table(labels.y, labels.classes, _floats(x), owners=owners, owner_names=names, task=labels.task, facts=told)
    table = table if split is None else replace(table, part=split_words(list(split), where))
    return _federation(table, name, "arrays in memory", parts)


def datasets_federation(
    datasets: Mapping[str, Any],
    *,
    label: str = LABEL,
    inputs: Wanted = None,
    name: str = "datasets",
    task: str = "auto",
    **parts: Any,
) -> Federation:
    """A client for each data set of torch (pairs of features and a label) or Hugging Face (columns, of which `label` is one).

    A site may hold ``{"train": ..., "test": ...}``, which then is its split. `inputs` are the columns to learn from, all unless given;
    a dictionary makes several inputs of them. Samples of torch may be tuples or dictionaries of inputs.
    """
    where = f"The data sets {name!r}"
    if not isinstance(datasets, Mapping) or not datasets:
        raise UserError(f"{where}: give a dictionary of a data set for each site.")
    pieces: list[tuple[str, str, ObjectRows]] = []
    for site, held in datasets.items():
        for part, each in held.items() if isinstance(held, Mapping) else [("", held)]:
            pieces.append((str(site), str(part), samples_of(each, f"{where}, {site}", label, inputs)))
    said = {part for _, part, _ in pieces}
    if said != {""} and not said <= set(PARTS):
        raise UserError(
            f"{where}: a site's parts should be called {', '.join(PARTS)}, at every site or at none; not {', '.join(sorted(said))}."
        )
    shapes = {rows.x.shape[1:] if rows.inputs is None else rows.inputs for _, _, rows in pieces}
    if len(shapes) > 1:
        raise UserError(f"{where}: sites have samples of different shapes, {' and '.join(map(str, sorted(shapes, key=str)))}.")
    (shape,) = shapes
    told = {INPUTS: shape.told()} if isinstance(shape, Inputs) else {}
    words = next((rows.classes for _, _, rows in pieces if rows.classes is not None), None)
    labels = array_labels(np.concatenate([rows.y for _, _, rows in pieces]), words, task, where)
    owners, names = coded(np.repeat([site for site, _, _ in pieces], [len(rows.y) for _, _, rows in pieces]))
    split = None if said == {""} else np.repeat([PARTS[part] for _, part, _ in pieces], [len(rows.y) for _, _, rows in pieces])
    x = _floats(np.concatenate([rows.x for _, _, rows in pieces]))
    table = Table(labels.y, labels.classes, x, part=split, owners=owners, owner_names=names, task=labels.task, facts=told)
    return _federation(table, name, "data sets in memory", parts)


def _federation(table: Table, name: str, source: str, parts: Mapping[str, Any]) -> Federation:
    """The clients of a table; `parts` are the settings of the partition ``natural``, and the data seed."""
    chosen = dict(parts)
    seed, unseen, groups = chosen.pop("data_seed", 0), chosen.pop("unseen", 0.0), chosen.pop("groups", None)
    known = ("test", "validation", "clients", "least", "most")
    if wrong := [each for each in chosen if each not in known]:
        raise UserError(f"There is no setting {wrong[0]!r} of a federation: there are {', '.join(known)}, unseen, groups and data_seed.")
    check_table(table, f"The data of {name!r}")
    samples = replace(as_samples(name, table, {"source": source, **TOLD}), unseen=unseen)
    draw = partial(_drawn, samples, chosen, groups)
    return draw(seed).with_(redraw=draw)


def _drawn(samples: Samples, chosen: Mapping[str, Any], groups: Mapping[str, Any] | None, seed: int) -> Federation:
    """One draw of the split."""
    made = natural(samples, **chosen, _data_seed=seed).with_(name=samples.name)
    made = made if groups is None else made.with_(groups=_known_groups(groups, made.ids, samples.name))
    return with_unseen(made, samples.unseen) if samples.unseen else made


def _known_groups(groups: Mapping[str, Any], ids: Sequence[str], name: str) -> Array:
    """(clients,) the number of each client's known group, groups in the order of their names."""
    where = f"The groups of {name!r}"
    if not isinstance(groups, Mapping):
        raise UserError(f"{where}: give a dictionary of each client's group, or the name of a column.")
    named = {str(client): str(group) for client, group in groups.items()}
    if missing := [client for client in ids if client not in named]:
        raise UserError(f"{where} lack the client {missing[0]!r}: name a group for each of the {len(ids)} clients.")
    order = sorted({named[client] for client in ids})
    return np.array([order.index(named[client]) for client in ids], dtype=np.int64)


def _groups_of_column(frame: "pd.DataFrame", client: str, column: str, where: str) -> dict[str, str]:
    """Each client's group, from a column that must not change within a client."""
    check_names([column], map(str, frame.columns), f"column of {where}")
    pairs = frame[[client, column]].astype(str).drop_duplicates()
    if twice := pairs[client][pairs[client].duplicated()].tolist():
        raise UserError(f"{where}: client {twice[0]!r} has several values in the column of groups {column!r}: a client is in one group.")
    return dict(zip(pairs[client], pairs[column], strict=True))


def _rows(x: Any, where: str) -> tuple[Array, dict[str, Any]]:
    """Samples in one array, and what provenance should tell of those that have several inputs."""
    if not has_several_inputs(x):
        return np.asarray(x), {}
    inputs = Inputs.of(x, where)
    return inputs.pack(x, where), {INPUTS: inputs.told()}


def _floats(x: Array) -> Array:
    return x if x.dtype.kind in "iu" or x.dtype == np.float32 else x.astype(np.float32)
