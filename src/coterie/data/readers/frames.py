"""Users' tables: CSV and Parquet files, one row per sample, with a client column or one file per client."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie._util.errors import UserError, find_duplicate, suggest_names
from coterie.data.columns import Columns, StatedColumn
from coterie.data.federation import SITES, Samples
from coterie.data.labels import TaskWord, encode_label_columns
from coterie.data.prepare import Categories, Impute, PrepOptions, Scale, StatisticsOf, describe_pending
from coterie.data.readers.files import find_path
from coterie.data.readers.table_files import (
    BY_FILE,
    ROWS,
    CsvText,
    Dialect,
    FileRows,
    TableFiles,
    check_same_columns,
    find_files,
    guess_label,
    locate_row,
    to_words,
)
from coterie.data.readers.user_files import load_user_files
from coterie.data.schema import SCHEMA, Schema, make_text_schema
from coterie.data.table import Table, encode_names, parse_split
from coterie.data.text import TEXT_COLUMN, Features, TextColumn, TextFeatures

if TYPE_CHECKING:
    import pandas as pd  # imported where frames are read: running a study does not need it

CLIENTS_BY, PER_FILE = "clients_by", "file"  # in the provenance: what tells clients apart, where no column does
MAX_COLUMNS = 100_000


def csv(
    path: str,
    label: tuple[str, ...] | str | None = None,
    client: str | None = None,
    text: str | None = None,
    split: str | None = None,
    width: int = 1024,
    scale: Scale = "none",
    impute: Impute = "none",
    categories: Categories = "none",
    drop: tuple[str, ...] | str = (),
    statistics: StatisticsOf = "federated",
    features: Features = "bag",
    vocabulary: int = 4096,
    length: int = 32,
    tokenizer: str | None = None,
    task: TaskWord = "auto",
    columns: tuple[str, ...] | str = (),
    classes: tuple[str, ...] | str = (),
    missing: tuple[str, ...] | str | int | float = (),
    sep: tuple[str, ...] | str | None = None,
    encoding: tuple[str, ...] | str | None = None,
    decimal: str = ".",
    site: str | None = None,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """Your CSV files: a row a sample, with a label column, columns (or one of texts) to learn from, and a client column or a file a client.

    The path is a file, a folder or a pattern such as 'sites/*.csv'; of a folder and a pattern each file is a client by its name, unless a
    column says otherwise. `site` names a column that says at which site each client is, `split` one of the words train, validation and
    test, `drop` columns to leave out. All others are features: numbers, or, with categories=onehot, words. impute=mean, median or
    most_frequent fills gaps, scale=standard brings numbers to mean 0 and deviation 1, scale=robust to median 0 and interquartile range 1,
    both by the training parts of all clients together or, with statistics=client, of each by itself. Of texts, features=tokens makes
    numbers for lstm and rnn, or, with a tokenizer, for text.
    `task` is read off the label (words: classes; fractions: a regression; several columns of 0 and 1: as many labels), or said.
    `columns` and `classes` state what all sites share where this one lacks a word or a class: columns=(age,'phone=HTC|Pixel'). `missing`
    are marks of gaps such as '?', `sep`, `encoding` and `decimal` say how the files are written.
    """
    wishes = PrepOptions(scale=scale, impute=impute, categories=categories, drop=to_words(drop), statistics=statistics)
    wording = TextFeatures(features, width, vocabulary, length, tokenizer=tokenizer)
    roles, stated = ColumnRoles(label or (), client, text, split, site), StatedSchema.of(columns, classes)
    dialect = Dialect.of(sep, encoding, decimal, missing)
    return _load_table("csv", path, roles, wishes, wording, task, stated, dialect, _data_dir)


def parquet(
    path: str,
    label: tuple[str, ...] | str | None = None,
    client: str | None = None,
    text: str | None = None,
    split: str | None = None,
    width: int = 1024,
    scale: Scale = "none",
    impute: Impute = "none",
    categories: Categories = "none",
    drop: tuple[str, ...] | str = (),
    statistics: StatisticsOf = "federated",
    features: Features = "bag",
    vocabulary: int = 4096,
    length: int = 32,
    tokenizer: str | None = None,
    task: TaskWord = "auto",
    columns: tuple[str, ...] | str = (),
    classes: tuple[str, ...] | str = (),
    missing: tuple[str, ...] | str | int | float = (),
    site: str | None = None,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """Your Parquet files: as csv."""
    wishes = PrepOptions(scale=scale, impute=impute, categories=categories, drop=to_words(drop), statistics=statistics)
    wording = TextFeatures(features, width, vocabulary, length, tokenizer=tokenizer)
    roles, stated = ColumnRoles(label or (), client, text, split, site), StatedSchema.of(columns, classes)
    return _load_table("parquet", path, roles, wishes, wording, task, stated, Dialect(missing=to_words(missing)), _data_dir)


@dataclass(frozen=True)
class StatedSchema:
    """What a user states of a table by hand: the columns to learn from, in their order, and all classes there are."""

    columns: Any = ()  # names, with what each holds, as `StatedColumn.listed` reads them
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, columns: Any, classes: Any) -> "StatedSchema":
        """From settings, each one word or several."""
        return cls(columns if isinstance(columns, Mapping) else to_words(columns), to_words(classes))


def check_columns(columns: Sequence[str], where: str) -> None:
    """Refuse two columns of one name, since nobody could say which is meant, and more columns than a table has."""
    if len(columns) > MAX_COLUMNS:
        raise UserError(f"{where} has {len(columns):,} columns, more than {MAX_COLUMNS:,}: give numbers that are so many as npz.")
    if (twice := find_duplicate(name for name in columns if name)) is not None:
        raise UserError(f"{where} has two columns called {twice[:100]!r}: rename one of them.")


@dataclass(frozen=True)
class ColumnRoles:
    """Which columns are not features."""

    label: tuple[str, ...] | str  # one, or several of 0 and 1
    client: str | None = None
    text: str | None = None
    split: str | None = None
    site: str | None = None  # where each client is

    @property
    def labels(self) -> tuple[str, ...]:
        return to_words(self.label)

    @property
    def by_file(self) -> bool:
        """Whether each file is a client."""
        return self.client == BY_FILE

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """What each column is, and its name."""
        others = (("client", None if self.by_file else self.client), ("text", self.text), ("split", self.split), ("site", self.site))
        return [*(("label", name) for name in self.labels), *((role, name) for role, name in others if name is not None)]

    @property
    def columns(self) -> list[str]:
        return [name for _, name in self.pairs]


def _load_table(
    kind: str,
    path: str,
    roles: ColumnRoles,
    wishes: PrepOptions,
    wording: TextFeatures,
    task: TaskWord,
    stated: StatedSchema,
    dialect: Dialect,
    data_dir: Path | None,
) -> Samples:
    found, where = find_files(path, kind, data_dir), find_path(path, data_dir)
    wording.check(f"Data set {kind!r}")
    if found.several and roles.client is None:
        roles = replace(roles, client=BY_FILE)

    def read() -> Table:
        try:
            read = _read_files(kind, found, roles, wishes, stated, dialect)
        except UserError:
            raise
        except Exception as error:  # pandas and pyarrow raise many kinds, all of which mean that the file cannot be read
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"{where} cannot be read as {kind}: {reason}") from error
        table = make_table(read.frame, str(where), read.roles, wishes, task, stated, read.rows, dialect.missing)
        if read.roles.by_file:
            owners, names = encode_names(np.repeat(found.clients, read.sizes))
            table = replace(table, owners=owners, owner_names=names, facts={**table.facts, CLIENTS_BY: PER_FILE})
        return add_text_features(table, read.roles, wording)

    said: dict[str, Any] = {} if task == "auto" else {"task": task}
    said |= {"clients": found.clients} if roles.by_file else {}
    said |= {name: value for name, value in (asdict(stated) | asdict(dialect)).items() if value not in ((), ".")}
    named = {role: name for role, name in asdict(roles).items() if role != "site" or name is not None}
    return load_user_files(kind, where, found.files, read, **named, **wording.settings(), wishes=wishes.to_dict(), **said)


class _ReadTable(NamedTuple):
    """Files as one frame, the line of each row, the rows of each file, and the roles with a label that was guessed."""

    frame: "pd.DataFrame"
    rows: FileRows
    sizes: list[int]
    roles: ColumnRoles


def _read_files(
    kind: str, found: TableFiles, roles: ColumnRoles, wishes: PrepOptions, stated: StatedSchema, dialect: Dialect
) -> _ReadTable:
    """Read the files of a table, whose columns may come in any order.

    Lines that are longer than the head are refused: pandas would take their first cells for an index, or drop the last. So are two columns
    of one name, the second of which pandas would rename.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        if kind == "csv":
            texts = [CsvText.open(file, dialect, len(found.files) > 1) for file in found.files]
            heads = [text.head() for text in texts]
        else:
            frames = [mark_missing(pd.read_parquet(file), dialect.missing) for file in found.files]
            heads = [[str(name) for name in frame] for frame in frames]
        for file, head in zip(found.files, heads, strict=True):
            check_columns(head, str(file))
        if not roles.label and heads[0]:
            roles = replace(roles, label=guess_label(heads[0], str(found.files[0]), kind))
        if len(heads) > 1:
            needed = [*roles.columns, *(c.name for c in StatedColumn.listed(stated.columns, heads[0], str(found.files[0])))]
            check_same_columns(found.files, heads, needed if stated.columns else None, wishes.drop)
        if kind == "csv":
            frames = [text.frame(roles.columns) for text in texts]
            lines = [text.rows(len(frame)) for text, frame in zip(texts, frames, strict=True)]
        else:
            lines = [FileRows(((0, file.name, 1),)) for file in found.files]
    sizes = [len(frame) for frame in frames]
    begins = np.cumsum([0, *sizes]).tolist()
    runs = tuple((begin + first, file, line) for begin, each in zip(begins, lines, strict=False) for first, file, line in each.runs)
    first = frames[0]
    whole = first if len(frames) == 1 else pd.concat([frame.reindex(columns=first.columns) for frame in frames], ignore_index=True)
    return _ReadTable(whole, FileRows(runs), sizes, roles)


def mark_missing(frame: "pd.DataFrame", marks: Sequence[str]) -> "pd.DataFrame":
    """The frame with gaps where its cells are marks of them; a column that then holds numbers alone is one of numbers."""
    import pandas as pd
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if not marks:
        return frame
    numbers = [number for mark in marks if (number := pd.to_numeric(mark, errors="coerce")) == number]
    made = {}
    for name in frame:
        column = frame[name]
        if is_bool_dtype(column):
            continue
        marked = column.isin(numbers) if is_numeric_dtype(column) else column.astype(str).str.strip().isin(list(marks))
        column = column.mask(marked)
        if not is_numeric_dtype(column):
            found = pd.to_numeric(column, errors="coerce")
            column = found if (found.isna() == column.isna()).all() else column
        made[name] = column
    return frame.assign(**{str(name): column for name, column in made.items()})


def add_text_features(table: Table, roles: ColumnRoles, wording: TextFeatures) -> Table:
    """A table of texts with features in their place; others as they are."""
    if roles.text is None:
        return table
    made = TextColumn(roles.text, wording).table(table)
    schema = make_text_schema(roles.text, made.facts[TEXT_COLUMN], roles.labels, table.classes, table.task)
    return replace(made, facts={**made.facts, SCHEMA: schema.to_dict()})


def make_table(
    frame: "pd.DataFrame",
    where: str,
    roles: ColumnRoles,
    wishes: PrepOptions | None = None,
    task: str = "auto",
    stated: StatedSchema | None = None,
    rows: FileRows | None = None,
    missing: Sequence[str] = (),
) -> Table:
    """A data frame's columns in their roles; `rows` are the lines of its files."""
    wishes, stated = wishes or PrepOptions(), stated or StatedSchema()
    check_columns([str(column) for column in frame.columns], where)
    if not len(frame):
        raise UserError(f"{where} holds no samples.")
    for role, column in [*roles.pairs, *(("dropped", name) for name in wishes.drop)]:
        if column not in frame:
            raise UserError(f"{where} has no {role} column {column!r}: {suggest_names(column, map(str, frame.columns))}")
    for role, column in roles.pairs:
        if (lacking := (frame[column].isna() | (frame[column].astype(object) == "")).to_numpy()).any():
            raise UserError(f"{where}: {locate_row(int(lacking.argmax()), rows)} has no value in the {role} column {column!r}.")
    labels = encode_label_columns([frame[name].tolist() for name in roles.labels], roles.labels, task, where, stated.classes, rows)
    named = roles.client is not None and not roles.by_file
    owners, names = encode_names([str(value).strip() for value in frame[roles.client]]) if named else (None, ())
    table = Table(
        y=labels.y,
        classes=labels.classes,
        task=labels.task,
        texts=[str(value) for value in frame[roles.text]] if roles.text is not None else None,
        part=parse_split(frame[roles.split].tolist(), where) if roles.split is not None else None,
        owners=owners,
        owner_names=names,
        stated=bool(stated.classes),
        facts=({} if rows is None else {ROWS: rows.to_list()})
        | ({} if roles.site is None else {SITES: _collect_client_sites(frame, roles, where)}),
    )
    if roles.text is not None:
        return table
    rest = frame.drop(columns=list(dict.fromkeys([*roles.columns, *wishes.drop])))
    said = StatedColumn.listed(stated.columns, [str(name) for name in rest], where)
    if said:
        rest = rest[[column.name for column in said]]
        wishes = replace(wishes, categories="onehot") if any(column.kind == "category" for column in said) else wishes
    if not len(rest.columns):
        raise UserError(f"{where} has no column left to learn from beside {', '.join(roles.columns)}.")
    columns = Columns.of(rest, where, onehot=wishes.categories == "onehot", stated=said, rows=rows)
    schema = Schema.from_table(columns, roles.labels, labels.classes, labels.task, wishes, missing)
    facts: dict[str, Any] = {**table.facts, "features": list(columns.features), SCHEMA: schema.to_dict()}
    encoded = columns.encode(rest, where, rows)
    if wishes.impute == "none" and np.isnan(encoded).any():
        row, place = np.argwhere(np.isnan(encoded))[0]
        raise UserError(
            f"{where}: {locate_row(int(row), rows)} has no number in column {columns.features[place]!r}: fill it in or drop it, or say "
            "impute=mean or impute=median."
        )
    if not wishes.any:
        return replace(table, values=encoded.astype(np.float32), facts=facts)
    return replace(table, values=encoded, facts={**facts, **describe_pending(columns, wishes)})


def _collect_client_sites(frame: "pd.DataFrame", roles: ColumnRoles, where: str) -> dict[str, str]:
    """By client, its site."""
    if roles.client is None:
        raise UserError(f"{where}: site={roles.site!r} says where clients are: name the client column, too.")
    clients, sites = ([str(value).strip() for value in frame[name]] for name in (roles.client, roles.site))
    found: dict[str, str] = {}
    for client, site in zip(clients, sites, strict=True):
        if found.setdefault(client, site) != site:
            raise UserError(f"{where}: client {client!r} has rows at the sites {found[client]!r} and {site!r}; a client is at one site.")
    return found
