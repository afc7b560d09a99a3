"""Figures of a reproduction as small SVG files: ours beside theirs, and curves. Without the drawing library there are none."""

from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from coterie.core.inside import write_inside
from coterie.report.style import OKABE_ITO
from coterie.reproduce.apart_figure import apart_chart
from coterie.reproduce.curves_figure import curves_chart
from coterie.reproduce.reproduced import Reproduced
from coterie.reproduce.weights_figure import weights_chart
from coterie.reproduce.wording import wording_of


def draw_figures(outcome: Reproduced, folder: Path) -> list[str]:
    """Write what can be drawn and name the files."""
    study = outcome.study
    try:
        import altair
        import vl_convert  # noqa: F401  (altair saves SVG with it)
    except ImportError:
        return []
    charts = {study.name: _differences(altair, outcome)}
    charts |= {f"{study.name}-curves": curves_chart(altair, outcome), f"{study.name}-apart": apart_chart(altair, outcome)}
    charts |= {f"{study.name}-weights": weights_chart(altair, outcome)}
    written = []
    for name, chart in charts.items():
        if chart is not None:
            drawn = StringIO()
            chart.save(drawn, format="svg")
            written.append(write_inside(folder, f"{name}.svg", drawn.getvalue()).name)
    return written


def _differences(alt: Any, outcome: Reproduced) -> Any:
    """Each difference with its interval, and the paper's number, where there is a paper, as a diamond."""
    rows = [
        {"claim": j.claim.says, "ours": j.ours, "low": j.low, "high": j.high, "theirs": j.claim.paper}
        for j in outcome.result.results
        if j.claim.kind == "difference" and isfinite(j.low) and j.claim.score != "server_ms"
    ]
    if not rows:
        return None
    base = alt.Chart(pd.DataFrame(rows)).encode(y=alt.Y("claim:N", sort=None, title=None, axis=alt.Axis(labelLimit=900)))
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color="#999999").encode(x="x:Q")
    title = f"difference: ● ours with 95 % interval{wording_of(outcome.study).diamond}"
    ours, theirs = OKABE_ITO["blue"], OKABE_ITO["vermillion"]
    ends = alt.Scale(nice=False, padding=8)
    span = base.mark_rule(strokeWidth=2, color=ours).encode(x=alt.X("low:Q", title=title, scale=ends), x2="high:Q")
    mean = base.mark_point(filled=True, size=60, color=ours, opacity=1).encode(x="ours:Q")
    paper = base.mark_point(filled=True, shape="diamond", size=70, color=theirs, opacity=1).encode(x="theirs:Q")
    return (zero + span + mean + paper).properties(width=420, background="white")
