"""The score against costs and simulated time, and mean ranks over several federations."""

import altair as alt

from coterie.analysis.costs import compute_time_curves
from coterie.report.charts.elements import INTERVAL_FIELDS, draw_lines, make_measure_axis, make_tooltip
from coterie.report.federation_view import FederationView, to_percent
from coterie.report.figure import PANEL, Figure
from coterie.report.style import GREY, OKABE_ITO
from coterie.statistics import Ranking

AXES = {"megabytes": "megabytes sent and received", "passes": "passes over clients' data", "seconds": "server's own seconds"}


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
    for field, title in AXES.items():
        x = alt.X(f"{field}:Q", title=title, axis=alt.Axis(tickCount=5, format="~s" if field == "passes" else ""))
        told = [
            "method:N",
            alt.Tooltip("accuracy:Q", title=subject.measure.axis),
            *(alt.Tooltip(f"{name}:Q", title=words) for name, words in AXES.items()),
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
