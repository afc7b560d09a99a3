"""The page of a federation's statistics: every column at every site, with its histogram; it needs nothing from the network."""

from collections.abc import Mapping, Sequence
from html import escape
from math import sqrt
from typing import Any

from coterie.report.page import MISSING, Html, Section, render_page, render_paragraph
from coterie.report.style import OKABE_ITO

HEIGHT, BAR = 34, 13  # of a histogram, in pixels
WITHHELD = "withheld: fewer rows than the site reports about, or its policy keeps it"


def render_statistics(found: Mapping[str, Any]) -> str:
    """The page of what `arrange_statistics` gives.

    Args:
        found: The label, the sites, and by column the statistics of each site.

    Returns:
        The page as HTML.
    """
    sites, columns = found["sites"], found["columns"]
    lead = f"{len(columns)} columns at {len(sites)} sites. Counts are rounded; {MISSING} is {WITHHELD}."
    sections = [
        Section(column["name"], [*_describe(column), _render_table(column)], f"column-{place}", column["name"])
        for place, column in enumerate(columns)
    ]
    return render_page("Statistics of the sites' tables", lead, sections)


def _describe(column: Mapping[str, Any]) -> list[Html]:
    unit = f", in {column['unit']}" if column["unit"] else ""
    if column["type"] == "category":
        return [render_paragraph(f"A category. Bars from left to right: {', '.join(column['categories'])}.", "note")]
    bounds = column["bounds"]
    bars = f" Bars from {bounds[0]:g} to {bounds[1]:g}; what lies beyond is in the last ones." if bounds else ""
    return [render_paragraph(f"A number{unit}.{bars}", "note")]


def _render_table(column: Mapping[str, Any]) -> Html:
    head = "".join(f"<th>{title}</th>" for title in ("site", "rows", "missing", "mean", "deviation", "histogram"))
    rows = [(site, own) for site, own in column["sites"].items()]
    if column["pooled"]:
        rows.append(("all sites", {**column["pooled"], "missing": None, "histogram": ()}))
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _render_cells(site, own))}</tr>" for site, own in rows)
    return Html(f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def _render_cells(site: str, own: Mapping[str, Any]) -> list[str]:
    variance = own["variance"]
    deviation = None if variance is None else sqrt(max(variance, 0.0))
    numbers = [_format(own["count"], ",.0f"), _format(own["missing"], ",.0f"), _format(own["mean"], ".4g"), _format(deviation, ".4g")]
    return [escape(site), *numbers, _draw_histogram(own["histogram"])]


def _format(value: float | None, form: str) -> str:
    return MISSING if value is None else f"{value:{form}}".replace("-", "−")


def _draw_histogram(bins: Sequence[float | None]) -> str:
    """Bars; one that is withheld is a dotted outline of no height."""
    if not bins:
        return MISSING
    most = max((count for count in bins if count), default=1.0)
    bars = []
    for place, count in enumerate(bins):
        height = 0.0 if count is None else max(count, 0.0) / most * HEIGHT
        title = "withheld" if count is None else f"{count:,.0f}"
        style = 'fill="none" stroke="currentColor" stroke-dasharray="2"' if count is None else f'fill="{OKABE_ITO["blue"]}"'
        height = 4.0 if count is None else height
        x, y = place * BAR, HEIGHT - height
        bars.append(f'<rect x="{x}" y="{y:.1f}" width="{BAR - 2}" height="{height:.1f}" {style}><title>{title}</title></rect>')
    width = len(bins) * BAR
    return f'<svg role="img" aria-label="histogram" width="{width}" height="{HEIGHT}" viewBox="0 0 {width} {HEIGHT}">{"".join(bars)}</svg>'
