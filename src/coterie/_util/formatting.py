"""Text for terminals, CSV and Markdown: counts, sizes, and names from data made safe to show.

A spreadsheet takes a cell that begins with =, +, -, @, a tab or a return for a formula. Such text gets an apostrophe in front; numbers stay
numbers. Readers of Coterie's own files remove the apostrophe again (`unescape_csv`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def format_count(number: int, thing: str, several: str = "") -> str:
    """``1 seed``, ``3 seeds``, ``2,000 lanes``."""
    return f"{number:,} {thing if number == 1 else several or f'{thing}s'}"


def format_bytes(size: float) -> str:
    """``640 MB``, ``4.6 GB``: bytes in thousands of thousands."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 100 * unit else f"{size / unit:,.0f} {name}"
    return f"{size / 1e3:.3g} kB" if size >= 1000 else format_count(int(size), "byte")


def escape_controls(text: str) -> str:
    """The text with every sign that is not printed (control signs, escape sequences, marks that turn the direction of writing) spelt out.

    The names of clients, classes, files and runs come from data: they must not move a cursor or clear a screen.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else sign.encode("unicode_escape").decode("ascii") for sign in text)


_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")  # behind apostrophes, too: otherwise taking one off would change such a name
_ESCAPED = re.compile(r"'+[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)
_BREAKS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")
_MARKS = re.compile(
    r"[\\|`*~$]"  # escapes, cells, code, emphasis, formulas
    r"|\](?=\s*[(\[:])|\[(?=\^)"  # links and notes
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis begins or ends at an underscore beside a word, not within one
    r"|<(?=[A-Za-z/!?])"  # HTML
    r"|&(?=#?\w+;)"
    r"|:(?=//)|(?<=www)\.|@(?=\w)",  # addresses become links by themselves
    re.IGNORECASE,
)


class Markup(str):
    """Markdown as it is: `format_markdown_table` escapes every other cell."""

    __slots__ = ()


def escape_csv(value: Any) -> Any:
    """A cell as it is written: text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def unescape_csv(value: Any) -> Any:
    """What `escape_csv` was given."""
    return value[1:] if isinstance(value, str) and _ESCAPED.match(value) else value


def format_csv(frame: "pd.DataFrame") -> str:
    """The frame as CSV, without its index; text in cells and headings is escaped."""
    made = frame.rename(columns=escape_csv)
    for place, kind in enumerate(made.dtypes):
        if kind.kind not in "biufcmM":  # words, categories, objects
            made.isetitem(place, made.iloc[:, place].astype(object).map(escape_csv).to_numpy(object))
    text: str = made.to_csv(index=False)
    return text


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return _MARKS.sub(r"\\\g<0>", _BREAKS.sub(" ", text))


def format_code_span(text: str) -> Markup:
    """A name in Markdown as code, whatever backticks are in it."""
    inside = _BREAKS.sub(" ", text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", inside)), default=0))
    pad = " " if "`" in inside else ""
    return Markup(f"{fence}{pad}{inside}{pad}{fence}")


def format_markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], rule: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a table; `rule` sets how columns are aligned. Cells are escaped, except for `Markup`."""
    yield _format_row(header)
    yield "|" + "".join(f" {mark} |" for mark in rule or ["---"] * len(header))
    yield from map(_format_row, rows)


def _format_row(cells: Sequence[str]) -> str:
    shown = (cell.replace("|", "\\|") if isinstance(cell, Markup) else escape_markdown(cell) for cell in cells)  # in code, too
    return f"| {' | '.join(shown)} |"
