"""A user's own tables: CSV and Parquet files, a row a sample, with a client column."""

import csv as csv_files
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.errors import UserError, first_repeated, suggestion
from coterie.data.federation import SITES, Samples
from coterie.data.folder import find_path
from coterie.data.labels import TaskWord, labels_of
from coterie.data.own import own_samples, split_words
from coterie.data.preparing.columns import Columns
from coterie.data.preparing.prepared import pending
from coterie.data.preparing.wishes import Categories, Impute, Scale, StatisticsOf, Wishes
from coterie.data.preparing.worded import WordedColumn
from coterie.data.table import Table, coded
from coterie.data.text import Features, Wording

if TYPE_CHECKING:
    import pandas as pd  # imported where frames are read: running a study does not need it


MOST_COLUMNS = 100_000


def csv(
    path: str,
    label: tuple[str, ...] | str,
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
    site: str | None = None,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """Your CSV file: a row a sample, with a label column, a client column and columns (or one of texts) to learn from.

    `split` names a column of the words train, validation and test, `site` one of where each client is, `drop` columns to leave out. All
    others are features: numbers, or, with categories=onehot, words. impute=mean fills gaps, scale=standard brings numbers to mean 0 and
    deviation 1, both by the training parts of all clients together or, with statistics=client, of each by itself. Of texts, features=tokens
    makes numbers for lstm and rnn, or, with a tokenizer, for text.
    `task` is read off the label (words: classes; fractions: a regression; several columns of 0 and 1: as many labels), or said.
    """
    wishes = Wishes(scale=scale, impute=impute, categories=categories, drop=listed(drop), statistics=statistics)
    wording = Wording(features, width, vocabulary, length, tokenizer=tokenizer)
    return _frame("csv", _read_csv, path, ColumnRoles(label, client, text, split, site), wishes, wording, task, _data_dir)


def parquet(
    path: str,
    label: tuple[str, ...] | str,
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
    site: str | None = None,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """Your Parquet file: as csv."""
    wishes = Wishes(scale=scale, impute=impute, categories=categories, drop=listed(drop), statistics=statistics)
    wording = Wording(features, width, vocabulary, length, tokenizer=tokenizer)
    return _frame("parquet", _read_parquet, path, ColumnRoles(label, client, text, split, site), wishes, wording, task, _data_dir)


def _read_csv(path: Path, names: Sequence[str]) -> "pd.DataFrame":
    """The file, with the columns of names as they are written: the clients 1, 01, 1.0 and NA are four.

    Lines that are longer than the head are refused: pandas would take their first cells for an index, or drop the last. So are two columns
    of one name, the second of which pandas would rename.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        head = csv_head(path)
        check_columns(head, str(path))
        frame = pd.read_csv(path, index_col=False)
        written = [name for name in names if name in head]
        texts = pd.read_csv(path, index_col=False, dtype=str, keep_default_na=False, usecols=written) if written else frame
        return frame.assign(**{name: texts[name] for name in written})


def _read_parquet(path: Path, names: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_parquet(path)


def csv_head(path: Path) -> list[str]:
    """The first line that is not empty, without reading more of the file: pandas takes minutes for very many columns."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next((line for line in csv_files.reader(file) if line), [])


def check_columns(columns: Sequence[str], where: str) -> None:
    """Refuse two columns of one name, since nobody could say which is meant, and more columns than a table has."""
    if len(columns) > MOST_COLUMNS:
        raise UserError(f"{where} has {len(columns):,} columns, more than {MOST_COLUMNS:,}: give numbers that are so many as npz.")
    if (twice := first_repeated(name for name in columns if name)) is not None:
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
        return listed(self.label)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """What each column is, and its name."""
        others = (("client", self.client), ("text", self.text), ("split", self.split), ("site", self.site))
        return [*(("label", name) for name in self.labels), *((role, name) for role, name in others if name is not None)]

    @property
    def columns(self) -> list[str]:
        return [name for _, name in self.pairs]


def listed(drop: Sequence[str] | str) -> tuple[str, ...]:
    """Names of columns, one or several."""
    return (drop,) if isinstance(drop, str) else tuple(map(str, drop))


def _frame(
    kind: str,
    reader: "Callable[..., pd.DataFrame]",
    path: str,
    roles: ColumnRoles,
    wishes: Wishes,
    wording: Wording,
    task: TaskWord,
    data_dir: Path | None,
) -> Samples:
    where = find_path(path, data_dir)
    wording.check(f"Data set {kind!r}")

    def read() -> Table:
        try:
            frame = reader(where, roles.columns)
        except UserError:
            raise
        except Exception as error:  # pandas and pyarrow raise many kinds, all of which mean that the file cannot be read
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"{where} cannot be read as {kind}: {reason}") from error
        table = table_of(frame, str(where), roles, wishes, task)
        return table if roles.text is None else WordedColumn(roles.text, wording).table(table)

    said = {} if task == "auto" else {"task": task}
    named = {role: name for role, name in asdict(roles).items() if role != "site" or name is not None}
    return own_samples(kind, where, [where], read, **named, **wording.settings(), wishes=wishes.told(), **said)


def table_of(frame: "pd.DataFrame", where: str, roles: ColumnRoles, wishes: Wishes | None = None, task: str = "auto") -> Table:
    """A data frame's columns in their roles."""
    wishes = wishes or Wishes()
    check_columns([str(column) for column in frame.columns], where)
    if not len(frame):
        raise UserError(f"{where} holds no samples.")
    for role, column in [*roles.pairs, *(("dropped", name) for name in wishes.drop)]:
        if column not in frame:
            raise UserError(f"{where} has no {role} column {column!r}: {suggestion(column, map(str, frame.columns))}")
    for role, column in roles.pairs:
        if (lacking := (frame[column].isna() | (frame[column].astype(object) == "")).to_numpy()).any():
            raise UserError(f"{where}: row {int(lacking.argmax())} has no value in the {role} column {column!r}.")
    labels = labels_of([frame[name].tolist() for name in roles.labels], roles.labels, task, where)
    owners, names = coded([str(value).strip() for value in frame[roles.client]]) if roles.client is not None else (None, ())
    table = Table(
        y=labels.y,
        classes=labels.classes,
        task=labels.task,
        texts=[str(value) for value in frame[roles.text]] if roles.text is not None else None,
        part=split_words(frame[roles.split].tolist(), where) if roles.split is not None else None,
        owners=owners,
        owner_names=names,
        facts={} if roles.site is None else {SITES: _client_sites(frame, roles, where)},
    )
    if roles.text is not None:
        return table
    rest = frame.drop(columns=list(dict.fromkeys([*roles.columns, *wishes.drop])))
    if not len(rest.columns):
        raise UserError(f"{where} has no column left to learn from beside {', '.join(roles.columns)}.")
    columns = Columns.of(rest, where, onehot=wishes.categories == "onehot")
    facts: dict[str, Any] = {**table.facts, "features": list(columns.features)}
    if not wishes.any:
        values = rest.to_numpy(np.float32)
        if np.isnan(values).any():
            row, place = np.argwhere(np.isnan(values))[0]
            raise UserError(
                f"{where}: sample {row} holds a value that is no finite number, in column {str(rest.columns[place])!r}; fill it in or drop "
                "it, or say impute=mean."
            )
        return replace(table, values=values, facts=facts)
    encoded = columns.encode(rest, where)
    if wishes.impute == "none" and np.isnan(encoded).any():
        row, place = np.argwhere(np.isnan(encoded))[0]
        raise UserError(f"{where}: sample {row} has no number in column {columns.features[place]!r}: fill it in, or say impute=mean.")
    return replace(table, values=encoded, facts={**facts, **pending(columns, wishes)})


def _client_sites(frame: "pd.DataFrame", roles: ColumnRoles, where: str) -> dict[str, str]:
    """By client, its site."""
    if roles.client is None:
        raise UserError(f"{where}: site={roles.site!r} says where clients are: name the client column, too.")
    clients, sites = ([str(value).strip() for value in frame[name]] for name in (roles.client, roles.site))
    found: dict[str, str] = {}
    for client, site in zip(clients, sites, strict=True):
        if found.setdefault(client, site) != site:
            raise UserError(f"{where}: client {client!r} has rows at the sites {found[client]!r} and {site!r}; a client is at one site.")
    return found
