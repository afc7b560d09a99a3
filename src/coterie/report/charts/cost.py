"""What accuracy costs."""

import altair as alt

from coterie.report.figure import PANEL, Figure
from coterie.report.subject import Subject, percent

AXES = {"megabytes": "megabytes sent and received", "passes": "passes over clients' data", "seconds": "server's own seconds"}


def cost(subject: Subject) -> Figure:
    """Accuracy against what a run sends, computes at clients, and computes at the server."""
    findings, rows = subject.findings, []
    for label in subject.shown:
        finding = findings.methods[label]
        own, spent = finding.scores[findings.score], finding.spending
        mean, low, high = percent([own.mean, own.low, own.high])
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
