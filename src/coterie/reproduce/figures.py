"""Figures of a reproduction as small SVG files: differences with intervals, curves, and weights. Without Altair there are none.

One symbol, one meaning, as in the report: a filled circle is the paper's own row, a filled square a variant of it, a cross a row that
cannot be compared, a diamond the paper's number; what is hollow is a control.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from io import StringIO
from math import isfinite
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from coterie._util.files import write_inside
from coterie.analysis.class_scores import F1_SCORES
from coterie.analysis.metrics import SCORES
from coterie.core.arrays import Doubles
from coterie.report.style import BROWN, GREY, METHOD_ORDER, METHODS, OKABE_ITO, OLIVE, SLATE, pick_distinct_colours
from coterie.reproduce.claims import ClaimResult
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.result_files import select_rounds, select_rows
from coterie.reproduce.study_files import DIFFERENCES, load_study_code
from coterie.reproduce.values import ASSIGNED_SCORE, PartValues
from coterie.statistics import compute_t_bands

METHOD_COLOURS = {
    **{name.lower(): colour for name, colour in zip(METHOD_ORDER, METHODS, strict=False)},
    "fedavg": GREY,
    "fedavg(weighting=uniform)": BROWN,
    "local": OLIVE,
    "finetune": SLATE,
}
OTHER_COLOURS = tuple(OKABE_ITO[name] for name in ("black", "yellow"))
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
    colour = colour_by_line(alt, data, set(data["line"]))
    base = alt.Chart(data).encode(x=alt.X("round:Q", title="round", scale=ends), color=colour)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="accuracy %", scale=ends), y2="high:Q")
    line = base.mark_line(strokeWidth=1.5).encode(y="accuracy:Q", strokeDash=dash)
    return arrange_panels(alt, band + line, data)


def assign_colours(panels: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By line: a method's own colour, unless another line of a panel has it; the rest as far from these as possible."""
    colours: dict[str, str] = {}
    lines = list(dict.fromkeys(line for panel in panels.values() for line in panel))
    for line in lines:
        beside = {colours.get(other) for panel in panels.values() if line in panel for other in panel}
        own = METHOD_COLOURS.get(get_method(line))
        if own is not None and own not in beside:
            colours[line] = own
    others = iter(pick_distinct_colours(len(lines) - len(colours), OTHER_COLOURS, tuple(METHOD_COLOURS.values())))
    return {line: colours.get(line) or next(others) for line in lines}


def get_method(row: str) -> str:
    """Whose colour a row has: the name of its method, of FedAvg with its way of weighting, or 'finetune'."""
    spec = row.partition(" | ")[0]
    if "+finetune" in spec:
        return "finetune"
    return spec if spec in METHOD_COLOURS else spec.partition("(")[0].partition("+")[0]


def colour_by_line(alt: Any, curves: pd.DataFrame, drawn: Collection[str]) -> Any:
    """A colour for each line of the curves, in all figures of a study the same, and a legend of those that are drawn."""
    colours = assign_colours({str(panel): list(dict.fromkeys(own["line"])) for panel, own in curves.groupby("panel", sort=False)})
    named = [line for line in colours if line in drawn]
    legend = alt.Legend(values=named, labelLimit=300, symbolOpacity=1, symbolStrokeWidth=3)
    return alt.Color("line:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), title=None, legend=legend)


def arrange_panels(alt: Any, layers: Any, data: pd.DataFrame) -> Any:
    """A panel for each `panel` of the data, two in a row, with axes of their own."""
    header = alt.Header(labelFontSize=11, labelFontWeight="bold", labelLimit=380)
    facet = alt.Facet("panel:N", sort=list(dict.fromkeys(data["panel"])), title=None, header=header)
    panels = layers.properties(width=300, height=200).facet(facet=facet, columns=2)
    return panels.resolve_scale(x="independent", y="independent").properties(background="white")


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
        color=colour_by_line(alt, pd.concat(_curve_frames(outcome)), set(data["line"])),
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
    charts = {study.name: draw_claims(altair, outcome, outcome.result.claims)}
    charts |= {f"{study.name}-controls": draw_claims(altair, outcome, outcome.result.controls)}
    charts |= {f"{study.name}-curves": draw_curves(altair, outcome), f"{study.name}-apart": draw_differences(altair, outcome)}
    if any(values.weights for values in outcome.values.values()):
        charts |= {f"{study.name}-weights": load_study_code("simprox_figures").draw_weights(altair, outcome)}
    written = []
    for name, chart in charts.items():
        if chart is not None:
            written.append(write_inside(folder, f"{name}.svg", render_svg(chart)).name)
    return written


# What is drawn in black on white turns around where the reader's screen is dark; methods' colours are visible on both.
DARK_STYLE = """<style>@media (prefers-color-scheme: dark) {
svg > rect, [fill="white"] { fill: #111111 }
text[fill="#000"], text[fill="black"] { fill: #E6E6E6 }
path[fill="#000000"] { fill: #E6E6E6 }
[stroke="#000000"] { stroke: #E6E6E6 }
[fill="#333333"], [fill="#555555"] { fill: #BBBBBB }
[stroke="#333333"], [stroke="#555555"], [stroke="#666666"] { stroke: #BBBBBB }
[stroke="#ddd"] { stroke: #3A3A3A }
}</style>"""


def render_svg(chart: Any) -> str:
    """A chart with a white background, as a file that is dark on a dark screen."""
    drawn = StringIO()
    chart.save(drawn, format="svg")
    head, end, rest = drawn.getvalue().partition(">")
    return f"{head}{end}{DARK_STYLE}{rest}"


LABEL_WIDTH, LABEL_LINES = 84, 2  # characters of a line, and lines at most
UNITS = {
    "points": "difference (points)",
    "rounds": "% of rounds",
    "final": "% accuracy after the last round",
    "mean": "% accuracy, mean over rounds",
    "max": "highest % accuracy of any round",
    "median": "median % accuracy over rounds",
    "overlap": "points of label overlap",
    "gathered": "% in one cluster",
    "flatness": "largest over smallest weight",
    "by_samples": "slope of weights on samples",
    "round_ratio": "time of a round over FedAvg's",
    "r2": "R²",
    "ari": "ARI",
    "difference of literal": "difference of PNI as printed",
    "difference of normalised": "difference of PNI, normalised",
}
LIKELIHOODS = "difference (hundredths of a nat)"  # of texts, in place of points


def has_texts(outcome: ReproductionResult) -> bool:
    """Whether scores are log-likelihoods of texts, since no part trains anything else."""
    models = [run.settings.model for run in outcome.runs if run.part.measure == "training" and run.settings is not None]
    return bool(models) and all(model.partition("(")[0] == "lm" for model in models)


def draw_claims(alt: Any, outcome: ReproductionResult, results: Sequence[ClaimResult]) -> Any:
    """A row for each claim, in a panel for each unit: ours with its interval, and the paper's number or bound."""
    has_paper = outcome.study.has_paper
    rows = [_make_claim_row(one, choose_mark(one, has_paper)) for one in results if isfinite(one.ours) and one.claim.score != "server_ms"]
    units = list(dict.fromkeys(row["unit"] for row in rows))
    titles = UNITS | {"points": LIKELIHOODS} if has_texts(outcome) else UNITS
    panels = [
        _draw_claim_panel(alt, pd.DataFrame([row for row in rows if row["unit"] == unit]), titles.get(unit, unit.replace("_", " ")))
        for unit in units
    ]
    if not panels:
        return None
    title = alt.TitleParams(_describe_marks(rows), fontSize=11, fontWeight="normal", anchor="start", offset=8)
    return alt.vconcat(*panels, title=title, background="white")


CROSS = "M-.8,-.8L.8,.8M.8,-.8L-.8,.8"
MARKS = {  # shape, whether it is filled, and the sign that describes it
    "as printed": ("circle", True, "●"),
    "variant": ("square", True, "■"),
    "not comparable": (CROSS, False, "×"),
    "found": ("circle", True, "●"),
    "control": ("circle", False, "○"),
}


def choose_mark(one: ClaimResult, has_paper: bool = True) -> str:
    """What a result is drawn as: a key of MARKS."""
    if one.outcome == "not comparable":
        return "not comparable"
    if one.claim.control:
        return "control"
    return "found" if not has_paper else "variant" if one.variant else "as printed"


def _describe_marks(rows: Sequence[Mapping[str, Any]]) -> str:
    drawn = {row["mark"] for row in rows}
    signs = ", ".join(f"{sign} {name}" for name, (_, _, sign) in MARKS.items() if name in drawn)
    theirs = "; ◆ the paper's number (triangle: its bound)"
    if not drawn - {"found", "control"}:
        theirs = "; ◆ or triangle: the number or bound of the test" if any(row["theirs"] is not None for row in rows) else ""
    tolerance = "; grey bar: the tolerance" if any(row["least"] is not None for row in rows) else ""
    return f"{signs}, with 95 % interval{theirs}{tolerance}"


def _make_claim_row(one: ClaimResult, mark: str) -> dict[str, Any]:
    claim = one.claim
    unit = "rounds" if claim.kind == "rounds" else claim.score
    if claim.kind in DIFFERENCES and (
        SCORES[claim.score].percent if claim.score in SCORES else claim.score in (*F1_SCORES, ASSIGNED_SCORE)
    ):
        unit = "points"
    elif claim.kind in DIFFERENCES:
        unit = f"difference of {claim.score}"
    shape = {"at_least": "triangle-right", "rounds": "triangle-right", "at_most": "triangle-left"}.get(claim.kind, "diamond")
    label = "\n".join(wrap(claim.label, LABEL_WIDTH, max_lines=LABEL_LINES, placeholder=" …"))
    colour = METHOD_COLOURS.get(get_method(claim.one), OKABE_ITO["black"])
    symbol, is_filled, _ = MARKS[mark]
    ours = {"ours": one.ours, "low": one.low, "high": one.high, "mark": mark, "symbol": symbol, "inside": colour if is_filled else "white"}
    least, most = claim.tolerated or (None, None)
    return {"claim": label, "unit": unit, "theirs": claim.paper, "shape": shape, "colour": colour, "least": least, "most": most, **ours}


def _draw_claim_panel(alt: Any, data: pd.DataFrame, title: str) -> Any:
    labels = alt.Axis(labelLimit=600, labelExpr="split(datum.label, '\\n')", labelFontSize=10)
    base = alt.Chart(data).encode(y=alt.Y("claim:N", sort=None, title=None, axis=labels))
    zero = alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(color="#999999").encode(x="x:Q")
    x = alt.X("low:Q", title=title, scale=alt.Scale(nice=False, padding=8, zero=False))
    span = base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q", color=alt.Color("colour:N", scale=None))
    mean = base.mark_point(size=60, opacity=1, strokeWidth=2).encode(
        x="ours:Q",
        shape=alt.Shape("symbol:N", scale=None),
        stroke=alt.Stroke("colour:N", scale=None),
        fill=alt.Fill("inside:N", scale=None),
    )
    paper = base.mark_point(filled=True, size=70, color="#555555", opacity=1).encode(x="theirs:Q", shape=alt.Shape("shape:N", scale=None))
    tolerance = base.mark_rule(strokeWidth=12, color="#999999", opacity=0.3).encode(x="least:Q", x2="most:Q")
    layers = [zero] if title.startswith("difference") else []
    layers += [tolerance] if data["least"].notna().any() else []
    return alt.layer(*layers, span, mean, paper).properties(width=420, height=alt.Step(30))
