"""Tables of clients drawn as colours: rectangles that answer to the mouse while they are few, else an image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from coterie.core.arrays import Array
from coterie.report.charts.common import Layers, inline, told
from coterie.report.figure import PANEL
from coterie.report.raster import data_url

CELLS, ROWS = 2500, 100  # rectangles in one panel at most, and rows: less than 3 pixels is nothing to point at


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
    show: Callable[[Any], Any]  # a value as the reader is told it, and as `colour` takes it
    height: int = 300


def heatmaps(tables: Sequence[Heatmap], kind: HeatmapStyle) -> alt.ConcatChart:
    """The tables side by side."""
    small = all(table.values.size <= CELLS and len(table.rows) <= ROWS for table in tables)
    panels = [_cells(table, kind) if small else _image(table, kind) for table in tables]
    chart: alt.ConcatChart = alt.concat(*panels, columns=3).resolve_scale(x="independent", y="independent")
    return chart


def _cells(table: Heatmap, kind: HeatmapStyle) -> alt.Chart:
    data = [
        {"row": row, "column": column, "value": kind.show(table.values[i, j])}
        for i, row in enumerate(table.rows)
        for j, column in enumerate(table.columns)
    ]
    numbered = not isinstance(table.columns[0], str)
    every = max(1, len(table.columns) // 8)
    ticks = [float(column) for column in table.columns if numbered and int(column) % every == 0]
    chart: alt.Chart = (
        alt.Chart(inline(data), title=table.title)
        .mark_rect()
        .encode(
            x=alt.X("column:O", sort=None, title=kind.column, axis=alt.Axis(labels=numbered, ticks=numbered, labelAngle=0, values=ticks)),
            y=alt.Y("row:O", sort=None, title=kind.row, axis=alt.Axis(labels=False, ticks=False)),
            color=kind.colour,
            tooltip=told(("row:N", "client"), ("column:N", kind.column.removesuffix("s")), ("value:N", kind.value)),
        )
        .properties(width=PANEL, height=kind.height)
    )
    return chart


def _image(table: Heatmap, kind: HeatmapStyle) -> Layers:
    height, width = table.values.shape
    first = 0 if isinstance(table.columns[0], str) else int(table.columns[0])
    last = width if isinstance(table.columns[0], str) else int(table.columns[-1])
    axis = alt.Axis(grid=False, format="d", tickCount=6)
    frame = alt.Chart(inline([{"x": first, "x2": last, "y": 0, "y2": height}])).mark_rect(opacity=0)
    picture = alt.Chart(inline([{}])).mark_image(
        url=data_url(kind.paint(table.values)), width=PANEL, height=kind.height, aspect=False, smooth=False
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
