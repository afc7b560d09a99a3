"""Figures of a reproduction as small SVG files: ours beside theirs, and curves. Without the drawing library there are none."""

from collections.abc import Mapping
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.core.inside import write_inside
from coterie.reproduce.outcomes import StudyResult
from coterie.reproduce.reproduced import Reproduced
from coterie.reproduce.values import PartValues
from coterie.statistics import t_bands

POINTS = 30  # of a curve: more do not show
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7f7f7f", "#000000"]  # told apart by everybody


def draw_figures(outcome: Reproduced, folder: Path) -> list[str]:
    """Write what can be drawn and name the files; curves are not kept with scores, so that a drawing of them that is there stays."""
    study = outcome.study
    try:
        import altair
        import vl_convert  # noqa: F401  (altair saves SVG with it)
    except ImportError:
        return []
    charts = {study.name: _differences(altair, outcome.result), f"{study.name}-curves": _curves(altair, outcome.values)}
    written = []
    for name, chart in charts.items():
        if chart is not None:
            drawn = StringIO()
            chart.save(drawn, format="svg")
            written.append(write_inside(folder, f"{name}.svg", drawn.getvalue()).name)
        elif outcome.kept is not None and name.endswith("-curves") and (folder / f"{name}.svg").is_file():
            written.append(f"{name}.svg")
    return written


def _differences(alt: Any, result: StudyResult) -> Any:
    """Each difference with its interval, and the paper's number as a diamond."""
    rows = [
        {"claim": j.claim.says, "ours": j.ours, "low": j.low, "high": j.high, "theirs": j.claim.paper}
        for j in result.results
        if j.claim.kind == "difference" and isfinite(j.low) and j.claim.score != "server_ms"
    ]
    if not rows:
        return None
    base = alt.Chart(pd.DataFrame(rows)).encode(y=alt.Y("claim:N", sort=None, title=None, axis=alt.Axis(labelLimit=520)))
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color="#999999").encode(x="x:Q")
    title = "points: ● ours with 95 % interval, ◆ the paper"
    span = base.mark_rule(strokeWidth=2, color=COLOURS[0]).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    ours = base.mark_point(filled=True, size=60, color=COLOURS[0], opacity=1).encode(x="ours:Q")
    theirs = base.mark_point(filled=True, shape="diamond", size=70, color=COLOURS[3], opacity=1).encode(x="theirs:Q")
    return (zero + span + ours + theirs).properties(width=420, background="white")


def _curves(alt: Any, values: Mapping[str, PartValues]) -> Any:
    """Mean accuracy over rounds with a 95 % band over seeds.

    A panel for each part and a line for each method; in a study of one method, parts whose names differ in the last word share a panel.
    """
    drawn = {part: own for part, own in values.items() if len(own.rounds) > 5 and own.curves}
    alone = len({method for own in drawn.values() for method in own.curves}) == 1
    frames = []
    for part, own in drawn.items():
        panel, _, last = part.rpartition(" ") if alone else (part, "", "")
        frames += [_curve(own, method).assign(panel=panel, line=last or method) for method in own.curves]
    panels = {frame["panel"].iloc[0] for frame in frames}
    if not frames or len(panels) > 7:
        return None
    colour = alt.Color("line:N", sort=None, scale=alt.Scale(range=COLOURS), title=None, legend=alt.Legend(labelLimit=300, symbolOpacity=1))
    base = alt.Chart(pd.concat(frames)).encode(x=alt.X("round:Q", title="round"), color=colour)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="accuracy %", scale=alt.Scale(zero=False)), y2="high:Q")
    line = base.mark_line(strokeWidth=1.5).encode(y="accuracy:Q")
    panel_chart = (band + line).properties(width=300, height=200)
    faceted = panel_chart.facet(
        facet=alt.Facet("panel:N", sort=list(dict.fromkeys(f["panel"].iloc[0] for f in frames)), title=None), columns=2
    ).resolve_scale(y="independent")
    return faceted.properties(background="white")


def _curve(values: PartValues, method: str) -> pd.DataFrame:
    mean, low, high = t_bands(np.array(list(values.curves[method].values())))
    at = np.unique(np.linspace(0, len(values.rounds) - 1, POINTS).round().astype(int))
    columns = {"round": values.rounds[at], "accuracy": mean[at], "low": low[at], "high": high[at]}
    return pd.DataFrame({k: np.round(v, 2) for k, v in columns.items()})
