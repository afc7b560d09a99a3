"""Figures of a reproduction as small SVG files: differences with intervals, curves, and weights. Without Altair there are none."""

from collections.abc import Collection, Iterator, Sequence
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie._util.files import write_inside
from coterie.core.arrays import Doubles
from coterie.report.style import OKABE_ITO, pick_method_colours
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.result_files import select_rounds, select_rows
from coterie.reproduce.study_files import load_study_code
from coterie.reproduce.values import PartValues
from coterie.statistics import compute_t_bands

SOURCE_DASHES = {"ours": [1, 0], "the paper's": [6, 4]}  # dashes


def draw_curves(alt: Any, outcome: ReproductionResult) -> Any:
    """All rows of all parts that have curves, ours with a 95 % band over seeds where single seeds are known; None where no part has any.

    In a study of one method, parts whose names differ in the last word share a panel. Axes end where the data end.
    """
    frames = list(_curve_frames(outcome))
    if not frames:
        return None
    data = pd.concat(frames)
    whose = [name for name in SOURCE_DASHES if name in set(data["whose"])]
    dashes = alt.Scale(domain=whose, range=[SOURCE_DASHES[name] for name in whose])
    long = alt.Legend(symbolSize=900, symbolStrokeWidth=2)  # long enough for a dash and its gap to be seen
    dash = alt.StrokeDash("whose:N", scale=dashes, title=None, legend=long if len(whose) > 1 else None)
    ends = alt.Scale(nice=False, zero=False)
    lines = list(dict.fromkeys(data["line"]))
    colour = colour_by_line(alt, lines, lines)
    base = alt.Chart(data).encode(x=alt.X("round:Q", title="round", scale=ends), color=colour)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="accuracy %", scale=ends), y2="high:Q")
    line = base.mark_line(strokeWidth=1.5).encode(y="accuracy:Q", strokeDash=dash)
    return arrange_panels(alt, band + line, data)


def colour_by_line(alt: Any, lines: Sequence[str], drawn: Collection[str]) -> Any:
    """A colour for each line, in all figures of a study the same, and a legend of those that are drawn."""
    scale = alt.Scale(domain=list(lines), range=list(pick_method_colours(lines).values()))
    named = [line for line in lines if line in drawn]
    legend = alt.Legend(values=named, labelLimit=300, symbolOpacity=1, symbolStrokeWidth=3)
    return alt.Color("line:N", scale=scale, title=None, legend=legend)


def arrange_panels(alt: Any, layers: Any, data: pd.DataFrame) -> Any:
    """A panel for each `panel` of the data, two in a row, with axes of their own."""
    header = alt.Header(labelFontSize=11, labelFontWeight="bold", labelLimit=380)
    facet = alt.Facet("panel:N", sort=list(dict.fromkeys(data["panel"])), title=None, header=header)
    panels = layers.properties(width=300, height=200).facet(facet=facet, columns=2)
    return panels.resolve_scale(x="independent", y="independent").properties(background="white")


def list_lines(outcome: ReproductionResult) -> list[str]:
    """Every line of the curves' figure, in its order."""
    return list(dict.fromkeys(line for frame in _curve_frames(outcome) for line in frame["line"]))


def _curve_frames(outcome: ReproductionResult) -> Iterator[pd.DataFrame]:
    drawn = {run.part.name: run for run in outcome.runs if select_rows(outcome.study, run, outcome.values[run.part.name])}
    rows = {name: select_rows(outcome.study, run, outcome.values[name]) for name, run in drawn.items()}
    alone = len({row for found in rows.values() for row in found}) == 1
    for name, run in drawn.items():
        whole = name if run.settings is None else f"{name}: {run.settings.data}, {run.settings.model}"
        panel, _, last = name.rpartition(" ") if alone else (whole, "", "")
        panel = panel.rstrip(", ") or outcome.study.title
        for row in rows[name]:
            yield from (frame.assign(panel=panel, line=last or row) for frame in _list_row_lines(outcome.values[name], row))


def _list_row_lines(values: PartValues, row: str) -> Iterator[pd.DataFrame]:
    """Ours, and the paper's where it is known."""
    if row in values.curves:
        mean, low, high = compute_t_bands(np.array(list(values.curves[row].values())))
        at = select_rounds(len(values.rounds))
        yield _make_frame("ours", values.rounds[at], mean[at], low[at], high[at])
    elif row in values.means:
        yield _make_frame("ours", *values.means[row])
    if row in values.theirs:
        yield _make_frame("the paper's", *values.theirs[row])


def _make_frame(whose: str, *columns: Any) -> pd.DataFrame:
    rounds, mean = columns[:2]
    low, high = columns[2:] or (mean, mean)
    numbers = {"accuracy": mean, "low": low, "high": high}
    return pd.DataFrame({"round": rounds, **{name: np.round(found, 2) for name, found in numbers.items()}, "whose": whose})


LINE_WIDTH = 0.02  # of a panel's height: nearer curves hide each other


def draw_differences(alt: Any, outcome: ReproductionResult) -> Any:
    """A panel for each part with hidden curves, a line with a 95 % band for each row but the first; None where all can be seen."""
    frames = list(_difference_frames(outcome))
    if not frames:
        return None
    data = pd.concat(frames)
    y = alt.Y("ahead:Q", title="points ahead", scale=alt.Scale(nice=False, zero=False))
    base = alt.Chart(data).encode(
        x=alt.X("round:Q", title="round", scale=alt.Scale(nice=False, zero=False)),
        color=colour_by_line(alt, list_lines(outcome), set(data["line"])),
    )
    band = base.mark_area(opacity=0.12).encode(y=alt.Y("low:Q", title="points ahead", scale=alt.Scale(nice=False)), y2="high:Q")
    zero = alt.Chart(data).mark_rule(color="#999999", strokeDash=[2, 2]).encode(y=alt.datum(0))
    return arrange_panels(alt, zero + band + base.mark_line(strokeWidth=1.5).encode(y=y), data)


def has_hidden_lines(curves: Doubles) -> bool:
    """Whether half of these lines (lines, rounds) lie, on the average, no further from another than the stroke that draws them."""
    span = float(curves.max() - curves.min())
    gaps = np.abs(curves[:, None] - curves[None]).mean(axis=2) + np.where(np.eye(len(curves), dtype=bool), np.inf, 0.0)
    return span == 0 or bool(np.median(gaps.min(axis=1)) < LINE_WIDTH * span)


def _difference_frames(outcome: ReproductionResult) -> Iterator[pd.DataFrame]:
    for run in outcome.runs:
        values = outcome.values[run.part.name]
        rows = [row for row in select_rows(outcome.study, run, values) if row in values.curves]
        if len(rows) > 1 and has_hidden_lines(np.array([np.mean(list(values.curves[row].values()), axis=0) for row in rows])):
            first, *others = rows
            panel = f"{run.part.name}: minus {first}"
            yield from (_points_ahead(values, row, first).assign(panel=panel, line=row) for row in others)


def _points_ahead(values: PartValues, row: str, first: str) -> pd.DataFrame:
    one, two = values.curves[row], values.curves[first]
    mean, low, high = compute_t_bands(np.array([one[seed] - two[seed] for seed in one if seed in two]))
    at = select_rounds(len(values.rounds))
    numbers = {"ahead": mean[at], "low": low[at], "high": high[at]}
    return pd.DataFrame({"round": values.rounds[at], **{name: np.round(found, 3) for name, found in numbers.items()}})


def draw_figures(outcome: ReproductionResult, folder: Path) -> list[str]:
    """Write what can be drawn and name the files."""
    study = outcome.study
    try:
        import altair
        import vl_convert  # noqa: F401  (altair saves SVG with it)
    except ImportError:
        return []
    charts = {study.name: _draw_claims(altair, outcome)}
    charts |= {f"{study.name}-curves": draw_curves(altair, outcome), f"{study.name}-apart": draw_differences(altair, outcome)}
    if any(values.weights for values in outcome.values.values()):
        charts |= {f"{study.name}-weights": load_study_code("simprox_figures").draw_weights(altair, outcome)}
    written = []
    for name, chart in charts.items():
        if chart is not None:
            drawn = StringIO()
            chart.save(drawn, format="svg")
            written.append(write_inside(folder, f"{name}.svg", drawn.getvalue()).name)
    return written


def _draw_claims(alt: Any, outcome: ReproductionResult) -> Any:
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
    title = "difference: ● ours with 95 % interval" + (", ◆ the paper" if outcome.study.has_paper else "")
    ours, theirs = OKABE_ITO["blue"], OKABE_ITO["vermillion"]
    ends = alt.Scale(nice=False, padding=8)
    span = base.mark_rule(strokeWidth=2, color=ours).encode(x=alt.X("low:Q", title=title, scale=ends), x2="high:Q")
    mean = base.mark_point(filled=True, size=60, color=ours, opacity=1).encode(x="ours:Q")
    paper = base.mark_point(filled=True, shape="diamond", size=70, color=theirs, opacity=1).encode(x="theirs:Q")
    return (zero + span + mean + paper).properties(width=420, background="white")
