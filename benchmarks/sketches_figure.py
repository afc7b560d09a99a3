"""Figures of the lines that `benchmarks.sketches` prints, and their table between its marks in docs/reference/leaks-measured.md."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from scipy.stats import t

from coterie.report.figure import Figure
from coterie.report.style import OKABE_ITO

DOCS = Path(__file__).resolve().parents[1] / "docs"
LINES = {
    "fedgroup": ("FedGroup", OKABE_ITO["blue"], [1, 0], "circle"),
    "fesem": ("FeSEM (at the server)", OKABE_ITO["green"], [6, 4], "square"),
    "fedsim": ("FedSim", OKABE_ITO["vermillion"], [2, 3], "triangle"),
    "inspect": ("inspect, without label counts", OKABE_ITO["purple"], [10, 3], "diamond"),
}
NAMES = {"rotated": "digits, rotated", "labelswap": "digits, labels swapped", "mnist": "MNIST, powerlaw"}
LENGTHS = {"rotated": 650, "labelswap": 650, "mnist": 7850}  # d: where all numbers are sent
SCORES = {"ari": "adjusted Rand index", "accuracy": "accuracy"}


def write_page(rows: Sequence[dict[str, Any]]) -> None:
    """Both figures, and the table."""
    frame = pd.DataFrame(rows).astype({"r": "float", "epsilon": "float", "accuracy": "float"})
    plain = frame[frame["epsilon"].isna()].copy()
    plain["at"] = plain["r"].fillna(plain["data"].map(LENGTHS))
    _figure("sketches-size", _summed(plain), "numbers a sketch has (the last: no sketch)")
    noised = frame[frame["epsilon"].notna()].copy()
    noised["at"] = noised["epsilon"]
    _figure("sketches-epsilon", _summed(noised), "epsilon at delta 1e-5, of all that a client sends for grouping")
    page = DOCS / "reference" / "leaks-measured.md"
    table = f"<!-- sketches -->\n{_table(frame)}\n<!-- /sketches -->"
    page.write_text(re.sub(r"<!-- sketches -->.*?<!-- /sketches -->", table, page.read_text(), flags=re.DOTALL))


def _summed(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds with its 95 % interval (Student's), for each score."""
    long = frame.melt(["data", "method", "at", "seed"], list(SCORES), "score").dropna(subset="value")
    made = long.groupby(["data", "method", "at", "score"])["value"].agg(["mean", "std", "count"]).reset_index()
    reach = t.ppf(0.975, made["count"] - 1) * made["std"] / np.sqrt(made["count"])
    return made.assign(low=made["mean"] - reach, high=made["mean"] + reach, line=made["method"].map(lambda name: LINES[name][0]))


def _figure(name: str, made: pd.DataFrame, below: str) -> None:
    rows = []
    for score, title in SCORES.items():
        parts = {data: made[(made["data"] == data) & (made["score"] == score)] for data in NAMES}
        panels = [_panel(part, NAMES[data], title, below if score == "accuracy" else "") for data, part in parts.items() if len(part)]
        rows.append(alt.hconcat(*panels))
    Figure(name, "", "", alt.vconcat(*rows).resolve_scale(color="shared"), several=True).save(DOCS / "figures", "svg")


def _panel(rows: pd.DataFrame, title: str, score: str, below: str) -> alt.LayerChart | alt.FacetChart:
    names, colours, dashes, shapes = (list(each) for each in zip(*LINES.values(), strict=True))
    ticks = sorted(rows["at"].unique().tolist())
    values: Any = rows.to_dict("records")
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X("at:Q", title=below or None, scale=alt.Scale(type="log", nice=False), axis=alt.Axis(values=ticks, format="~g")),
        color=alt.Color("line:N", scale=alt.Scale(domain=names, range=colours), legend=alt.Legend(columns=2)),
    )
    height = alt.Y("mean:Q", title=score, scale=alt.Scale(zero=score != "accuracy"))
    line = base.mark_line(point=False).encode(y=height, strokeDash=alt.StrokeDash("line:N", scale=alt.Scale(domain=names, range=dashes)))
    point = base.mark_point(filled=True, size=45).encode(y=height, shape=alt.Shape("line:N", scale=alt.Scale(domain=names, range=shapes)))
    interval = base.mark_rule(opacity=0.6).encode(y="low:Q", y2="high:Q")
    return alt.layer(line, interval, point).properties(width=270, height=170, title=title)


def _table(frame: pd.DataFrame) -> str:
    """What 64 numbers lose, and what is left of them at epsilon 8."""
    lines = [
        "| data | method | accuracy %, all | r = 64 | r = 256 | 64, epsilon 8 | ARI, all | r = 64 | r = 256 | 64, epsilon 8 |",
        "| --- " * 10 + "|",
    ]
    for (data, method), rows in frame.groupby(["data", "method"], sort=False):
        whole, short, longer = (rows[rows["epsilon"].isna() & same] for same in (rows["r"].isna(), rows["r"] == 64, rows["r"] == 256))
        cells = [
            _cell(part[score], factor, digits)
            for score, factor, digits in (("accuracy", 100, 1), ("ari", 1, 3))
            for part in (whole, short, longer, rows[rows["epsilon"] == 8])
        ]
        lines.append(f"| {NAMES[str(data)]} | {LINES[str(method)][0]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: "pd.Series[float]", factor: int, digits: int) -> str:
    return f"{factor * values.mean():.{digits}f}" if values.notna().any() else "–"
