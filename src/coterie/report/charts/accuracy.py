"""What is compared: curves, controls, scores, significant rounds, costs and time, mean ranks; a chart for notebooks."""

import warnings
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from coterie.analysis.comparison import Comparison, compare_evidence
from coterie.analysis.costs import compute_time_curves
from coterie.analysis.roles import CONTROL_NAMES
from coterie.evidence.reader import Evidence
from coterie.report.charts.elements import (
    INTERVAL_FIELDS,
    draw_lines,
    draw_panels,
    make_measure_axis,
    make_rounds_axis,
    make_tooltip,
)
from coterie.report.federation_view import MAX_ROUNDS, FederationView, pick_evenly, to_percent
from coterie.report.figure import PANEL, Figure
from coterie.report.style import BROWN, CONTROL_DASHES, GREY, OKABE_ITO, OLIVE, SOLID, LineStyle
from coterie.run.result import Result
from coterie.statistics import Ranking

COST_AXES = {"megabytes": "megabytes sent and received", "passes": "passes over clients' data", "seconds": "server's own seconds"}


def draw_costs(view: FederationView) -> Figure:
    """Accuracy against what a run sends, computes at clients, and computes at the server."""
    findings, rows = view.findings, []
    for label in view.shown_methods:
        finding = findings.methods[label]
        own, spent = finding.scores[findings.score], finding.spending
        mean, low, high = to_percent([own.mean, own.low, own.high])
        if mean is not None:
            amounts = {"megabytes": spent.bytes_ / 1e6, "passes": spent.passes, "seconds": spent.server_seconds}
            rows.append(
                {
                    "method": view.name(label),
                    "accuracy": mean,
                    "low": low,
                    "high": high,
                    **{k: float(f"{v:.4g}") for k, v in amounts.items()},
                }
            )
    styles = [view.styles[label] for label in view.shown_methods]
    colour = alt.Color("method:N", scale=alt.Scale(domain=[style.name for style in styles], range=[style.colour for style in styles]))
    shapes = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down"]
    shape = alt.Shape(
        "method:N", scale=alt.Scale(domain=[style.name for style in styles], range=[shapes[i % len(shapes)] for i in range(len(styles))])
    )
    y = alt.Y("accuracy:Q", title=view.metric.axis, scale=alt.Scale(zero=False))
    charts = []
    for field, title in COST_AXES.items():
        x = alt.X(f"{field}:Q", title=title, axis=alt.Axis(tickCount=5, format="~s" if field == "passes" else ""))
        tooltip = [
            "method:N",
            alt.Tooltip("accuracy:Q", title=view.metric.axis),
            *(alt.Tooltip(f"{name}:Q", title=words) for name, words in COST_AXES.items()),
        ]
        rules = alt.Chart().mark_rule(strokeWidth=1.5).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour)
        points = alt.Chart().mark_point(filled=True, size=110, opacity=0.9).encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip)
        charts.append(alt.layer(rules, points).properties(width=PANEL, height=230))
    chart = alt.concat(*charts, columns=3, data=alt.InlineData(values=rows))
    note = (
        "Of a whole run, mean over runs; further up is better, further left is cheaper. Evaluation is not counted. Seconds depend on the "
        "machine."
    )
    return Figure(view.id("cost"), f"{view.metric.title} and what it costs", note, chart, several=True)


def draw_time_curves(view: FederationView) -> list[Figure]:
    """The mean score by simulated time with its 95 % band; nothing where time is not simulated."""
    records = view.findings.records
    if records.clock is None:
        return []
    moments, curves = compute_time_curves(view.findings.draws)
    rows = []
    for label in view.shown_methods:
        mean, low, high = map(to_percent, curves[label])
        for i, moment in enumerate(moments):
            if mean[i] is not None:
                point = {"method": view.name(label), "time": float(f"{moment:.4g}")}
                rows.append({**point, "accuracy": mean[i], "low": low[i], "high": high[i]})
    title = "simulated time" if records.settings.plan.speeds is not None else "time"
    styles = [view.styles[label] for label in view.shown_methods]
    x = alt.X("time:Q", title=title, scale=alt.Scale(nice=False))
    tooltip = make_tooltip("method:N", "time:Q", ("accuracy:Q", view.metric.axis), *INTERVAL_FIELDS)
    chart = draw_lines(rows, styles, x, make_measure_axis(view.metric.axis), tooltip, band=True).properties(height=320)
    note = (
        f"The same {view.metric.title} by {title}, at each moment that of the last round that was evaluated by then. A line ends where "
        "the first of its runs does. Only training and gradients take time: messages and the server take none."
    )
    return [Figure(view.id("time"), f"{view.metric.title} against time", note, chart)]


def draw_ranks(ranking: Ranking) -> Figure:
    """Mean ranks, and the critical difference from the best."""
    order = sorted(range(len(ranking.methods)), key=lambda i: ranking.ranks[i])
    names = [ranking.methods[i] for i in order]
    best = ranking.ranks[order[0]]
    rows = [{"method": ranking.methods[i], "rank": round(ranking.ranks[i], 3), "end": round(best + ranking.difference, 3)} for i in order]
    y = alt.Y("method:N", sort=names, title=None)
    scale = alt.Scale(domain=[1, max(float(len(names)), best + ranking.difference)], nice=False)
    points = (
        alt.Chart()
        .mark_point(filled=True, size=100, color=OKABE_ITO["blue"], opacity=1)
        .encode(x=alt.X("rank:Q", title="mean rank (1 is best)", scale=scale), y=y, tooltip=["method:N", "rank:Q"])
    )
    limit = alt.Chart(alt.InlineData(values=rows[:1])).mark_rule(color=GREY, strokeDash=[5, 4]).encode(x="end:Q")
    chart = alt.layer(points, limit, data=alt.InlineData(values=rows)).properties(height=alt.Step(26))
    note = (
        f"Over {ranking.federations} federations. Friedman's test: p = {ranking.p:.3g}. Methods left of the dashed line do not differ "
        f"significantly from the best (critical difference {ranking.difference:.2f})."
    )
    return Figure("ranks", "Methods ranked over the federations", note, chart)


SWITCH_HINT = "Click a name to switch it off or on."


def draw_accuracy(view: FederationView) -> list[Figure]:
    """All figures about what is compared."""
    return [draw_curves(view), *draw_controls(view)]


def draw_curves(view: FederationView) -> Figure:
    """The mean by round with its 95 % band, for methods and baselines."""
    rows = [row for label in view.shown_methods for row in _curve_rows(view, label)]
    styles = [view.styles[label] for label in view.shown_methods]
    chart = draw_lines(rows, styles, make_rounds_axis(), make_measure_axis(view.metric.axis), _round_tooltip(view), band=True).properties(
        height=360
    )
    repetitions, metric = view.findings.repetitions, view.metric
    bands = f"lines are means ({repetitions}), bands 95 % intervals over {repetitions.unit}s"
    band = bands if repetitions.runs > 1 else "one seed, so no intervals"
    over = "mean over clients, all with the same weight" if metric.is_macro else "over all clients' test samples"
    note = f"{metric.title}, {over}, after each round; {band}. {SWITCH_HINT}"
    return Figure(view.id("curves"), f"{metric.title} round by round", note, chart)


def draw_controls(view: FederationView) -> list[Figure]:
    """Each grouping method beside the same method with random and with true groups."""
    roles, rows = view.findings.roles, []
    for label, own in roles.controls.items():
        for shown in [roles.baseline, label, *own.values()]:
            kind = view.name(shown).removeprefix(f"{view.name(label)}, ") if shown in own.values() else "similar groups"
            kind = view.baseline.name if shown == roles.baseline else kind
            rows += [{**row, "panel": view.name(label), "method": kind} for row in _curve_rows(view, shown)]
    if not rows:
        return []
    known = (view.baseline.name, "similar groups", *CONTROL_NAMES.values())
    used = [kind for kind in known if any(row["method"] == kind for row in rows)]
    colours = {"similar groups": OKABE_ITO["blue"], "random groups": OKABE_ITO["orange"], "true groups": OKABE_ITO["green"]}
    colours |= {"random groups of similar sizes": OKABE_ITO["purple"], "one group": BROWN, "round-robin groups": OLIVE}
    dashes = {CONTROL_NAMES[how]: dash for how, dash in CONTROL_DASHES.items()}
    styles = [LineStyle(kind, colours.get(kind, GREY), dashes.get(kind, SOLID)) for kind in used]
    panel = draw_lines(rows, styles, make_rounds_axis(), make_measure_axis(view.metric.axis), _round_tooltip(view), band=True).properties(
        width=PANEL, height=220
    )
    chart = draw_panels(panel, [view.name(label) for label in roles.controls])
    note = (
        "The same method when similarity decides which clients share a model, when chance decides (groups of the same sizes) "
        "and, where they are known, with the true groups. If chance does as well, the gain is not from similarity."
    )
    return [Figure(view.id("controls"), "Similar groups against random ones", note, chart, several=True)]


def _round_tooltip(view: FederationView) -> list[alt.Tooltip]:
    return make_tooltip("method:N", "round:Q", ("accuracy:Q", view.metric.axis), *INTERVAL_FIELDS)


def _curve_rows(view: FederationView, label: str) -> list[dict[str, Any]]:
    center, lower, upper = view.findings.curves[label]
    if view.metric.is_share:  # a t interval knows no bounds; a share does
        lower, upper = np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)
    mean, low, high = to_percent(center), to_percent(lower), to_percent(upper)
    rounds = view.findings.rounds
    keys = ("method", "round", "accuracy", "low", "high")
    kept = [i for i in pick_evenly(len(rounds), MAX_ROUNDS) if mean[i] is not None]
    return [dict(zip(keys, (view.name(label), int(rounds[i]), mean[i], low[i], high[i]), strict=True)) for i in kept]


class OfflineChart:
    """An Altair chart that needs no network: notebooks and saved pages carry the scripts that draw it. `chart` is Altair's own."""

    def __init__(self, chart: alt.TopLevelMixin) -> None:
        self.chart = chart

    def to_dict(self) -> dict[str, Any]:
        """The chart as Vega-Lite."""
        return dict(self.chart.to_dict())

    def _repr_html_(self) -> str:
        return str(self.chart.to_html(inline=True))

    def save(self, path: Path | str) -> None:
        """Write the chart: .html (interactive, offline), .svg, .png, .pdf or .json by the file's ending."""
        if str(path).lower().endswith(".html"):
            self.chart.save(str(path), inline=True)
        else:
            self.chart.save(str(path))


def plot(found: Result | Comparison | Evidence) -> OfflineChart:
    """Draw the score round by round with its 95 % band, one chart for each federation.

    Args:
        found: What `study` or `compare` returned, or evidence from a folder.

    Returns:
        An Altair chart, which a notebook shows; `save("name.html")` writes it.

    Example:
        >>> import coterie as ct
        >>> result = ct.study("fedavg", data="synthetic(0,0,clients=10)", rounds=2)
        >>> chart = ct.plot(result)
    """
    evidence = found.evidence if isinstance(found, Result) else found
    comparison = compare_evidence([evidence]) if isinstance(evidence, Evidence) else evidence
    charts = [draw_curves(FederationView(findings)).chart.properties(title=findings.data) for findings in comparison.federations]
    if len(charts) == 1:
        return OfflineChart(charts[0])
    with warnings.catch_warnings():  # that a name is switched off in all of them at once, as it should be
        warnings.filterwarnings("ignore", message="Automatically deduplicated selection parameter")
        below: alt.VConcatChart = alt.vconcat(*charts).resolve_scale(color="independent")
    return OfflineChart(below)
