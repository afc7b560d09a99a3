"""The columns of a table as columns of numbers: those that hold numbers as they are, those that hold words as indicators."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.arrays import Array, Doubles
from coterie.core.errors import UserError
from coterie.core.notices import Notice

if TYPE_CHECKING:
    import pandas as pd

MOST_WORDS = 1000  # of one column: more are names, numbers of patients or sentences, which no indicator helps to learn from
FEW_NAMES, NAMES = 30, 0.5  # words from which on, and the share of the rows, a column is taken for names of rows
SHOWN = 3  # words that a notice names
STRAY = 0.1  # the share of a column's cells up to which words among numbers are taken for slips


@dataclass(frozen=True)
class TableColumn:
    """A column of the table; with words, it becomes an indicator for each of them."""

    name: str
    words: tuple[str, ...] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        return (self.name,) if self.words is None else tuple(f"{self.name}={word}" for word in self.words)

    def encode(self, cells: Sequence[Any], where: str) -> Doubles:
        """(n, features) with nan at gaps of numbers. A gap among words has none set; nor has a word new since training, which is told."""
        gaps = [cell is None or cell != cell or str(cell).strip() == "" for cell in cells]
        if self.words is not None:
            places = {word: place for place, word in enumerate(self.words)}
            made = np.zeros((len(cells), len(self.words)))
            found = {row: str(cell).strip() for row, (cell, gap) in enumerate(zip(cells, gaps, strict=True)) if not gap}
            for row, word in found.items():
                if word in places:
                    made[row, places[word]] = 1.0
            if strange := [word for word in found.values() if word not in places]:
                self._tell_of_strangers(strange, len(cells), where)
            return made
        values = [np.nan if gap else _number(cell, row, self.name, where) for row, (cell, gap) in enumerate(zip(cells, gaps, strict=True))]
        return np.array(values, dtype=np.float64).reshape(-1, 1)

    def _tell_of_strangers(self, words: Sequence[str], rows: int, where: str) -> None:
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
    def of(cls, frame: "pd.DataFrame", where: str, *, onehot: bool) -> "Columns":
        """The columns of a table of features."""
        from pandas.api.types import is_numeric_dtype

        made = []
        for name in frame:
            if is_numeric_dtype(frame[name]):
                made.append(TableColumn(str(name)))
                continue
            _check_stray(frame[name].tolist(), str(name), where)
            if not onehot:
                raise UserError(
                    f"{where}: column {str(name)!r} does not hold numbers: say categories=onehot, drop it with drop=, or name it as text=."
                )
            words = sorted({str(cell).strip() for cell in frame[name].dropna()} - {""})
            if len(words) > FEW_NAMES and len(words) > NAMES * len(frame):
                raise UserError(
                    f"{where}: column {str(name)!r} holds {len(words):,} different words in {len(frame):,} rows, as names do: indicators "
                    "of them would say who is who; drop it with drop=, or name it as text=."
                )
            if len(words) > MOST_WORDS:
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

    def encode(self, frame: "pd.DataFrame", where: str) -> Doubles:
        """(n, features) of a table that has all the columns; it may have others."""
        names = {str(name): name for name in frame}
        if missing := [column.name for column in self.columns if column.name not in names]:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise UserError(f"{where} lacks the column {missing[0]!r}{more}: the model takes {', '.join(c.name for c in self.columns)}.")
        return np.hstack(
            [np.zeros((len(frame), 0)), *(column.encode(frame[names[column.name]].tolist(), where) for column in self.columns)]
        )

    def told(self) -> list[dict[str, Any]]:
        """As plain values."""
        return [{"name": column.name, "words": None if column.words is None else list(column.words)} for column in self.columns]

    @classmethod
    def read(cls, told: Sequence[Mapping[str, Any]]) -> "Columns":
        """From what `told` gave."""
        return cls(
            tuple(TableColumn(str(each["name"]), None if each["words"] is None else tuple(map(str, each["words"]))) for each in told)
        )


def _check_stray(cells: Sequence[Any], name: str, where: str) -> None:
    """Refuse a word in a column that otherwise holds numbers: it would make words of all of them."""
    found = [(row, str(cell).strip()) for row, cell in enumerate(cells) if cell is not None and cell == cell and str(cell).strip() != ""]
    stray = [(row, word) for row, word in found if not _is_number(word)]
    if stray and len(stray) <= STRAY * len(found):
        row, word = stray[0]
        more = f" ({len(stray) - 1} more)" if len(stray) > 1 else ""
        raise UserError(
            f"{where} has {word!r}, which is no number, in row {row}{more} of column {name!r}, whose other cells are: mend it, leave the "
            "row out, or drop the column with drop=."
        )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _number(cell: Any, row: int, name: str, where: str) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        raise UserError(
            f"{where} has {str(cell)!r}, which is no number, in row {row}, column {name!r}: mend it or leave the row out."
        ) from None
    if not np.isfinite(value):
        raise UserError(f"{where}: sample {row} holds a value that is no finite number, in column {name!r}; fill it in or drop it.")
    return value
