"""What several charts are made of: lines that can be switched off, panels, axes, and heat maps as cells or as an image."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

import altair as alt
import numpy as np

from coterie.core.arrays import Array, Doubles
from coterie.data.readers.images import import_pillow
from coterie.report.figure import PANEL
from coterie.report.style import GREY, LineStyle, make_legend_switch, make_opacity, make_scales, parse_rgb

Rows: TypeAlias = list[dict[str, Any]]
Layers: TypeAlias = alt.LayerChart | alt.FacetChart


def draw_lines(
    rows: Rows, styles: Sequence[LineStyle], x: alt.X, y: alt.Y, tooltip: list[alt.Tooltip], *, band: bool = False, dots: bool = False
) -> Layers:
    """A line for each method, with a legend whose names switch it off and on; `band` from `low` to `high`; the mouse finds every point."""
    shown, (colour, dash) = make_legend_switch([style.name for style in styles]), make_scales(styles)
    bands = (
        [alt.Chart().mark_area().encode(x=x, y="low:Q", y2="high:Q", color=colour, opacity=make_opacity(shown, 0.15, 0.0))] if band else []
    )
    line = alt.Chart().mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash, opacity=make_opacity(shown))
    seen = make_opacity(shown, 0.55, 0.0) if dots else alt.value(0.0)
    points = alt.Chart().mark_point(filled=True, size=36 if dots else 120).encode(x=x, y=y, color=colour, opacity=seen, tooltip=tooltip)
    return alt.layer(*bands, line.add_params(shown), points, data=inline_rows(rows))


def draw_panels(chart: "alt.Chart | Layers", panels: Sequence[str]) -> alt.FacetChart:
    """A panel for each of some names, in their order; the field `panel` of the data names the panel of a row."""
    several: alt.FacetChart = chart.facet(facet=alt.Facet("panel:N", sort=list(panels)), columns=3).resolve_axis(x="independent")
    return several


def draw_zero_line(axis: str) -> alt.Chart:
    """A line where an axis is 0."""
    line: alt.Chart = alt.Chart(inline_rows([{}])).mark_rule(color=GREY, strokeWidth=1.5).encode(**{axis: alt.datum(0)})
    return line


def inline_rows(rows: Rows) -> alt.InlineData:
    """Rows as part of the chart; Altair's limit for data frames does not concern them."""
    return alt.InlineData(values=rows)


def make_rounds_axis() -> alt.X:
    """Rounds from left to right."""
    return alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(nice=False))


def make_measure_axis(title: str) -> alt.Y:
    """What is compared, times 100, from the lowest to the highest there is."""
    return alt.Y("accuracy:Q", title=title, scale=alt.Scale(zero=False))


def make_tooltip(*fields: tuple[str, str] | str) -> list[alt.Tooltip]:
    """Tooltip fields such as "round:Q", with a title where the field's name is not enough."""
    return [alt.Tooltip(field) if isinstance(field, str) else alt.Tooltip(field[0], title=field[1]) for field in fields]


INTERVAL_FIELDS = (("low:Q", "95 % from"), ("high:Q", "to"))
MAX_SIDE = 360  # pixels a side at most: a panel is not wider on the page


def shrink(table: Doubles, most: int = MAX_SIDE) -> Doubles:
    """The table with neighbouring cells averaged until neither side is longer than `most`."""
    for axis in (0, 1):
        length = table.shape[axis]
        if length > most:
            edges = np.linspace(0, length, most + 1).round().astype(np.int64)
            counts = np.diff(edges)
            table = np.add.reduceat(table, edges[:-1], axis=axis) / (counts[:, None] if axis == 0 else counts)
    return table


def apply_ramp(table: Doubles, ramp: tuple[str, ...]) -> Array:
    """(h, w, 3) colours of values between 0 and 1, along a ramp of colours."""
    anchors = np.array([parse_rgb(colour) for colour in ramp], dtype=np.float64)
    places = np.linspace(0, 1, len(ramp))
    values = np.clip(table, 0, 1)
    return np.stack([np.interp(values, places, anchors[:, channel]) for channel in range(3)], axis=-1).round().astype(np.uint8)


def colour_groups(table: Array, palette: tuple[str, ...], unassigned: str) -> Array:
    """(h, w, 3) colours of group numbers; -1 is no group."""
    anchors = np.array([parse_rgb(colour) for colour in (*palette, unassigned)], dtype=np.uint8)
    return np.asarray(anchors[np.where(table >= 0, table % len(palette), len(palette))])


def encode_data_url(image: Array) -> str:
    """An (h, w, 3) image as an address that holds the image itself."""
    out = BytesIO()
    import_pillow().fromarray(image, "RGB").quantize(64).save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


MAX_CELLS, MAX_ROWS = 2500, 100  # rectangles in one panel at most, and rows: less than 3 pixels is nothing to point at


@dataclass(frozen=True)
class Heatmap:
    """One panel: rows are clients, from the top; columns are clients or rounds."""

    title: str
    values: Array  # (rows, columns)
    rows: Sequence[str]
    columns: Sequence[str] | Sequence[int]


@dataclass(frozen=True)
class HeatmapStyle:
    """What the tables of a figure have in common: what their rows, columns and values are called, and how values become colours."""

    row: str
    column: str
    value: str
    colour: alt.Color  # of rectangles, for a field "value"
    paint: Callable[[Array], Array]  # (rows, columns) values to an (h, w, 3) image
    show: Callable[[Any], Any]  # a value in the tooltip, and as `colour` takes it
    height: int = 300


def draw_heatmaps(tables: Sequence[Heatmap], kind: HeatmapStyle) -> alt.ConcatChart:
    """The tables side by side."""
    small = all(table.values.size <= MAX_CELLS and len(table.rows) <= MAX_ROWS for table in tables)
    panels = [_draw_cells(table, kind) if small else _draw_image(table, kind) for table in tables]
    chart: alt.ConcatChart = alt.concat(*panels, columns=3).resolve_scale(x="independent", y="independent")
    return chart


def _draw_cells(table: Heatmap, kind: HeatmapStyle) -> alt.Chart:
    data = [
        {"row": row, "column": column, "value": kind.show(table.values[i, j])}
        for i, row in enumerate(table.rows)
        for j, column in enumerate(table.columns)
    ]
    numbered = not isinstance(table.columns[0], str)
    every = max(1, len(table.columns) // 8)
    ticks = [float(column) for column in table.columns if numbered and int(column) % every == 0]
    chart: alt.Chart = (
        alt.Chart(inline_rows(data), title=table.title)
        .mark_rect()
        .encode(
            x=alt.X("column:O", sort=None, title=kind.column, axis=alt.Axis(labels=numbered, ticks=numbered, labelAngle=0, values=ticks)),
            y=alt.Y("row:O", sort=None, title=kind.row, axis=alt.Axis(labels=False, ticks=False)),
            color=kind.colour,
            tooltip=make_tooltip(("row:N", "client"), ("column:N", kind.column.removesuffix("s")), ("value:N", kind.value)),
        )
        .properties(width=PANEL, height=kind.height)
    )
    return chart


def _draw_image(table: Heatmap, kind: HeatmapStyle) -> Layers:
    height, width = table.values.shape
    first = 0 if isinstance(table.columns[0], str) else int(table.columns[0])
    last = width if isinstance(table.columns[0], str) else int(table.columns[-1])
    axis = alt.Axis(grid=False, format="d", tickCount=6)
    frame = alt.Chart(inline_rows([{"x": first, "x2": last, "y": 0, "y2": height}])).mark_rect(opacity=0)
    picture = alt.Chart(inline_rows([{}])).mark_image(
        url=encode_data_url(kind.paint(table.values)), width=PANEL, height=kind.height, aspect=False, smooth=False
    )
    return alt.layer(
        frame.encode(
            x=alt.X("x:Q", title=kind.column, axis=axis, scale=alt.Scale(nice=False, zero=False)),
            x2="x2:Q",
            y=alt.Y("y:Q", title=kind.row, axis=axis, scale=alt.Scale(nice=False, reverse=True)),
            y2="y2:Q",
        ),
        picture.encode(x=alt.value(PANEL / 2), y=alt.value(kind.height / 2)),
        title=table.title,
    ).properties(width=PANEL, height=kind.height)
