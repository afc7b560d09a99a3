"""CSV and Parquet files of a table: which files belong to it, their dialect, and the line of each sample."""

import csv
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from io import StringIO
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Ints
from coterie.data.readers.files import find_path, list_data_folders, read_bytes

if TYPE_CHECKING:
    import pandas as pd

ROWS = "rows"  # in the provenance of samples: the lines of their files
BY_FILE = "*"  # in place of a column of clients: each file is a client
SUFFIXES = {"csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz"), "parquet": (".parquet",)}
SEPARATORS = {",": "comma-separated", ";": "semicolon-separated", "\t": "tab-separated", "|": "separated by |"}
WORDS = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|"}
SNIFFED_LINES = 20  # lines by which a separator is recognised
DECIMAL = re.compile(r"\s*[-+]?\d+(,\d+)?([eE][-+]?\d+)?\s*")


class Row(NamedTuple):
    """Where a sample stands: a line of a file as an editor counts them, or, without a file, the position in a frame (from 0)."""

    file: str | None
    row: int

    def __str__(self) -> str:
        return f"row {self.row}" if self.file is None else f"line {self.row} of {self.file}"


@dataclass(frozen=True)
class FileRows:
    """The line of each sample, as runs of samples whose lines follow each other: (first sample, file, its line)."""

    runs: tuple[tuple[int, str, int], ...]

    def locate(self, sample: int) -> Row:
        """The file and line of a sample."""
        first, file, line = self.runs[bisect_right(self.runs, sample, key=lambda run: run[0]) - 1]
        return Row(file, line + sample - first)

    def select(self, samples: Ints) -> "FileRows":
        """The lines of some samples, which are numbered from 0 in their order."""
        if not len(samples):
            return FileRows(())
        first = np.searchsorted([run[0] for run in self.runs], samples, side="right")
        starts = np.flatnonzero(np.r_[True, (np.diff(samples) != 1) | (np.diff(first) != 0)])
        places = [self.locate(int(samples[start])) for start in starts]
        return FileRows(tuple((int(start), str(place.file), place.row) for start, place in zip(starts, places, strict=True)))

    def to_list(self) -> list[list[Any]]:
        return [list(run) for run in self.runs]

    @classmethod
    def from_list(cls, stored: Iterable[Sequence[Any]]) -> "FileRows":
        return cls(tuple((int(sample), str(file), int(line)) for sample, file, line in stored))


def locate_row(row: int, rows: FileRows | None) -> Row:
    """Where a row of a table stands."""
    return Row(None, row) if rows is None else rows.locate(row)


def get_file_rows(provenance: Mapping[str, Any]) -> FileRows | None:
    """The lines of samples, where they came from files."""
    stored = provenance.get(ROWS)
    return None if stored is None else FileRows.from_list(stored)


@dataclass(frozen=True)
class Dialect:
    """How files are written. Several separators or encodings are those of several files: each is read by the first that fits."""

    sep: tuple[str, ...] = ()  # default: a comma, or a tab in files called .tsv
    encoding: tuple[str, ...] = ()  # default: UTF-8, with or without a mark at its beginning
    decimal: str = "."
    missing: tuple[str, ...] = ()  # marks of gaps, beside an empty cell, NA, NaN and null

    @classmethod
    def from_settings(cls, sep: Any, encoding: Any, decimal: str, missing: Any) -> "Dialect":
        """From the settings of a spec, each one word or several."""
        made = cls(tuple(WORDS.get(each, each) for each in to_words(sep)), to_words(encoding), decimal, to_words(missing))
        if wrong := [each for each in made.sep if len(each) != 1]:
            raise UserError(f"Data set 'csv': sep={wrong[0]!r} should be one sign, such as ';', or tab.")
        for name in made.encoding:
            try:
                "".encode(name)
            except LookupError:
                raise UserError(f"Data set 'csv': the encoding {name!r} is not known: write utf-8, latin-1, cp1252 or utf-16.") from None
        if len(decimal) != 1:
            raise UserError(f"Data set 'csv': decimal={decimal!r} should be one sign, '.' or ','.")
        return made


def to_words(words: Any) -> tuple[str, ...]:
    """One word or several, or none, as words."""
    if words is None:
        return ()
    return (str(words),) if isinstance(words, (str, int, float)) else tuple(map(str, words))


class TableFiles(NamedTuple):
    """The files that a path names, and whether it may name several: each file then is a client."""

    files: tuple[Path, ...]
    several: bool

    @property
    def clients(self) -> tuple[str, ...]:
        """The files' names without extensions; where those are equal, with the folders that set them apart."""
        names = [file.name.removesuffix(".gz").rpartition(".")[0] or file.name for file in self.files]
        if len(set(names)) == len(names):
            return tuple(names)
        folders = [file.parent.absolute() for file in self.files]
        apart = [folder.relative_to(commonpath(folders)).as_posix() for folder in folders]
        return tuple(apart) if len(set(apart)) == len(apart) else tuple(f"{a}/{n}" for a, n in zip(apart, names, strict=True))


def find_files(path: str, kind: str, data_dir: Path | None) -> TableFiles:
    """The files of a path: one, all of a kind in a folder, or those that match a pattern."""
    where = find_path(path, data_dir)
    if has_magic(path) and not where.exists():
        places = [Path(path).expanduser(), *(folder / path for folder in list_data_folders(data_dir))]
        found = next((names for place in places if (names := sorted(glob(str(place), recursive=True)))), [])
        files = tuple(Path(name) for name in found if Path(name).is_file())
        if not files:
            raise UserError(f"Data set {kind!r}: no file matches {path!r}.")
        return TableFiles(files, several=True)
    if where.is_dir():
        files = tuple(sorted(file for file in where.iterdir() if file.name.endswith(SUFFIXES[kind]) and file.name[0] != "."))
        if not files:
            raise UserError(f"Data set {kind!r}: the folder {where} holds no files called {', '.join(SUFFIXES[kind])}.")
        return TableFiles(files, several=True)
    return TableFiles((where,), several=False)


def guess_label(columns: Sequence[str], where: str, kind: str) -> str:
    """The label column of a table whose spec does not name it."""
    found = [name for name in columns if name.strip().lower() in ("label", "class", "target", "outcome", "y")]
    if len(found) != 1:
        more = " ..." if len(columns) > 12 else ""
        raise UserError(
            f"{where}: name the label column, as in {kind}('{where}',label='{columns[-1]}'); the columns are "
            f"{', '.join(columns[:12])}{more}."
        )
    return found[0]


@dataclass(frozen=True)
class CsvText:
    """A CSV file as text, with the separator it is read by."""

    path: Path
    text: str
    sep: str
    decimal: str
    missing: tuple[str, ...]

    @classmethod
    def open(cls, path: Path, dialect: Dialect, several: bool) -> "CsvText":
        """Decode a file and settle its separator; what does not fit is named with the option to give."""
        text = _decode_file(path, dialect.encoding or ("utf-8",), several)
        return cls(path, text, _find_separator(path, text, dialect.sep, several), dialect.decimal, dialect.missing)

    def head(self) -> list[str]:
        """The names of the columns as they are written."""
        return next(iter(_parse_records(self.text, self.sep)), [])

    def frame(self, written: Sequence[str]) -> "pd.DataFrame":
        """The table, with the columns that are named here as they are written: the clients 1, 01, 1.0 and NA are four."""
        import pandas as pd

        kept = [name for name in written if name in self.head()]
        frame = pd.read_csv(StringIO(self.text), sep=self.sep, decimal=self.decimal, na_values=list(self.missing) or None, index_col=False)
        if kept:
            texts = pd.read_csv(StringIO(self.text), sep=self.sep, index_col=False, dtype=str, keep_default_na=False, usecols=kept)
            frame = frame.assign(**{name: texts[name].where(~texts[name].str.strip().isin(self.missing), "") for name in kept})
        if self.decimal == ".":
            self._check_decimals(frame.drop(columns=kept))
        return frame

    def rows(self, count: int) -> FileRows:
        """The line of each of the rows: the one after the last one's, but for blank lines and cells of several lines."""
        name, end = self.path.name, self.text.rstrip("\r\n")
        if (end.count("\n") or end.count("\r")) == count:
            return FileRows(((0, name, 2),))
        reader = csv.reader(StringIO(self.text, newline=""), delimiter=self.sep)
        lines, before = [], 0
        for record in reader:
            if len(record) > 1 or "".join(record).strip():
                lines.append(before + 1)
            before = reader.line_num
        if len(lines) != count + 1:  # pandas and the csv module disagree on what a row is: lines are then counted as if none were blank
            return FileRows(((0, name, 2),))
        starts = np.flatnonzero(np.r_[True, np.diff(lines[1:]) != 1])
        return FileRows(tuple((int(start), name, lines[1 + start]) for start in starts))

    def _check_decimals(self, frame: "pd.DataFrame") -> None:
        from pandas.api.types import is_numeric_dtype

        for name in frame:
            if is_numeric_dtype(frame[name]):
                continue
            cells = frame[name].dropna().astype(str)
            if len(cells) and cells.str.contains(",").any() and cells.map(lambda cell: DECIMAL.fullmatch(cell) is not None).all():
                shown = cells[cells.str.contains(",")].iloc[0].strip()
                raise UserError(f"{self.path}: column {str(name)!r} holds {shown!r}, a number with a decimal comma: add decimal=','.")


def _decode_file(path: Path, encodings: Sequence[str], several: bool) -> str:
    raw = read_bytes(path)
    for name in encodings:
        usual = name.lower().replace("_", "-")
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff") and not usual.startswith("utf-16"):
            continue  # Latin-1 reads any bytes
        try:
            text = raw.decode("utf-8-sig" if usual in ("utf-8", "utf8") else name)
        except (UnicodeDecodeError, UnicodeError):
            continue
        if "\0" not in text[:1000]:
            return text.removeprefix("\ufeff")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:1000]:
        found, title = ("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-16-le"), "UTF-16"
    elif any(0x80 <= byte < 0xA0 for byte in raw):
        found, title = "cp1252", "Windows-1252"
    else:
        found, title = "latin-1", "Latin-1"
    if found in encodings:
        raise UserError(f"{path} is not text in {', '.join(encodings)}.")
    option = found if not several else f"({','.join([*encodings, found])})"
    raise UserError(f"{path} is not text in {' or '.join(encodings)} but looks like {title}: add encoding={option}.")


def _find_separator(path: Path, text: str, given: Sequence[str], several: bool) -> str:
    """The first separator given that fits; a file that looks like another is refused by name."""
    wanted = tuple(given) or (("\t",) if ".tsv" in path.name else (",",))
    start = _read_start(text)
    for sep in wanted:
        if _fits_separator(start, sep):
            return sep
    other = next((sep for sep in SEPARATORS if sep not in wanted and _fits_separator(start, sep)), None)
    if other is not None:
        option = ",".join(map(repr, (*wanted, other)))
        raise UserError(f"{path} looks {SEPARATORS[other]}: add sep={f'({option})' if several else repr(other)}.")
    return wanted[0]


def _read_start(text: str) -> str:
    end = 0
    for _ in range(SNIFFED_LINES):
        end = text.find("\n", end) + 1
        if not end:
            return text
    return text[:end]


def _fits_separator(start: str, sep: str) -> bool:
    """Whether lines fall into the same number of cells, of which there are several."""
    counts = {len(record) for record in _parse_records(start, sep)}
    return len(counts) == 1 and counts.pop() > 1


def _parse_records(text: str, sep: str) -> list[list[str]]:
    try:
        return [record for record in csv.reader(StringIO(_read_start(text), newline=""), delimiter=sep) if "".join(record).strip()]
    except csv.Error:
        return []


def check_same_columns(files: Sequence[Path], heads: Sequence[Sequence[str]], needed: Sequence[str] | None, ignored: Sequence[str]) -> None:
    """Refuse files of different columns, by name with the nearest match; the order of columns is no matter.

    Args:
        files: The files of one table.
        heads: The names of the columns of each.
        needed: The columns that are used; default: those of the first file, and no others.
        ignored: Columns that need not be the same.
    """
    first = [name for name in heads[0] if name not in ignored] if needed is None else list(needed)
    for file, head in zip(files, heads, strict=True):
        if missing := [name for name in first if name not in head]:
            own = [name for name in head if name not in first]
            where = f"that {files[0].name} has" if needed is None else "that is needed"
            raise UserError(f"{file} lacks the column {missing[0]!r} {where}: {suggest_names(missing[0], own)}")
        if needed is None and (more := [name for name in head if name not in first and name not in ignored]):
            raise UserError(f"{file} has a column {more[0]!r} that {files[0].name} lacks: rename it, or drop it with drop={more[0]!r}.")
