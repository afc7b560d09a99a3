"""A page: one HTML file with words, tables and interactive charts that needs nothing from the network.

The frame knows nothing of what it shows: sections are given HTML and figures. Colours of text and axes come from the style sheet alone, so
a page follows the reader's light or dark setting and prints dark on white.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, TypeAlias

from coterie.report.figure import SPEC_VERSION, Figure, require_altair

GLOBALS = "window.vegaEmbed = vegaEmbed;"  # what the page's own script uses of the library


@dataclass(frozen=True)
class Html:
    """A piece of a page that is HTML already."""

    text: str


Block: TypeAlias = Html | Figure


@dataclass(frozen=True)
class Section:
    """A heading and what is below it. `anchor` is its name in links; `short` its name in the list of contents, where it has one."""

    title: str
    blocks: Sequence[Block]
    anchor: str
    short: str = ""


def render_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page as text."""
    links = "".join(f'<a href="#{section.anchor}">{escape(section.short)}</a>' for section in sections if section.short)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>\n<style>{_read_asset('style.css')}</style>\n</head>\n<body>",
            f"<header><h1>{escape(title)}</h1><p>{escape(lead)}</p><nav>{links}</nav></header>\n<main>",
            *map(_render_section, sections),
            f"</main>\n<script>{_vega_script()}</script>\n<script>{_read_asset('charts.js')}</script>\n</body>\n</html>\n",
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
