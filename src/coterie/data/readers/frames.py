"""Users' tables: CSV and Parquet files, one row per sample, with a client column or one file per client."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from inspect import Parameter, Signature
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie._util.errors import UserError, find_duplicate, suggest_names
from coterie.core.specs import parse_path
from coterie.data.columns import Columns, StatedColumn
from coterie.data.federation import SITES, Samples
from coterie.data.labels import INTERVALS, MAX_INTERVALS, TaskWord, encode_label_columns, make_interval_names
from coterie.data.prepare import GRID, Categories, Impute, PrepOptions, Scale, StatisticsOf, describe_pending
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

CLIENTS_BY, PER_FILE = "clients_by", "file"  # in the provenance: what clients are, where no column names them
MAX_COLUMNS = 100_000


@dataclass(frozen=True)
class TableOptions:
    """The settings of a table: those of the specs ``csv(...)`` and ``parquet(...)``, and of `Federation.from_frame`."""

    label: tuple[str, ...] | str | None = None  # one column, or several of 0 and 1
    client: str | None = None
    text: str | None = None
    split: str | None = None
    width: int = 1024
    scale: Scale = "none"
    impute: Impute = "none"
    categories: Categories = "none"
    drop: tuple[str, ...] | str = ()
    statistics: StatisticsOf = "federated"
    features: Features = "bag"
    vocabulary: int = 4096
    length: int = 32
    tokenizer: str | None = None
    task: TaskWord = "auto"
    columns: tuple[str, ...] | str = ()  # to learn from, in their order, with what each holds, as `StatedColumn.listed` reads them
    classes: tuple[str, ...] | str = ()  # all there are
    missing: tuple[str, ...] | str | int | float = ()
    sep: tuple[str, ...] | str | None = None
    encoding: tuple[str, ...] | str | None = None
    decimal: str = "."
    site: str | None = None  # where each client is
    time: str | None = None  # of survival times: the column of the time,
    event: str | None = None  # and of whether the event was seen
    intervals: int = INTERVALS  # of the grid, with equally many events in each
    grid: tuple[float, ...] | float = ()  # or the ends of its intervals

    @property
    def preparation(self) -> PrepOptions:
        words = {"scale": self.scale, "impute": self.impute, "categories": self.categories, "statistics": self.statistics}
        return PrepOptions(**words, drop=to_words(self.drop))

    @property
    def wording(self) -> TextFeatures:
        return TextFeatures(self.features, self.width, self.vocabulary, self.length, tokenizer=self.tokenizer)

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.time, self.event) if self.time is not None and self.event is not None else to_words(self.label)

    @property
    def is_survival(self) -> bool:
        return self.time is not None or self.event is not None or self.task == "survival"

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges of a stated grid, from 0 on; none where it is found in the data."""
        ends = (self.grid,) if isinstance(self.grid, int | float) else tuple(self.grid)
        return (0.0, *(float(end) for end in ends if end != 0)) if ends else ()

    @property
    def by_file(self) -> bool:
        """Whether each file is a client."""
        return self.client == BY_FILE

    @property
    def roles(self) -> list[tuple[str, str]]:
        """The columns that are no features: what each is, and its name."""
        others = (("client", None if self.by_file else self.client), ("text", self.text), ("split", self.split), ("site", self.site))
        labels = zip(("time", "event"), self.labels, strict=False) if self.is_survival else (("label", name) for name in self.labels)
        return [*labels, *((role, name) for role, name in others if name is not None)]

    @property
    def role_columns(self) -> list[str]:
        return [name for _, name in self.roles]

    def state_columns(self, known: Sequence[str], where: str) -> tuple[StatedColumn, ...]:
        """What the user states of the columns to learn from."""
        return StatedColumn.listed(self.columns if isinstance(self.columns, Mapping) else to_words(self.columns), known, where)

    def check(self, where: str) -> None:
        """Refuse settings that contradict each other or do not exist."""
        self.preparation.check(where)
        self.wording.check(where)
        if self.is_survival:
            self._check_times(where)

    def _check_times(self, where: str) -> None:
        for name, other in (("time", "event"), ("event", "time")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise UserError(f"{where}: {name}={getattr(self, name)!r} needs {other}=COLUMN beside it.")
        if self.time is not None and (self.label or self.task not in ("auto", "survival")):
            raise UserError(f"{where}: time= and event= are the label of survival times: leave label= and task= out.")
        if self.text is not None:
            raise UserError(f"{where}: survival times are predicted from columns, not from texts yet: leave text= out.")
        if not 1 <= self.intervals <= MAX_INTERVALS:
            raise UserError(f"{where}: intervals={self.intervals} should lie between 1 and {MAX_INTERVALS}.")
        if any(not np.isfinite(high) or high <= low for low, high in pairwise(self.edges)):
            raise UserError(f"{where}: grid={self.grid} should be the ends of intervals: numbers above 0, each above the one before.")


def _make_signature(*without: str) -> Signature:
    """The settings of a spec: a path, then those of a table but some."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    own = [
        Parameter(each.name, kind, default=each.default, annotation=each.type) for each in fields(TableOptions) if each.name not in without
    ]
    folder = Parameter("_data_dir", Parameter.KEYWORD_ONLY, default=None, annotation=Path | None)
    return Signature([Parameter("path", kind, annotation=str), *own, folder], return_annotation=Samples)


CSV_SETTINGS, PARQUET_SETTINGS = _make_signature(), _make_signature("sep", "encoding", "decimal")


def csv(*given: Any, **settings: Any) -> Samples:
    """Your CSV files: a row a sample, with a label column, columns (or one of texts) to learn from, and a client column or a file a client.

    The path is a file, a folder or a pattern such as 'sites/*.csv'; of a folder and a pattern each file is a client by its name, unless a
    column names the clients. `site` names a column with the site of each client, `split` one of the words train, validation and
    test, `drop` columns to leave out. All others are features: numbers, or, with categories=onehot, words. impute=mean, median or
    most_frequent fills gaps, scale=standard brings numbers to mean 0 and deviation 1, scale=robust to median 0 and interquartile range 1,
    both by the training parts of all clients together or, with statistics=client, of each by itself. Of texts, features=tokens makes
    numbers for lstm and rnn, or, with a tokenizer, for text.
    `task` is inferred from the label (words: classes; fractions: a regression; several columns of 0 and 1: as many labels), or set.
    `columns` and `classes` state what all sites share where this one lacks a word or a class: columns=(age,'phone=HTC|Pixel'). `missing`
    are marks of gaps such as '?', `sep`, `encoding` and `decimal` describe how the files are written. Survival times have `time` and
    `event` (1, or 0 where censored) in place of `label`, and `intervals` with equally many events each, or a `grid` of their ends.
    """
    return _load_table("csv", **CSV_SETTINGS.bind(*given, **settings).arguments)


def parquet(*given: Any, **settings: Any) -> Samples:
    """Your Parquet files: as csv."""
    return _load_table("parquet", **PARQUET_SETTINGS.bind(*given, **settings).arguments)


csv.__signature__, parquet.__signature__ = CSV_SETTINGS, PARQUET_SETTINGS  # type: ignore[attr-defined]


def check_columns(columns: Sequence[str], where: str) -> None:
    """Refuse two columns of one name, since it would be unclear which is meant, and more columns than a table has."""
    if len(columns) > MAX_COLUMNS:
        raise UserError(f"{where} has {len(columns):,} columns, more than {MAX_COLUMNS:,}: give numbers that are so many as npz.")
    if (twice := find_duplicate(name for name in columns if name)) is not None:
        raise UserError(f"{where} has two columns called {twice[:100]!r}: rename one of them.")


def _load_table(kind: str, path: str, _data_dir: Path | None = None, **settings: Any) -> Samples:
    options = TableOptions(**settings)
    found, where = find_files(path, kind, _data_dir), find_path(path, _data_dir)
    options.check(f"Data set {kind!r}")
    dialect = Dialect.from_settings(options.sep, options.encoding, options.decimal, options.missing)
    if found.several and options.client is None:
        options = replace(options, client=BY_FILE)

    def read() -> Table:
        read = _read_checked(kind, found, options, dialect)
        table = make_table(read.frame, str(where), read.options, read.rows)
        if not options.by_file:
            return table
        owners, names = encode_names(np.repeat(found.clients, read.sizes))
        return replace(table, owners=owners, owner_names=names, facts={**table.facts, CLIENTS_BY: PER_FILE})

    known: dict[str, Any] = {"label": options.label or (), "client": options.client, "text": options.text, "split": options.split}
    known |= {} if options.site is None else {"site": options.site}
    known |= {} if options.task == "auto" else {"task": options.task}
    known |= {"time": options.labels, "grid": options.edges or options.intervals} if options.is_survival else {}
    known |= {"clients": found.clients} if options.by_file else {}
    stated = {"columns": to_words(options.columns), "classes": to_words(options.classes)}
    known |= {name: value for name, value in (stated | asdict(dialect)).items() if value not in ((), ".")}
    return load_user_files(kind, where, found.files, read, **known, **options.wording.settings(), wishes=options.preparation.to_dict())


class _ReadTable(NamedTuple):
    """Files as one frame, the line of each row, the rows of each file, and the options with a label that was guessed."""

    frame: "pd.DataFrame"
    rows: FileRows
    sizes: list[int]
    options: TableOptions


def _read_checked(kind: str, found: TableFiles, options: TableOptions, dialect: Dialect) -> _ReadTable:
    """Read files; what cannot be read is refused in one sentence."""
    try:
        return _read_files(kind, found, options, dialect)
    except UserError:
        raise
    except Exception as error:  # pandas and pyarrow raise many kinds, all of which mean that the file cannot be read
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{found.files[0].parent if found.several else found.files[0]} cannot be read as {kind}: {reason}") from error


def _read_files(kind: str, found: TableFiles, options: TableOptions, dialect: Dialect) -> _ReadTable:
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
        if not options.labels and heads[0]:
            options = replace(options, label=guess_label(heads[0], str(found.files[0]), kind))
        if len(heads) > 1:
            stated = options.state_columns(heads[0], str(found.files[0]))
            needed = [*options.role_columns, *(column.name for column in stated)] if stated else None
            check_same_columns(found.files, heads, needed, to_words(options.drop))
        if kind == "csv":
            frames = [text.frame(options.role_columns) for text in texts]
            lines = [text.rows(len(frame)) for text, frame in zip(texts, frames, strict=True)]
        else:
            lines = [FileRows(((0, file.name, 1),)) for file in found.files]
    sizes = [len(frame) for frame in frames]
    begins = np.cumsum([0, *sizes]).tolist()
    runs = tuple((begin + first, file, line) for begin, each in zip(begins, lines, strict=False) for first, file, line in each.runs)
    first = frames[0]
    whole = first if len(frames) == 1 else pd.concat([frame.reindex(columns=first.columns) for frame in frames], ignore_index=True)
    return _ReadTable(whole, FileRows(runs), sizes, options)


class RawTable(NamedTuple):
    """A user's table as its files hold it, before anything is made of its columns, with the settings of its spec."""

    frame: "pd.DataFrame"
    options: TableOptions
    clients: tuple[str, ...] | None  # of each row, where a column or the files name them

    @property
    def features(self) -> list[str]:
        """The columns that are neither the label nor a client, a site or a split, nor dropped."""
        others = {*self.options.role_columns, *to_words(self.options.drop)}
        return [str(name) for name in self.frame if str(name) not in others]


def read_raw_table(spec: str, data_dir: Path | None = None) -> RawTable:
    """Read the table that a spec names, whatever its columns hold.

    Raises:
        UserError: The spec names no table alone, or its files cannot be read.
    """
    first, *rest = parse_path(spec)
    if first.name not in ("csv", "parquet"):
        raise UserError(f"The data {spec!r} are no table: columns can be described of csv(...) and parquet(...).")
    if rest:
        raise UserError(f"The data {spec!r} are divided by {str(rest[0])!r}: name the table alone, with client=COLUMN for its clients.")
    signature = CSV_SETTINGS if first.name == "csv" else PARQUET_SETTINGS
    given = dict(signature.bind(*first.args, **first.kwargs).arguments)
    path = given.pop("path")
    options, found = TableOptions(**given), find_files(path, first.name, data_dir)
    options.check(f"Data set {first.name!r}")
    if missing := [file for file in found.files if not file.is_file()]:
        raise UserError(f"Data set {first.name!r}: there is no file {missing[0]}.")
    dialect = Dialect.from_settings(options.sep, options.encoding, options.decimal, options.missing)
    if found.several and options.client is None:
        options = replace(options, client=BY_FILE)
    read = _read_checked(first.name, found, options, dialect)
    if not len(read.frame):
        raise UserError(f"{find_path(path, data_dir)} holds no samples.")
    for role, column in read.options.roles:
        if column not in read.frame:
            raise UserError(f"{path} has no {role} column {column!r}: {suggest_names(column, map(str, read.frame.columns))}")
    clients = None
    if read.options.by_file and len(found.files) > 1:
        clients = tuple(np.repeat(found.clients, read.sizes).tolist())
    elif read.options.client is not None and not read.options.by_file:
        clients = tuple(str(value).strip() for value in read.frame[read.options.client])
    return RawTable(read.frame, read.options, clients)


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


def make_table(frame: "pd.DataFrame", where: str, options: TableOptions, rows: FileRows | None = None) -> Table:
    """A data frame's columns in their roles; `rows` are the lines of its files."""
    wishes, classes = options.preparation, to_words(options.classes)
    check_columns([str(column) for column in frame.columns], where)
    if not len(frame):
        raise UserError(f"{where} holds no samples.")
    for role, column in [*options.roles, *(("dropped", name) for name in wishes.drop)]:
        if column not in frame:
            raise UserError(f"{where} has no {role} column {column!r}: {suggest_names(column, map(str, frame.columns))}")
    for role, column in options.roles:
        if (lacking := (frame[column].isna() | (frame[column].astype(object) == "")).to_numpy()).any():
            raise UserError(f"{where}: {locate_row(int(lacking.argmax()), rows)} has no value in the {role} column {column!r}.")
    task = "survival" if options.is_survival else options.task
    labels = encode_label_columns([frame[name].tolist() for name in options.labels], options.labels, task, where, classes, rows)
    if options.is_survival:
        labels = replace(labels, classes=make_interval_names(len(options.edges) - 1 if options.edges else options.intervals))
    named = options.client is not None and not options.by_file
    owners, names = encode_names([str(value).strip() for value in frame[options.client]]) if named else (None, ())
    table = Table(
        y=labels.y,
        classes=labels.classes,
        task=labels.task,
        texts=[str(value) for value in frame[options.text]] if options.text is not None else None,
        part=parse_split(frame[options.split].tolist(), where) if options.split is not None else None,
        owners=owners,
        owner_names=names,
        stated=bool(classes),
        facts=({} if rows is None else {ROWS: rows.to_list()})
        | ({} if options.site is None else {SITES: _collect_client_sites(frame, options, where)})
        | ({GRID: list(options.edges)} if options.is_survival and options.edges else {}),
    )
    if options.text is not None:
        made = TextColumn(options.text, options.wording).table(table)
        schema = make_text_schema(options.text, made.facts[TEXT_COLUMN], options.labels, table.classes, table.task)
        return replace(made, facts={**made.facts, SCHEMA: schema.to_dict()})
    rest = frame.drop(columns=list(dict.fromkeys([*options.role_columns, *wishes.drop])))
    stated = options.state_columns([str(name) for name in rest], where)
    if stated:
        rest = rest[[column.name for column in stated]]
        wishes = replace(wishes, categories="onehot") if any(column.kind == "category" for column in stated) else wishes
    if not len(rest.columns):
        raise UserError(f"{where} has no column left to learn from beside {', '.join(options.role_columns)}.")
    columns = Columns.from_frame(rest, where, onehot=wishes.categories == "onehot", stated=stated, rows=rows)
    schema = Schema.from_table(columns, options.labels, labels.classes, labels.task, wishes, to_words(options.missing))
    facts: dict[str, Any] = {**table.facts, "features": list(columns.features), SCHEMA: schema.to_dict()}
    encoded = columns.encode(rest, where, rows)
    if wishes.impute == "none" and np.isnan(encoded).any():
        row, place = np.argwhere(np.isnan(encoded))[0]
        raise UserError(
            f"{where}: {locate_row(int(row), rows)} has no number in column {columns.features[place]!r}: fill it in or drop it, or set "
            "impute=mean or impute=median."
        )
    if not wishes.any:
        return replace(table, values=encoded.astype(np.float32), facts=facts)
    return replace(table, values=encoded, facts={**facts, **describe_pending(columns, wishes)})


def _collect_client_sites(frame: "pd.DataFrame", options: TableOptions, where: str) -> dict[str, str]:
    if options.client is None:
        raise UserError(f"{where}: site={options.site!r} names the site of each client: name the client column, too.")
    clients, sites = ([str(value).strip() for value in frame[name]] for name in (options.client, options.site))
    found: dict[str, str] = {}
    for client, site in zip(clients, sites, strict=True):
        if found.setdefault(client, site) != site:
            raise UserError(f"{where}: client {client!r} has rows at the sites {found[client]!r} and {site!r}; a client is at one site.")
    return found
