"""Several sources at one site: each is a ward, a client of its own, with the columns and preparation of all; small ones may be merged."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Array
from coterie.core.specs import parse_path
from coterie.data.federation import Federation, Parts
from coterie.data.joining import append_parts, concatenate_samples
from coterie.data.prepare import DONE, PENDING, fit_features, get_preparation
from coterie.data.readers.frames import RawTable
from coterie.data.readers.table_files import ROWS, FileRows, get_file_rows, to_words
from coterie.data.schema import Schema, SchemaColumn, conform_federation

_NAMED = re.compile(r"(?P<name>[^=()'\"/\\]+)=(?P<spec>.+)", re.S)  # ward=csv(...); an equals sign within a spec stands in brackets
LONGEST_NAME = 60  # characters of a ward's name


def is_named(source: str) -> bool:
    """Whether a source is written as ``NAME=SPEC``."""
    return _NAMED.fullmatch(source.strip()) is not None


def parse_sources(sources: Sequence[str]) -> dict[str, str]:
    """By ward, its data: ``NAME=SPEC``, or a table that is named by its file.

    Raises:
        UserError: A source has no name, or two have the same.
    """
    made: dict[str, str] = {}
    for source in sources:
        found = _NAMED.fullmatch(source.strip())
        name, spec = (found["name"].strip(), found["spec"].strip()) if found else (_name_by_file(source), source)
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or set(name) & set("/+,"):
            raise UserError(f"A ward cannot be called {name[:LONGEST_NAME]!r}: use up to {LONGEST_NAME} signs without / + and commas.")
        if name in made:
            raise UserError(f"Two sources are called {name!r}: name each, as in {name}-1={made[name]}.")
        made[name] = spec
    return made


def _name_by_file(spec: str) -> str:
    first = parse_path(spec)[0]
    path = first.args[0] if first.args else first.kwargs.get("path")
    if first.name not in ("csv", "parquet") or not isinstance(path, str):
        raise UserError(f"The source {spec!r} has no name: write NAME={spec}.")
    return Path(path).name.removesuffix(".gz").rpartition(".")[0] or Path(path).name


def join_wards(site: str, wards: Mapping[str, Federation]) -> Federation:
    """The clients of all wards as one federation, in the columns and classes of all and with one preparation for all.

    Args:
        site: The site: a ward's client is called SITE/WARD; several clients of a ward SITE/WARD/CLIENT.
        wards: By ward, its data. A client that is called SITE/WARD already keeps its name.

    Returns:
        The federation. Means and deviations of ``statistics=federated`` are those of the training rows of all wards.

    Raises:
        UserError: A ward has other columns, another preparation or task, or the samples of another ward; the sentence names it.
    """
    first = next(iter(wards))
    shared = _unite_schemas([Schema.from_federation(ward) for ward in wards.values()])
    made: list[Federation] = []
    for name, ward in wards.items():
        conformed = conform_federation(ward, shared, f"ward {first!r}", f"Ward {name!r}")
        if ward.task != wards[first].task:
            raise UserError(
                f"Ward {name!r} has another grid of times, or other units of the target, than ward {first!r}: state them alike."
            )
        if (ward.validation is None) != (wards[first].validation is None):
            raise UserError(f"Ward {name!r} {'lacks' if ward.validation is None else 'has'} validation parts, unlike ward {first!r}.")
        made.append(conformed.replace(ids=tuple(_name_client(site, name, client) for client in ward.ids), raw=conformed.raw))
    _check_different(list(wards), made)
    whole = made[0]
    for ward in made[1:]:
        whole = _append(whole, ward)
    whole = whole.replace(name=f"{len(wards)} wards", raw=whole.raw)
    if (stored := get_preparation(whole)) is None or whole.raw is None or stored.wishes.statistics == "client":
        return whole
    pending = {PENDING: {"columns": stored.columns.to_list(), "wishes": stored.wishes.to_dict()}}
    return fit_features(whole.replace(x=np.asarray(whole.raw), provenance={**whole.provenance, **pending}))


def _name_client(site: str, ward: str, client: str) -> str:
    name = f"{site}/{ward}"
    return name if client == name else f"{name}/{client}"


def _unite_schemas(schemas: Sequence[Schema]) -> Schema:
    """The columns of the first schema, with the categories and classes of all."""
    first = schemas[0]

    def unite(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for words in lists for word in words))

    columns = []
    for column in first.columns:
        same = [each for schema in schemas for each in schema.columns if (each.name, each.kind) == (column.name, column.kind)]
        columns.append(SchemaColumn(column.name, column.kind, unite([each.categories for each in same])))
    made = replace(first, columns=tuple(columns), classes=unite([schema.classes for schema in schemas]))
    return replace(made, shape=(len(made.features),)) if made.features else made


def _check_different(names: Sequence[str], wards: Sequence[Federation]) -> None:
    for (name, one), (other, two) in combinations(zip(names, wards, strict=True), 2):
        mine, theirs = (each.x if each.raw is None else each.raw for each in (one, two))
        if np.array_equal(one.y, two.y) and np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f"):
            raise UserError(_describe_same(name, other))


def _describe_same(name: str, other: str) -> str:
    return f"The wards {name!r} and {other!r} hold the same samples: give each its own file."


def _append(first: Federation, second: Federation) -> Federation:
    shift = len(first.y)
    lines = [get_file_rows(each.provenance) for each in (first, second)]
    stored = dict(first.provenance)
    if lines[0] is not None and lines[1] is not None:
        stored[ROWS] = FileRows((*lines[0].runs, *((shift + begin, file, line) for begin, file, line in lines[1].runs))).to_list()
    for key, within in (("scaling", None), (DONE, "scalings")):
        if key in stored and key in second.provenance:
            mine, theirs = stored[key], second.provenance[key]
            stored[key] = {**mine, **theirs} if within is None else {**mine, within: {**mine[within], **theirs[within]}}
    raw: Array | None = None
    if first.raw is not None and second.raw is not None:
        raw = concatenate_samples(np.asarray(first.raw), np.asarray(second.raw))
    return first.replace(
        x=concatenate_samples(first.x, second.x),
        raw=raw,
        y=np.concatenate([first.y, second.y]),
        ids=(*first.ids, *second.ids),
        train=append_parts(first.train, second.train, shift),
        test=append_parts(first.test, second.test, shift),
        validation=None
        if first.validation is None or second.validation is None
        else append_parts(first.validation, second.validation, shift),
        central=None,
        groups=None,
        arrivals=None,
        provenance=stored,
    )


def join_tables(site: str, wards: Mapping[str, RawTable]) -> RawTable:
    """The rows of all wards as one table, each with its client.

    Raises:
        UserError: A ward has other columns or another label than the first; the sentence names it.
    """
    import pandas as pd

    first = next(iter(wards))
    own = wards[first]
    frames, clients = [], list[str]()
    kept = [*own.options.labels, *([own.options.split] if own.options.split else []), *own.features]
    for name, ward in wards.items():
        if (ward.options.labels, ward.options.split) != (own.options.labels, own.options.split):
            mine, theirs = ("+".join(each.options.labels) for each in (ward, own))
            raise UserError(f"Ward {name!r} has the label {mine!r}, ward {first!r} {theirs!r}: name the same columns.")
        for column in own.features:
            if column not in ward.features:
                left = [each for each in ward.features if each not in own.features]
                raise UserError(
                    f"Ward {name!r} lacks the column {column!r} of ward {first!r}: {suggest_names(column, left) if left else 'add it.'}"
                )
        if more := [column for column in ward.features if column not in own.features]:
            raise UserError(f"Ward {name!r} has a column {more[0]!r} that ward {first!r} does not know: drop it with drop={more[0]!r}.")
        frames.append(ward.frame[kept])
        clients += [_name_client(site, name, client) for client in ward.clients or (f"{site}/{name}",) * len(ward.frame)]
    for (name, one), (other, two) in combinations(zip(wards, frames, strict=True), 2):
        if one.equals(two):
            raise UserError(_describe_same(name, other))
    missing = tuple(dict.fromkeys(mark for ward in wards.values() for mark in to_words(ward.options.missing)))
    options = replace(own.options, client=None, site=None, drop=(), missing=missing)
    return RawTable(pd.concat(frames, ignore_index=True), options, tuple(clients))


def plan_merges(sizes: Mapping[str, int], least: int) -> dict[str, str]:
    """By client, the client that it becomes: as long as one has fewer samples than `least`, the two smallest are merged.

    >>> plan_merges({"north/icu": 4, "north/surgery": 40, "north/medicine": 30}, 10)
    {'north/icu': 'north/icu+medicine', 'north/surgery': 'north/surgery', 'north/medicine': 'north/icu+medicine'}
    """
    groups: list[tuple[tuple[str, ...], int]] = [((name,), size) for name, size in sizes.items()]
    while len(groups) > 1 and min(size for _, size in groups) < least:
        (one, few), (other, more), *rest = sorted(groups, key=lambda group: (group[1], group[0]))
        groups = [(tuple(sorted((*one, *other))), few + more), *rest]
    named = {client: _join_names(names) for names, _ in groups for client in names}
    return {client: named[client] for client in sizes}


def _join_names(names: Sequence[str]) -> str:
    first, *rest = names
    prefix = first.rpartition("/")[0]
    short = [name.removeprefix(f"{prefix}/") if prefix else name for name in rest]
    return first if not rest else "+".join([first, *short]) if len(rest) < 4 else f"{first}+{len(rest)} more"


def merge_clients(federation: Federation, into: Mapping[str, str]) -> Federation:
    """The federation with clients merged: by client, the client that it becomes.

    Raises:
        UserError: Each client is prepared by its own statistics, which merged ones do not have.
    """
    if all(name == target for name, target in into.items()):
        return federation
    if (stored := get_preparation(federation)) is not None and stored.wishes.statistics == "client":
        raise UserError('Small clients cannot be merged where each is scaled by itself (statistics=client): set small_clients = "silent".')
    ids = tuple(dict.fromkeys(into[name] for name in federation.ids))
    owners = {target: [row for row, name in enumerate(federation.ids) if into[name] == target] for target in ids}

    def join(part: Parts) -> Parts:
        return Parts.from_lists([np.concatenate([part[row] for row in owners[target]]) for target in ids])

    return federation.replace(
        ids=ids,
        train=join(federation.train),
        test=join(federation.test),
        validation=None if federation.validation is None else join(federation.validation),
        groups=None,
        arrivals=None,
        raw=federation.raw,
    )
