"""A user's own tables: CSV and Parquet files, a row a sample, with a client column."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.core.errors import UserError, suggestion
from coterie.data.federation import Samples
from coterie.data.folder import find_path
from coterie.data.own import own_samples, split_words
from coterie.data.table import Table, coded
from coterie.data.text import Wording

if TYPE_CHECKING:
    import pandas as pd  # imported where frames are read: running a study does not need it


def csv(
    path: str,
    label: str,
    client: str | None = None,
    text: str | None = None,
    split: str | None = None,
    width: int = 1024,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """Your CSV file: a row a sample, with a label column, a client column and numbers (or a column of texts) to learn from.

    `split` names a column of the words train, validation and test. All other columns are features and must be numbers.
    """
    return _frame("csv", _read_csv, path, label, client, text, split, width, _data_dir)


def parquet(
    path: str,
    label: str,
    client: str | None = None,
    text: str | None = None,
    split: str | None = None,
    width: int = 1024,
    *,
    _data_dir: Path | None = None,
) -> Samples:
    """Your Parquet file: as csv."""
    return _frame("parquet", _read_parquet, path, label, client, text, split, width, _data_dir)


def _read_csv(path: Path, names: Sequence[str]) -> "pd.DataFrame":
    """The file, with the columns of names as they are written: the clients 1, 01, 1.0 and NA are four.

    Lines that are longer than the head are refused: pandas would take their first cells for an index, or drop the last. So are two columns
    of one name, the second of which pandas would rename.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        head = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, index_col=False).iloc[0].tolist()
        check_columns(head, str(path))
        frame = pd.read_csv(path, index_col=False)
        written = [name for name in names if name in head]
        texts = pd.read_csv(path, index_col=False, dtype=str, keep_default_na=False, usecols=written) if written else frame
        return frame.assign(**{name: texts[name] for name in written})


def _read_parquet(path: Path, names: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    return pd.read_parquet(path)


def check_columns(columns: Sequence[str], where: str) -> None:
    """Refuse two columns of one name: nobody could say which is meant."""
    if twice := [name for name in columns if name and columns.count(name) > 1]:
        raise UserError(f"{where} has two columns called {twice[0]!r}: rename one of them.")


def _frame(
    kind: str,
    reader: "Callable[..., pd.DataFrame]",
    path: str,
    label: str,
    client: str | None,
    text: str | None,
    split: str | None,
    width: int,
    data_dir: Path | None,
) -> Samples:
    where = find_path(path, data_dir)

    def read() -> Table:
        try:
            frame = reader(where, [name for name in (label, client, text, split) if name is not None])
        except UserError:
            raise
        except Exception as error:  # pandas and pyarrow raise many kinds, all of which mean that the file cannot be read
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"{where} cannot be read as {kind}: {reason}") from error
        table = table_of(frame, str(where), label, client, text, split)
        return table if table.texts is None else Wording(width=width).table(table)

    return own_samples(kind, where, [where], read, label=label, client=client, text=text, split=split, width=width)


def table_of(frame: "pd.DataFrame", where: str, label: str, client: str | None, text: str | None, split: str | None) -> Table:
    """A data frame's columns in their roles."""
    from pandas.api.types import is_numeric_dtype

    check_columns([str(column) for column in frame.columns], where)
    if not len(frame):
        raise UserError(f"{where} holds no samples.")
    roles = {"label": label, "client": client, "text": text, "split": split}
    for role, column in roles.items():
        if column is None:
            continue
        if column not in frame:
            raise UserError(f"{where} has no {role} column {column!r}: {suggestion(column, map(str, frame.columns))}")
        if (lacking := (frame[column].isna() | (frame[column].astype(object) == "")).to_numpy()).any():
            raise UserError(f"{where}: row {int(lacking.argmax())} has no value in the {role} column {column!r}.")
    rest = frame.drop(columns=[column for column in roles.values() if column is not None])
    if text is None:
        if wrong := [str(c) for c in rest if not is_numeric_dtype(rest[c])]:
            raise UserError(f"{where}: column {wrong[0]!r} does not hold numbers: turn it into numbers, drop it, or name it as text=.")
        if not len(rest.columns):
            raise UserError(f"{where} has no column left to learn from beside {', '.join(c for c in roles.values() if c)}.")
    y, classes = coded([str(value) for value in frame[label]])
    owners, names = coded([str(value) for value in frame[client]]) if client is not None else (None, ())
    return Table(
        y=y,
        classes=classes,
        values=rest.to_numpy(np.float32) if text is None else None,
        texts=[str(value) for value in frame[text]] if text is not None else None,
        part=split_words(frame[split].tolist(), where) if split is not None else None,
        owners=owners,
        owner_names=names,
        facts={"features": [str(c) for c in rest]} if text is None else {},
    )
