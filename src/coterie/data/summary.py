"""Summary of a partition: samples and classes per client, as tables and as a chart."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ints
from coterie.core.survival import count_exits
from coterie.data.federation import Federation
from coterie.data.readers.files import make_missing_package_error

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PartitionSummary:
    """Counts of one federation, from its labels and indices alone: no sample is read."""

    ids: tuple[str, ...]
    classes: tuple[str, ...]
    table: Ints  # (n, C) samples of every client by class, all parts; no columns where samples have no class
    train: Ints  # (n,)
    validation: Ints
    test: Ints
    groups: Ints | None

    @classmethod
    def from_federation(cls, federation: Federation) -> "PartitionSummary":
        n, classes = len(federation), len(federation.classes) if federation.task.counts_classes else 0
        table = np.zeros(n * classes, np.int64)
        for part in federation.parts.values() if classes else ():
            owner = np.repeat(np.arange(n), part.sizes)
            table += np.bincount(owner * classes + federation.y[part.indices], minlength=n * classes)
        nothing = np.zeros(n, np.int64)
        held = federation.validation.sizes if federation.validation is not None else nothing
        return cls(
            federation.ids,
            federation.classes[:classes],
            table.reshape(n, classes),
            federation.train.sizes,
            held,
            federation.test.sizes,
            federation.groups,
        )

    def clients(self) -> "pd.DataFrame":
        """One row a client: its sizes, how many classes it holds, the class it holds most of and that class' share."""
        import pandas as pd

        total = self.table.sum(1)
        frame = pd.DataFrame({"client": self.ids, "train": self.train, "validation": self.validation, "test": self.test})
        if self.classes:
            frame["classes"] = (self.table > 0).sum(1)
            frame["most of"] = [self.classes[c] for c in self.table.argmax(1)]
            frame["its share"] = self.table.max(1) / np.maximum(total, 1)
        if self.groups is not None:
            frame.insert(1, "group", self.groups)
        return frame

    def spread(self) -> "pd.DataFrame":
        """Smallest, quartiles and largest of what clients hold."""
        counted = ["classes", "its share"] if self.classes else []
        frame = self.clients()[["train", "validation", "test", *counted]]
        names = {0.0: "smallest", 0.25: "quarter", 0.5: "median", 0.75: "three quarters", 1.0: "largest"}
        return frame.quantile(list(names)).rename(index=names)


MAX_DOTS = 60  # clients up to which each has its own column of dots
MAX_SHOWN = 1000  # clients a heat map shows at most; of more, as many evenly spaced ones
FORMATS = (".svg", ".png", ".pdf")
# Okabe and Ito's colours, which colour-blind readers can distinguish
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"]


def draw_partition(federation: Federation, path: Path) -> None:
    """Write the figure of a federation's partition; the file's ending sets the format."""
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: a figure is written as {', '.join(FORMATS)}.")
    if not federation.task.counts_classes:
        raise UserError(f"The figure of a partition shows classes, and {federation.name!r} is a {federation.task}.")
    try:
        import altair
        import vl_convert  # noqa: F401  (altair writes files with it)
    except ImportError:
        make_missing_package_error("altair vl-convert-python", "Drawing a figure")
    try:
        make_chart(altair, federation).save(str(path), scale_factor=2 if path.suffix == ".png" else 1)
    except OSError as error:
        raise UserError(f"Cannot write the figure {path} ({error.strerror}).") from error


def make_chart(alt: Any, federation: Federation) -> Any:
    """The figure as a chart, clients in the order of their group and of the class they hold most of."""
    summary = PartitionSummary.from_federation(federation)
    group = summary.groups if summary.groups is not None else np.zeros(len(summary.ids), np.int64)
    order = np.lexsort((-summary.train, summary.table.argmax(1), group))
    shown = order if len(order) <= MAX_SHOWN else order[np.linspace(0, len(order) - 1, MAX_SHOWN).astype(np.int64)]
    cells = alt.Chart(alt.Data(values=_make_cells(summary, shown)))
    by = "group, then by the class held most of" if summary.groups is not None else "the class held most of"
    some = "" if len(shown) == len(order) else f" ({len(shown)} of them, evenly spaced)"
    few = len(shown) <= MAX_DOTS
    axis = alt.Axis(labels=few, ticks=few, labelAngle=-90)
    x = alt.X("client:N", sort=[summary.ids[i] for i in shown], title=f"{len(order)} clients{some}, ordered by {by}", axis=axis)
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


def _make_cells(summary: PartitionSummary, shown: Ints) -> list[dict[str, Any]]:
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


def describe_times(federation: Federation) -> str:
    """The grid of survival times, events, censored times, and times beyond the grid."""
    whole = np.concatenate([federation.y[part.indices] for part in federation.parts.values()])
    exits, beyond = count_exits(whole, len(federation.classes)), int((whole[:, 0] > len(federation.classes)).sum())
    ends = ", ".join(f"{end:g}" for end in federation.task.grid[1:])
    words = f"survival at {ends}: {exits[0].sum():,} events, {exits[1].sum() - beyond:,} censored"
    return words + (f", {beyond:,} times beyond the grid, which count as survived" if beyond else "")
