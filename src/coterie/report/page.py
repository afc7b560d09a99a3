"""A page: one HTML file with text, tables and interactive charts that needs nothing from the network.

Sections are given HTML, tables and figures. Colours of text and axes come from the style sheet, so a page follows the reader's light or
dark setting. A table is written for papers (Markdown, LaTeX) and for further work (CSV, unrounded), too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from coterie._util.files import write_inside
from coterie._util.formatting import escape_markdown, format_csv, format_markdown_table
from coterie.report.figure import SPEC_VERSION, Figure, require_altair

if TYPE_CHECKING:
    import pandas as pd


GLOBALS = "window.vegaEmbed = vegaEmbed;"  # what the page's own script uses of the library


@dataclass(frozen=True)
class Html:
    """A piece of a page that is HTML already."""

    text: str


Block: TypeAlias = Html | Figure


@dataclass(frozen=True)
class Section:
    """A heading and its blocks. `anchor` is its name in links; `short` its name in the list of contents, where it has one."""

    title: str
    blocks: Sequence[Block]
    anchor: str
    short: str = ""


def render_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page as text."""
    links = "".join(f'<a href="#{section.anchor}">{escape(section.short)}</a>' for section in sections if section.short)
    charts = any(isinstance(block, Figure) for section in sections for block in section.blocks)
    script = f"<script>{_vega_script()}</script>\n<script>{_read_asset('charts.js')}</script>\n" if charts else ""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>\n<style>{_read_asset('style.css')}</style>\n</head>\n<body>",
            f"<header><h1>{escape(title)}</h1><p>{escape(lead)}</p><nav>{links}</nav></header>\n<main>",
            *map(_render_section, sections),
            f"</main>\n{script}</body>\n</html>\n",
        ]
    )


def render_paragraph(text: str, kind: str = "") -> Html:
    """Plain text as a paragraph; `kind` is a class of the style sheet."""
    return Html(f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>")


def _render_section(section: Section) -> str:
    inside = "\n".join(_render_figure(block) if isinstance(block, Figure) else block.text for block in section.blocks)
    return f'<section id="{section.anchor}"><h2>{escape(section.title)}</h2>\n{inside}\n</section>'


def _render_figure(figure: Figure) -> str:
    note = f"<p>{escape(figure.note)}</p>" if figure.note else ""
    return (
        f'<figure id="{figure.name}"><figcaption><h3>{escape(figure.title)}</h3>{note}</figcaption>'
        f'<div class="chart" role="img" aria-label="{escape(figure.title)}"></div>'
        f'<script type="application/json">{_inline_json(figure.spec())}</script></figure>'
    )


def _inline_json(tree: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _read_asset(name: str) -> str:
    return files("coterie.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _vega_script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from the package that also draws figures for papers."""
    require_altair()
    import vl_convert

    return vl_convert.javascript_bundle(GLOBALS, vl_version=SPEC_VERSION)


CellFormatter = Callable[[Mapping[str, Any]], str]
MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A heading, and what is written below it for a row of values."""

    title: str
    show: CellFormatter


@dataclass(frozen=True)
class ReportTable:
    """A table: unrounded values, and the columns of text that are shown, each made of one or several of them."""

    name: str
    caption: str
    frame: "pd.DataFrame"
    columns: tuple[Column, ...] = ()  # none: a table for further work only

    def cells(self) -> list[list[str]]:
        """The shown columns as text."""
        return [[column.show(row) for column in self.columns] for row in self._rows()]

    def _rows(self) -> list[dict[str, Any]]:
        return [{str(name): value for name, value in row.items()} for row in self.frame.to_dict("records")]

    def html(self) -> Html:
        head = "".join(f"<th>{escape(column.title)}</th>" for column in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.cells())
        table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        # the caption is outside of what scrolls, so that a phone shows all of it
        return Html(f'<p class="caption">{escape(self.caption)}</p><div class="table"><table>{table}</table></div>')

    def markdown(self) -> str:
        titles = [column.title for column in self.columns]
        table = "\n".join(format_markdown_table(titles, self.cells(), ["---", *["---:"] * (len(titles) - 1)]))
        return f"{escape_markdown(self.caption)}\n\n{table}\n"

    def latex(self) -> str:
        import pandas as pd

        frame = pd.DataFrame(self.cells(), columns=[column.title for column in self.columns])
        text: str = (
            frame.map(_escape_latex)
            .rename(columns=_escape_latex)
            .to_latex(
                index=False,
                caption=_escape_latex(self.caption),
                label=f"tab:{self.name}",
                column_format="l" + "r" * (len(self.columns) - 1),
            )
        )
        return text

    def write(self, folder: Path) -> list[Path]:
        """The table in its forms."""
        forms = {"csv": format_csv(self.frame)} | ({"md": self.markdown(), "tex": self.latex()} if self.columns else {})
        return [write_inside(folder, f"{self.name}.{ending}", content) for ending, content in forms.items()]


def show_text(name: str) -> CellFormatter:
    """A value as it is."""
    return lambda row: str(row[name])


def show_number(name: str, form: str, unit: str = "", scale: float = 1.0) -> CellFormatter:
    """A number in one form; what is not defined is a dash."""
    return lambda row: _format_number(scale * row[name], form) + unit if abs(row[name]) < float("inf") else MISSING


def show_amount(name: str) -> CellFormatter:
    """How much of something, small or large: three figures that count."""

    def show(row: Mapping[str, Any]) -> str:
        value = row[name]
        return MISSING if not abs(value) < float("inf") else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

    return show


def show_points(name: str, signed: bool = False) -> CellFormatter:
    """A share as percent, or a difference of shares as points."""
    return show_number(name, "+.1f" if signed else ".1f", scale=100)


def show_interval(low: str, high: str, signed: bool = False) -> CellFormatter:
    """An interval of shares."""
    one, two = show_points(low, signed), show_points(high, signed)
    return lambda row: f"{one(row)} to {two(row)}" if one(row) != MISSING else MISSING


def render_definitions(rows: Sequence[tuple[str, str]]) -> Html:
    """Names and what they stand for."""
    body = "".join(f"<tr><td>{escape(name)}</td><td><code>{escape(value)}</code></td></tr>" for name, value in rows)
    return Html(f'<div class="table"><table class="words"><tbody>{body}</tbody></table></div>')


def _format_number(value: float, form: str) -> str:
    text = f"{value:{form}}"
    return text.lstrip("+-") if not text.strip("+-0.") else text.replace("-", "−")  # nothing has no sign


LATEX_ESCAPES = {"\\": r"\textbackslash{}", "−": "$-$", "–": "--", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _escape_latex(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in text)
