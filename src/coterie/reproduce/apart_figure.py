"""Points ahead of the first row over rounds, paired by seed: for parts whose curves lie so near to each other that they hide each other."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from coterie.core.arrays import Doubles
from coterie.reproduce.curve_files import kept_rounds
from coterie.reproduce.curves_figure import all_lines, by_line, drawn_rows, in_panels
from coterie.reproduce.reproduced import Reproduced
from coterie.reproduce.values import PartValues
from coterie.statistics import t_bands

A_LINE = 0.02  # of a panel's height: nearer curves cannot be told apart


def apart_chart(alt: Any, outcome: Reproduced) -> Any:
    """A panel for each part with hidden curves, a line with a 95 % band for each row but the first; None where all can be seen."""
    frames = list(_frames(outcome))
    if not frames:
        return None
    data = pd.concat(frames)
    y = alt.Y("ahead:Q", title="points ahead", scale=alt.Scale(nice=False, zero=False))
    base = alt.Chart(data).encode(
        x=alt.X("round:Q", title="round", scale=alt.Scale(nice=False, zero=False)),
        color=by_line(alt, all_lines(outcome), set(data["line"])),
    )
    band = base.mark_area(opacity=0.12).encode(y=alt.Y("low:Q", title="points ahead", scale=alt.Scale(nice=False)), y2="high:Q")
    zero = alt.Chart(data).mark_rule(color="#999999", strokeDash=[2, 2]).encode(y=alt.datum(0))
    return in_panels(alt, zero + band + base.mark_line(strokeWidth=1.5).encode(y=y), data)


def hide_each_other(curves: Doubles) -> bool:
    """Whether half of these lines (lines, rounds) lie, on the average, no further from another than the stroke that draws them."""
    span = float(curves.max() - curves.min())
    gaps = np.abs(curves[:, None] - curves[None]).mean(axis=2) + np.where(np.eye(len(curves), dtype=bool), np.inf, 0.0)
    return span == 0 or bool(np.median(gaps.min(axis=1)) < A_LINE * span)


def _frames(outcome: Reproduced) -> Iterator[pd.DataFrame]:
    for run in outcome.runs:
        values = outcome.values[run.part.name]
        rows = [row for row in drawn_rows(outcome.study, run, values) if row in values.curves]
        if len(rows) > 1 and hide_each_other(np.array([_mean(values, row) for row in rows])):
            first, *others = rows
            panel = f"{run.part.name}: minus {first}"
            yield from (_ahead(values, row, first).assign(panel=panel, line=row) for row in others)


def _mean(values: PartValues, row: str) -> Doubles:
    mean: Doubles = np.mean(list(values.curves[row].values()), axis=0)
    return mean


def _ahead(values: PartValues, row: str, first: str) -> pd.DataFrame:
    one, two = values.curves[row], values.curves[first]
    mean, low, high = t_bands(np.array([one[seed] - two[seed] for seed in one if seed in two]))
    at = kept_rounds(len(values.rounds))
    numbers = {"ahead": mean[at], "low": low[at], "high": high[at]}
    return pd.DataFrame({"round": values.rounds[at], **{name: np.round(found, 3) for name, found in numbers.items()}})
