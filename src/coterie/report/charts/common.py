"""What several charts are made of: lines that can be switched off, panels side by side, the axes for rounds and scores."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import altair as alt

from coterie.report.style import GREY, LineStyle, faded, scales, switch

Records: TypeAlias = list[dict[str, Any]]
Layers: TypeAlias = alt.LayerChart | alt.FacetChart


def lines(
    rows: Records, styles: Sequence[LineStyle], x: alt.X, y: alt.Y, tooltip: list[alt.Tooltip], *, band: bool = False, dots: bool = False
) -> Layers:
    """A line for each method, with a legend whose names switch it off and on; `band` from `low` to `high`; the mouse finds every point."""
    shown, (colour, dash) = switch([style.name for style in styles]), scales(styles)
    bands = [alt.Chart().mark_area().encode(x=x, y="low:Q", y2="high:Q", color=colour, opacity=faded(shown, 0.15, 0.0))] if band else []
    line = alt.Chart().mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash, opacity=faded(shown))
    seen = faded(shown, 0.55, 0.0) if dots else alt.value(0.0)
    points = alt.Chart().mark_point(filled=True, size=36 if dots else 120).encode(x=x, y=y, color=colour, opacity=seen, tooltip=tooltip)
    return alt.layer(*bands, line.add_params(shown), points, data=inline(rows))


def side_by_side(chart: "alt.Chart | Layers", panels: Sequence[str]) -> alt.FacetChart:
    """A panel for each of some names, in their order; rows of the data say in `panel` where they belong."""
    several: alt.FacetChart = chart.facet(facet=alt.Facet("panel:N", sort=list(panels)), columns=3).resolve_axis(x="independent")
    return several


def zero(axis: str) -> alt.Chart:
    """A line where an axis is 0."""
    line: alt.Chart = alt.Chart(inline([{}])).mark_rule(color=GREY, strokeWidth=1.5).encode(**{axis: alt.datum(0)})
    return line


def inline(rows: Records) -> alt.InlineData:
    """Rows as part of the chart; Altair's limit for data frames does not concern them."""
    return alt.InlineData(values=rows)


def rounds_axis() -> alt.X:
    """Rounds from left to right."""
    return alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False))


def measure_axis(title: str) -> alt.Y:
    """What is compared, times 100, from the lowest to the highest there is."""
    return alt.Y("accuracy:Q", title=title, scale=alt.Scale(zero=False))


def told(*fields: tuple[str, str] | str) -> list[alt.Tooltip]:
    """What the mouse is told: fields such as "round:Q", with a title where the field's name does not say it."""
    return [alt.Tooltip(field) if isinstance(field, str) else alt.Tooltip(field[0], title=field[1]) for field in fields]


INTERVAL = (("low:Q", "95 % from"), ("high:Q", "to"))
