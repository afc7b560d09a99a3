"""What is compared: curves, controls, scores, significant rounds, costs and time, mean ranks; a chart for notebooks."""

import warnings
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from coterie.analysis.comparison import Comparison, compare_evidence
from coterie.analysis.costs import compute_time_curves
from coterie.analysis.metrics import ACCURACY, Measure
from coterie.analysis.verdict import describe_score
from coterie.evidence.reader import Evidence
from coterie.report.charts.elements import (
    INTERVAL_FIELDS,
    draw_lines,
    draw_panels,
    inline_rows,
    make_measure_axis,
    make_rounds_axis,
    make_tooltip,
)
from coterie.report.federation_view import MAX_ROUNDS, FederationView, pick_evenly, to_percent
from coterie.report.figure import PANEL, Figure
from coterie.report.style import BROWN, CONTROLS, GREY, OKABE_ITO, OLIVE, SOLID, LineStyle, make_scales
from coterie.statistics import Ranking

COST_AXES = {"megabytes": "megabytes sent and received", "passes": "passes over clients' data", "seconds": "server's own seconds"}


def draw_costs(subject: FederationView) -> Figure:
    """Accuracy against what a run sends, computes at clients, and computes at the server."""
    findings, rows = subject.findings, []
    for label in subject.shown:
        finding = findings.methods[label]
        own, spent = finding.scores[findings.score], finding.spending
        mean, low, high = to_percent([own.mean, own.low, own.high])
        if mean is not None:
            amounts = {"megabytes": spent.bytes_ / 1e6, "passes": spent.passes, "seconds": spent.server_seconds}
            rows.append(
                {
                    "method": subject.name(label),
                    "accuracy": mean,
                    "low": low,
                    "high": high,
                    **{k: float(f"{v:.4g}") for k, v in amounts.items()},
                }
            )
    styles = [subject.styles[label] for label in subject.shown]
    colour = alt.Color("method:N", scale=alt.Scale(domain=[style.name for style in styles], range=[style.colour for style in styles]))
    shapes = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down"]
    shape = alt.Shape(
        "method:N", scale=alt.Scale(domain=[style.name for style in styles], range=[shapes[i % len(shapes)] for i in range(len(styles))])
    )
    y = alt.Y("accuracy:Q", title=subject.measure.axis, scale=alt.Scale(zero=False))
    charts = []
    for field, title in COST_AXES.items():
        x = alt.X(f"{field}:Q", title=title, axis=alt.Axis(tickCount=5, format="~s" if field == "passes" else ""))
        told = [
            "method:N",
            alt.Tooltip("accuracy:Q", title=subject.measure.axis),
            *(alt.Tooltip(f"{name}:Q", title=words) for name, words in COST_AXES.items()),
        ]
        rules = alt.Chart().mark_rule(strokeWidth=1.5).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour)
        points = alt.Chart().mark_point(filled=True, size=110, opacity=0.9).encode(x=x, y=y, color=colour, shape=shape, tooltip=told)
        charts.append(alt.layer(rules, points).properties(width=PANEL, height=230))
    chart = alt.concat(*charts, columns=3, data=alt.InlineData(values=rows))
    note = (
        "Of a whole run, mean over runs; further up is better, further left is cheaper. Evaluation is not counted. Seconds depend on the "
        "machine."
    )
    return Figure(subject.id("cost"), f"{subject.measure.title} and what it costs", note, chart, several=True)


def draw_time_curves(subject: FederationView) -> list[Figure]:
    """The mean score by simulated time with its 95 % band; nothing where time is not simulated."""
    records = subject.findings.records
    if records.clock is None:
        return []
    moments, curves = compute_time_curves(subject.findings.draws)
    rows = []
    for label in subject.shown:
        mean, low, high = map(to_percent, curves[label])
        for i, moment in enumerate(moments):
            if mean[i] is not None:
                point = {"method": subject.name(label), "time": float(f"{moment:.4g}")}
                rows.append({**point, "accuracy": mean[i], "low": low[i], "high": high[i]})
    title = "simulated time" if records.settings.plan.speeds is not None else "time"
    styles = [subject.styles[label] for label in subject.shown]
    x = alt.X("time:Q", title=title, scale=alt.Scale(nice=False))
    tooltip = make_tooltip("method:N", "time:Q", ("accuracy:Q", subject.measure.axis), *INTERVAL_FIELDS)
    chart = draw_lines(rows, styles, x, make_measure_axis(subject.measure.axis), tooltip, band=True).properties(height=320)
    note = (
        f"The same {subject.measure.title} by {title}, at each moment that of the last round that was evaluated by then. A line ends where "
        "the first of its runs does. Only training and gradients take time: messages and the server take none."
    )
    return [Figure(subject.id("time"), f"{subject.measure.title} against time", note, chart)]


def draw_ranks(ranking: Ranking) -> Figure:
    """Mean ranks, and bars over the methods that cannot be told apart."""
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
        f"Over {ranking.federations} federations. Friedman's test: p = {ranking.p:.3g}. Methods left of the dashed line cannot be told "
        f"apart from the best (critical difference {ranking.difference:.2f})."
    )
    return Figure("ranks", "Methods ranked over the federations", note, chart)


SWITCH_HINT = "Click a name to switch it off or on."


def draw_accuracy(subject: FederationView) -> list[Figure]:
    """All figures about what is compared."""
    return [draw_curves(subject), *draw_controls(subject), draw_scores(subject), *draw_significance(subject)]


def draw_curves(subject: FederationView) -> Figure:
    """The mean by round with its 95 % band, for methods and baselines."""
    rows = [row for label in subject.shown for row in _curve_rows(subject, label)]
    styles = [subject.styles[label] for label in subject.shown]
    chart = draw_lines(
        rows, styles, make_rounds_axis(), make_measure_axis(subject.measure.axis), _round_tooltip(subject), band=True
    ).properties(height=360)
    again = subject.findings.repetitions
    over = "draws" if again.several_draws else "seeds"
    band = f"lines are means of {again}, bands 95 % intervals over {over}" if again.runs > 1 else "one seed, so no intervals"
    measure = subject.measure
    what = (
        "Share of all clients' test samples that are answered rightly"
        if measure is ACCURACY
        else f"{measure.title}, {describe_mean(measure)}"
    )
    note = f"{what}, after each round; {band}. {SWITCH_HINT}"
    return Figure(subject.id("curves"), f"{measure.title} round by round", note, chart)


def describe_mean(measure: Measure) -> str:
    """Of what a federation's value is the mean."""
    return "mean over clients, each counting alike" if measure.alike else "over all clients' test samples"


def draw_controls(subject: FederationView) -> list[Figure]:
    """Each grouping method beside the same method with random and with true groups."""
    roles, rows = subject.findings.roles, []
    for label, own in roles.controls.items():
        for shown in [roles.baseline, label, *own.values()]:
            kind = subject.name(shown).removeprefix(f"{subject.name(label)}, ") if shown in own.values() else "similar groups"
            kind = subject.baseline.name if shown == roles.baseline else kind
            rows += [{**row, "panel": subject.name(label), "method": kind} for row in _curve_rows(subject, shown)]
    if not rows:
        return []
    known = (subject.baseline.name, "similar groups", *(kind for kind, _ in CONTROLS.values()))
    used = [kind for kind in known if any(row["method"] == kind for row in rows)]
    colours = {"similar groups": OKABE_ITO["blue"], "random groups": OKABE_ITO["orange"], "true groups": OKABE_ITO["green"]}
    colours |= {"random groups of like sizes": OKABE_ITO["purple"], "one group": BROWN, "dealt groups": OLIVE}
    dashes = dict(CONTROLS.values())
    styles = [LineStyle(kind, colours.get(kind, GREY), dashes.get(kind, SOLID)) for kind in used]
    panel = draw_lines(
        rows, styles, make_rounds_axis(), make_measure_axis(subject.measure.axis), _round_tooltip(subject), band=True
    ).properties(width=PANEL, height=220)
    chart = draw_panels(panel, [subject.name(label) for label in roles.controls])
    note = (
        "The same method when similarity decides who shares a model, when chance decides (groups of the same sizes) and, where they are "
        "known, with the true groups. If chance does as well, the gain is not from similarity."
    )
    return [Figure(subject.id("controls"), "Similar groups against random ones", note, chart, several=True)]


def draw_scores(subject: FederationView) -> Figure:
    """The headline score of everything, with intervals, and each seed as a point."""
    findings, means, dots = subject.findings, [], []
    for label, finding in findings.methods.items():
        own, name = finding.scores[findings.score], subject.name(label)
        mean, low, high = to_percent([own.mean, own.low, own.high])
        means.append({"method": name, "accuracy": mean, "low": low, "high": high})
        dots += [{"method": name, "accuracy": value} for value in to_percent(own.values) if value is not None]
    order = [style.name for style in subject.styles.values()]
    colour = make_scales(list(subject.styles.values()))[0].legend(None)
    y = alt.Y("method:N", sort=order, title=None)
    x = alt.X("accuracy:Q", title=subject.measure.axis, scale=alt.Scale(zero=False))
    data = inline_rows(means)
    chart = alt.layer(
        alt.Chart(inline_rows(dots)).mark_tick(opacity=0.35, thickness=1.5).encode(x=x, y=y, color=colour),
        alt.Chart(data).mark_rule(strokeWidth=2.5).encode(x="low:Q", x2="high:Q", y=y, color=colour),
        alt.Chart(data)
        .mark_point(filled=True, size=90, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=make_tooltip("method:N", ("accuracy:Q", subject.measure.axis), *INTERVAL_FIELDS)),
    ).properties(height=alt.Step(26))
    unit = findings.repetitions.unit
    note = f"The {describe_score(findings)}: means with 95 % intervals over {unit}s; every thin tick is one run."
    return Figure(subject.id("scores"), f"{subject.measure.title} at the end", note, chart)


def draw_significance(subject: FederationView) -> list[Figure]:
    """In which rounds each method is better than the baseline beyond chance."""
    rows = []
    for label, finding in subject.methods.items():
        tests = finding.by_round
        if tests is None or subject.findings.repetitions.runs < 2:
            continue
        for i in pick_evenly(len(tests.rounds), MAX_ROUNDS):
            p = float(tests.wilcoxon_p[i])
            better = "better (p < 0.05)" if tests.significant[i] else "not shown to be better"
            rows.append(
                {"method": subject.name(label), "round": int(tests.rounds[i]), "result": better, "p": round(p, 4) if p == p else None}
            )
    if not rows:
        return []
    colour = alt.Color(
        "result:N", scale=alt.Scale(domain=["better (p < 0.05)", "not shown to be better"], range=[OKABE_ITO["blue"], "#CFCFCF"])
    )
    chart = (
        alt.Chart(inline_rows(rows))
        .mark_rect(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X("round:O", title="round", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("method:N", title=None, sort=None),
            color=colour,
            tooltip=make_tooltip("method:N", "round:O", ("p:Q", "p (Wilcoxon, one-sided)")),
        )
        .properties(height=alt.Step(26))
    )
    note = (
        f"Each round tested by itself against {subject.baseline.name} over {subject.findings.repetitions.unit}s (Wilcoxon, one-sided, not "
        "corrected for the number of rounds). It does not see the chance of test samples, and plays no part in the verdict."
    )
    return [Figure(subject.id("rounds"), f"Rounds in which a method beats {subject.baseline.name}", note, chart)]


def _round_tooltip(subject: FederationView) -> list[alt.Tooltip]:
    return make_tooltip("method:N", "round:Q", ("accuracy:Q", subject.measure.axis), *INTERVAL_FIELDS)


def _curve_rows(subject: FederationView, label: str) -> list[dict[str, Any]]:
    center, lower, upper = subject.findings.curves[label]
    if subject.measure.share:  # a t interval knows no bounds; a share does
        lower, upper = np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)
    mean, low, high = to_percent(center), to_percent(lower), to_percent(upper)
    rounds = subject.findings.rounds
    keys = ("method", "round", "accuracy", "low", "high")
    kept = [i for i in pick_evenly(len(rounds), MAX_ROUNDS) if mean[i] is not None]
    return [dict(zip(keys, (subject.name(label), int(rounds[i]), mean[i], low[i], high[i]), strict=True)) for i in kept]


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


def curves_of(found: Comparison | Evidence) -> OfflineChart:
    """Accuracy round by round with its 95 % band; of several federations one below the other, each under its name."""
    comparison = compare_evidence([found]) if isinstance(found, Evidence) else found
    charts = [draw_curves(FederationView(findings)).chart.properties(title=findings.data) for findings in comparison.federations]
    if len(charts) == 1:
        return OfflineChart(charts[0])
    with warnings.catch_warnings():  # that a name is switched off in all of them at once, as it should be
        warnings.filterwarnings("ignore", message="Automatically deduplicated selection parameter")
        below: alt.VConcatChart = alt.vconcat(*charts).resolve_scale(color="independent")
    return OfflineChart(below)
