"""The score against simulated time, where clients have speeds."""

import altair as alt

from coterie.analysis.times import curves_in_time
from coterie.report.charts.common import INTERVAL, lines, measure_axis, told
from coterie.report.figure import Figure
from coterie.report.subject import Subject, percent


def time_figures(subject: Subject) -> list[Figure]:
    """The mean score by simulated time with its 95 % band; nothing where time is not simulated."""
    records = subject.findings.records
    if records.clock is None:
        return []
    moments, curves = curves_in_time(subject.findings.draws)
    rows = []
    for label in subject.shown:
        mean, low, high = map(percent, curves[label])
        for i, moment in enumerate(moments):
            if mean[i] is not None:
                point = {"method": subject.name(label), "time": float(f"{moment:.4g}")}
                rows.append({**point, "accuracy": mean[i], "low": low[i], "high": high[i]})
    title = "simulated time" if records.settings.plan.speeds is not None else "time"
    styles = [subject.styles[label] for label in subject.shown]
    x = alt.X("time:Q", title=title, scale=alt.Scale(nice=False))
    tooltip = told("method:N", "time:Q", ("accuracy:Q", subject.measure.axis), *INTERVAL)
    chart = lines(rows, styles, x, measure_axis(subject.measure.axis), tooltip, band=True).properties(height=320)
    note = (
        f"The same {subject.measure.title} by {title}, at each moment that of the last round that was evaluated by then. A line ends where "
        "the first of its runs does. Only training and gradients take time: messages and the server take none."
    )
    return [Figure(subject.id("time"), f"{subject.measure.title} against time", note, chart)]
