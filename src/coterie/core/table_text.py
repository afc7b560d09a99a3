"""Names and text in CSV and Markdown tables: what a file says, and nothing that a spreadsheet or a viewer would run, follow or fold away.

A spreadsheet takes a cell that begins with =, +, -, @, a tab or a return for a formula. Such text gets an apostrophe in front; numbers stay
numbers. Readers of Coterie's own files take the apostrophe off again (`unescape_csv`), so that names survive the way out and back.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

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
    """Markdown as it is: `markdown_lines` escapes every other cell."""

    __slots__ = ()


def escape_csv(value: Any) -> Any:
    """A cell as it is written: text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def unescape_csv(value: Any) -> Any:
    """What `escape_csv` was given."""
    return value[1:] if isinstance(value, str) and _ESCAPED.match(value) else value


def csv_text(frame: "pd.DataFrame") -> str:
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


def code_span(text: str) -> Markup:
    """A name in Markdown as code, whatever backticks are in it."""
    inside = _BREAKS.sub(" ", text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", inside)), default=0))
    pad = " " if "`" in inside else ""
    return Markup(f"{fence}{pad}{inside}{pad}{fence}")


def markdown_lines(header: Sequence[str], rows: Iterable[Sequence[str]], rule: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a table; `rule` says how columns are aligned. Cells are escaped, except for `Markup`."""
    yield _line(header)
    yield "|" + "".join(f" {mark} |" for mark in rule or ["---"] * len(header))
    yield from map(_line, rows)


def _line(cells: Sequence[str]) -> str:
    shown = (cell.replace("|", "\\|") if isinstance(cell, Markup) else escape_markdown(cell) for cell in cells)  # in code, too
    return f"| {' | '.join(shown)} |"
