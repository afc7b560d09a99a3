"""A partition drawn: a dot for each client and class while that can be read, a heat map beyond."""

from pathlib import Path
from typing import Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ints
from coterie.data.federation import Federation
from coterie.data.files import missing_package
from coterie.data.summary import Summary

DOTS = 60  # clients up to which each has its own column of dots
SHOWN = 1000  # clients a heat map shows at most; of more, as many evenly spaced ones
FORMATS = (".svg", ".png", ".pdf")
# Okabe and Ito's colours, which colour-blind readers can tell apart
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"]


def draw_partition(federation: Federation, path: Path) -> None:
    """Write the figure of a federation's partition; the file's ending says in which format."""
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: a figure is written as {', '.join(FORMATS)}.")
    if not federation.task.counts_classes:
        raise UserError(f"The figure of a partition shows classes, and {federation.name!r} is a {federation.task}.")
    try:
        import altair
        import vl_convert  # noqa: F401  (altair writes files with it)
    except ImportError:
        missing_package("altair vl-convert-python", "Drawing a figure")
    try:
        chart(altair, federation).save(str(path), scale_factor=2 if path.suffix == ".png" else 1)
    except OSError as error:
        raise UserError(f"Cannot write the figure {path} ({error.strerror}).") from error


def chart(alt: Any, federation: Federation) -> Any:
    """The figure as a chart, clients in the order of their group and of the class they hold most of."""
    summary = Summary.of(federation)
    order = _order(summary)
    shown = order if len(order) <= SHOWN else order[np.linspace(0, len(order) - 1, SHOWN).astype(np.int64)]
    cells = alt.Chart(alt.Data(values=_cells(summary, shown)))
    few = len(shown) <= DOTS
    axis = alt.Axis(labels=few, ticks=few, labelAngle=-90)
    x = alt.X("client:N", sort=[summary.ids[i] for i in shown], title=_clients_title(summary, shown), axis=axis)
    y = alt.Y("class:N", sort=list(summary.classes), title="class")
    if few:
        size = alt.Size("samples:Q", title="samples", scale=alt.Scale(range=[8, 220]))
        colour = (
            alt.Color("group:N", title="true group", scale=alt.Scale(range=COLOURS))
            if summary.groups is not None
            else alt.value(COLOURS[0])
        )
        marks = cells.mark_circle(opacity=0.9).encode(x=x, y=y, size=size, color=colour)
    else:
        colour = alt.Color("share:Q", title="share of the client's samples", scale=alt.Scale(scheme="viridis", domain=[0, 1]))
        marks = cells.mark_rect().encode(x=x, y=y, color=colour)
    width, height = max(320, min(900, 18 * len(shown))), max(140, min(600, 18 * len(summary.classes)))
    return marks.properties(title=federation.name, width=width, height=height)


def _order(summary: Summary) -> Ints:
    group = summary.groups if summary.groups is not None else np.zeros(len(summary.ids), np.int64)
    return np.lexsort((-summary.train, summary.table.argmax(1), group))


def _cells(summary: Summary, shown: Ints) -> list[dict[str, Any]]:
    total = summary.table.sum(1)
    return [
        {
            "client": summary.ids[i],
            "class": summary.classes[c],
            "samples": int(summary.table[i, c]),
            "share": float(summary.table[i, c] / total[i]),
            "group": int(summary.groups[i]) if summary.groups is not None else 0,
        }
        for i in shown
        for c in np.flatnonzero(summary.table[i])
    ]


def _clients_title(summary: Summary, shown: Ints) -> str:
    by = "group, then by the class held most of" if summary.groups is not None else "the class held most of"
    some = "" if len(shown) == len(summary.ids) else f" ({len(shown)} of them, evenly spaced)"
    return f"{len(summary.ids)} clients{some}, ordered by {by}"
