"""The power curves of `coterie inspect` as a figure, from the lines that `inspect_calibration.py --power` prints."""

import json
from pathlib import Path
from typing import Any

import altair as alt
from scipy.stats import binomtest

from benchmarks.made_federations import Gaussians
from coterie.report.figure import Figure
from coterie.report.style import OKABE_ITO

PANELS = {"clients": "clients", "samples": "samples a client", "shift": "shift"}  # settings of a made federation
MIDDLE = {name: getattr(Gaussians(), name) for name in PANELS}  # what the other two are while one varies
LINES = {
    "beyond_labels": ("2: differ within classes", OKABE_ITO["orange"], [2, 3], "triangle"),
    "distinct": ("3: distinct groups", OKABE_ITO["blue"], [1, 0], "circle"),
    "right_number": ("with their right number", OKABE_ITO["vermillion"], [6, 4], "square"),
}


def power_figure(lines: Path, out: Path) -> None:
    """Share of draws with each answer, with 95 % binomial intervals (Wilson), over clients, samples and shift."""
    rows = [row for row in map(json.loads, lines.read_text().splitlines()) if isinstance(row["spec"], dict)]
    panels = [_panel(name, rows) for name in PANELS]
    figure = Figure(out.stem, "", "", alt.hconcat(*panels).resolve_scale(color="shared"), several=True)
    figure.save(out.parent, "svg")


def _panel(name: str, rows: list[dict[str, Any]]) -> alt.LayerChart | alt.FacetChart:
    here = [row for row in rows if all(row["spec"][other] == usual for other, usual in MIDDLE.items() if other != name)]
    data = [_point(row, name, answer) for row in here for answer in LINES]
    scale = alt.Scale(type="linear", nice=False) if name == "shift" else alt.Scale(type="log", nice=False)
    looks = list(zip(*LINES.values(), strict=True))
    ticks = sorted({point["at"] for point in data})
    names = alt.Scale(domain=list(looks[0]), range=list(looks[1]))
    base = alt.Chart(alt.InlineData(values=data)).encode(
        x=alt.X("at:Q", title=PANELS[name], scale=scale, axis=alt.Axis(values=ticks, format="~g", labelFlush=False)),
        color=alt.Color("answer:N", scale=names),
    )
    share = alt.Y("share:Q", title="share of draws" if name == "clients" else None, scale=alt.Scale(domain=[0, 1]))
    line = base.mark_line(point=False).encode(
        y=share, strokeDash=alt.StrokeDash("answer:N", scale=alt.Scale(domain=list(looks[0]), range=list(looks[2])))
    )
    point = base.mark_point(filled=True, size=50).encode(
        y=share, shape=alt.Shape("answer:N", scale=alt.Scale(domain=list(looks[0]), range=list(looks[3])))
    )
    interval = base.mark_rule(opacity=0.6).encode(y="low:Q", y2="high:Q")
    return alt.layer(line, interval, point).properties(width=230, height=200)


def _point(row: dict[str, Any], name: str, answer: str) -> dict[str, Any]:
    interval = binomtest(row[answer], row["seeds"]).proportion_ci(method="wilson")
    share = row[answer] / row["seeds"]
    return {"at": row["spec"][name], "answer": LINES[answer][0], "share": share, "low": interval.low, "high": interval.high}
