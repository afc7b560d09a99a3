"""Columns of a table as features: numbers as they are, categories as indicators."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import Notice, UserError, suggest_names
from coterie.core.arrays import Array, Doubles
from coterie.data.readers.table_files import FileRows, Row, locate_row

if TYPE_CHECKING:
    import pandas as pd

MAX_CATEGORIES = 1000  # of one column: more are names, numbers of patients or sentences, which no indicator helps to learn from
FEW_NAMES, NAMES = 30, 0.5  # words from which on, and the share of the rows, a column is taken for names of rows
SHOWN = 3  # words that a notice names
STRAY = 0.1  # the share of a column's cells up to which words among numbers are taken for slips
MARKED = 0.5  # the same where it is one word, as of marks for what is missing


@dataclass(frozen=True)
class TableColumn:
    """A column of the table; with words, it becomes an indicator for each of them."""

    name: str
    words: tuple[str, ...] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        return (self.name,) if self.words is None else tuple(f"{self.name}={word}" for word in self.words)

    def encode(self, cells: Sequence[Any] | Array, where: str, rows: FileRows | None = None) -> Doubles:
        """(n, features) with nan at gaps of numbers. A gap among words has none set; nor has a word new since training, with a notice."""
        if self.words is None and isinstance(cells, np.ndarray):  # numbers already
            return self._numbers(cells, where, rows)
        gaps = [is_missing(cell) for cell in cells]
        if self.words is not None:
            places = {word: place for place, word in enumerate(self.words)}
            made = np.zeros((len(cells), len(self.words)))
            found = {row: format_cell(cell) for row, (cell, gap) in enumerate(zip(cells, gaps, strict=True)) if not gap}
            for row, word in found.items():
                if word in places:
                    made[row, places[word]] = 1.0
            if strange := [word for word in found.values() if word not in places]:
                self._warn_unknown_words(strange, len(cells), where)
            return made
        values = [
            np.nan if gap else _parse_number(cell, locate_row(row, rows), self.name, where)
            for row, (cell, gap) in enumerate(zip(cells, gaps, strict=True))
        ]
        return np.array(values, dtype=np.float64).reshape(-1, 1)

    def _numbers(self, cells: Array, where: str, rows: FileRows | None) -> Doubles:
        if (wrong := np.isinf(cells)).any():
            raise UserError(_make_not_finite_error(locate_row(int(wrong.argmax()), rows), self.name, where))
        return cells.reshape(-1, 1)

    def _warn_unknown_words(self, words: Sequence[str], rows: int, where: str) -> None:
        kinds = list(dict.fromkeys(words))
        named = ", ".join(map(repr, kinds[:SHOWN])) + (f" and {len(kinds) - SHOWN} more" if len(kinds) > SHOWN else "")
        sentence = (
            f"{where}: {len(words)} of {rows} rows hold {named} in column {self.name!r}, which training did not know: taken for gaps."
        )
        warnings.warn(sentence, Notice, stacklevel=4)


@dataclass(frozen=True)
class Columns:
    """The columns that are learned from, in their order."""

    columns: tuple[TableColumn, ...]

    @classmethod
    def from_frame(
        cls, frame: "pd.DataFrame", where: str, *, onehot: bool, stated: "Sequence[StatedColumn]" = (), rows: FileRows | None = None
    ) -> "Columns":
        """The columns of a table of features; those of which a user stated what they hold are so."""
        from pandas.api.types import is_numeric_dtype

        known = {column.name: column for column in stated}
        made = []
        for name in frame:
            own = known.get(str(name), StatedColumn(str(name)))
            if own.words is not None:
                own.check(frame[name].tolist(), where, rows)
                made.append(TableColumn(str(name), own.words))
                continue
            if own.kind == "number" or (own.kind is None and is_numeric_dtype(frame[name])):
                made.append(TableColumn(str(name)))
                continue
            if own.kind is None:
                _check_stray_words(frame[name].tolist(), str(name), where, rows)
            if not onehot and own.kind is None:
                raise UserError(
                    f"{where}: column {str(name)!r} does not hold numbers: set categories=onehot, drop it with drop=, or name it as text=."
                )
            words = sorted({format_cell(cell) for cell in frame[name].dropna()} - {""})
            if len(words) > FEW_NAMES and len(words) > NAMES * len(frame):
                raise UserError(
                    f"{where}: column {str(name)!r} holds {len(words):,} different words in {len(frame):,} rows, as names do: indicators "
                    "of them would identify rows; drop it with drop=, or name it as text=."
                )
            if len(words) > MAX_CATEGORIES:
                raise UserError(
                    f"{where}: column {str(name)!r} holds {len(words):,} different words, too many for indicators: drop it with drop=, "
                    "or name it as text=."
                )
            made.append(TableColumn(str(name), tuple(words)))
        return cls(tuple(made))

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each number."""
        return tuple(feature for column in self.columns for feature in column.features)

    @property
    def numbers(self) -> Array:
        """(features,) which of them are numbers of the table, not indicators."""
        return np.array([column.words is None for column in self.columns for _ in column.features], dtype=bool)

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """Where the features of each column begin and end; of a column of no words there are none."""
        ends = np.cumsum([0, *(len(column.features) for column in self.columns)]).tolist()
        return [(first, end) for first, end in pairwise(ends) if end > first]

    def encode(self, frame: "pd.DataFrame", where: str, rows: FileRows | None = None) -> Doubles:
        """(n, features) of a table that has all the columns; it may have others."""
        from pandas.api.types import is_numeric_dtype

        names = {str(name): name for name in frame}
        if missing := [column.name for column in self.columns if column.name not in names]:
            raise UserError(make_missing_columns_error(missing, list(names), [column.name for column in self.columns], where))

        def cells(column: TableColumn) -> Sequence[Any] | Array:
            own = frame[names[column.name]]
            numeric = column.words is None and is_numeric_dtype(own)
            return own.to_numpy(np.float64, na_value=np.nan) if numeric else own.tolist()

        return np.hstack([np.zeros((len(frame), 0)), *(column.encode(cells(column), where, rows) for column in self.columns)])

    def to_list(self) -> list[dict[str, Any]]:
        return [{"name": column.name, "words": None if column.words is None else list(column.words)} for column in self.columns]

    @classmethod
    def from_list(cls, stored: Sequence[Mapping[str, Any]]) -> "Columns":
        return cls(
            tuple(TableColumn(str(each["name"]), None if each["words"] is None else tuple(map(str, each["words"]))) for each in stored)
        )


@dataclass(frozen=True)
class StatedColumn:
    """What a user states of a column: its name, what it holds, and of a category which words there are, here or elsewhere."""

    name: str
    kind: str | None = None  # number or category; default: what is found
    words: tuple[str, ...] | None = None

    @classmethod
    def listed(cls, given: Any, known: Sequence[str], where: str) -> "tuple[StatedColumn, ...]":
        """From names such as `age`, `age:number`, `phone:category` and `phone=HTC|Pixel`, or a mapping of names to kinds or words.

        Args:
            given: What the setting `columns` holds.
            known: The columns that the table has.
            where: The table, for the error.
        """
        pairs = given.items() if isinstance(given, Mapping) else [(each, None) for each in ([given] if isinstance(given, str) else given)]
        made = tuple(cls._read(str(name), stated, known, where) for name, stated in pairs)
        if twice := [column.name for place, column in enumerate(made) if column.name in {other.name for other in made[:place]}]:
            raise UserError(f"{where}: columns= names {twice[0]!r} twice.")
        return made

    @classmethod
    def _read(cls, text: str, stated: Any, known: Sequence[str], where: str) -> "StatedColumn":
        name, kind, words = text, stated if isinstance(stated, str) else None, None if stated is None or isinstance(stated, str) else stated
        if text not in known and stated is None:  # a column may be called a:b itself
            before, mark, after = text.partition("=")
            if mark:
                name, words = before.strip(), after.split("|")
            elif ":" in text:
                name, _, kind = (part.strip() for part in text.rpartition(":"))
        if name not in known:
            raise UserError(f"{where} lacks the column {name!r} of columns=: {suggest_names(name, known)}")
        if kind not in (None, "number", "category"):
            raise UserError(f"{where}: columns= declares {name!r} as {kind!r}: {suggest_names(kind, ('number', 'category'))}")
        if words is None:
            return cls(name, kind)
        found = tuple(dict.fromkeys(format_cell(word) for word in words))
        return cls(name, "category", tuple(word for word in found if word))

    def check(self, cells: Sequence[Any], where: str, rows: FileRows | None) -> None:
        """Refuse a word that is none of those stated, with the nearest."""
        known = set(self.words or ())
        for row, cell in enumerate(cells):
            if not is_missing(cell) and format_cell(cell) not in known:
                raise UserError(
                    f"{where} has {format_cell(cell)!r} in {locate_row(row, rows)}, which is no word of column {self.name!r}: "
                    f"{suggest_names(format_cell(cell), known)}"
                )


def make_missing_columns_error(missing: Sequence[str], found: Sequence[str], known: Sequence[str], where: str) -> str:
    """The error of a table that lacks columns which a model takes, with the nearest of the table's other columns.

    Args:
        missing: The columns that it lacks.
        found: Those that it has.
        known: Those that the model takes.
        where: The table.
    """
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    nearest = suggest_names(missing[0], set(found) - set(known))
    hint = f" ({nearest})" if nearest.startswith("did you mean") else ""
    return f"{where} lacks the column {missing[0]!r}{more}{hint}: the model takes {', '.join(known)}."


def is_missing(cell: Any) -> bool:
    """Whether a cell is a gap."""
    return cell is None or cell != cell or str(cell).strip() == ""


def format_cell(cell: Any) -> str:
    """A cell as a word: a code such as 2 is the same word in a column that has gaps, where it reads as 2.0."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def _check_stray_words(cells: Sequence[Any], name: str, where: str, rows: FileRows | None) -> None:
    """Refuse a word in a column that otherwise holds numbers: it would make words of all of them. One word for many may mark gaps."""
    found = [(row, str(cell).strip()) for row, cell in enumerate(cells) if not is_missing(cell)]
    stray = [(row, word) for row, word in found if not _is_number(word)]
    alike = len({word for _, word in stray}) == 1
    if stray and len(stray) <= (MARKED if alike else STRAY) * len(found):
        row, word = stray[0]
        more = f" ({len(stray) - 1} more)" if len(stray) > 1 else ""
        remedy = f"set missing={word!r} if it marks a gap" if alike else "fix it"
        raise UserError(
            f"{where} has {word!r}, which is no number, in {locate_row(row, rows)}{more} of column {name!r}, whose other cells are: "
            f"{remedy}, leave the row out, or drop the column with drop=."
        )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _parse_number(cell: Any, row: Row, name: str, where: str) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        raise UserError(f"{where} has {str(cell)!r}, which is no number, in {row}, column {name!r}: fix it or leave the row out.") from None
    if not np.isfinite(value):
        raise UserError(_make_not_finite_error(row, name, where))
    return value


def _make_not_finite_error(row: Row, name: str, where: str) -> str:
    return f"{where}: {row} holds a value that is no finite number, in column {name!r}; fill it in or drop it."
