"""Where a gain comes from, and how it is spread over the clients."""

import altair as alt
import numpy as np

from coterie.analysis.decomposition import StepName
from coterie.report.charts.common import INTERVAL, inline, lines, side_by_side, told, zero
from coterie.report.figure import PANEL, Figure
from coterie.report.style import OKABE_ITO
from coterie.report.subject import CLIENTS, Subject, percent, thinned

STEPS: dict[StepName, str] = {
    "weights": "other weights",
    "groups": "having groups",
    "balance": "groups of like sizes",
    "similarity": "similarity",
}
TOTAL = "gain in all"
WHISKER = "#A8A8A8"  # seen on a bar of any colour, on white and on near-black


def decomposition(subject: Subject) -> list[Figure]:
    """The gain over FedAvg in steps, each from 0, so that its interval can be seen to hold 0 or not."""
    rows = []
    for label, finding in subject.methods.items():
        parts = finding.decomposition
        if parts is None or not parts.total.n:
            continue
        for name, gain in [*((STEPS[step.name], step.gain) for step in parts.steps), (TOTAL, parts.total)]:
            keys = ("begin", "gain", "low", "high")
            values = percent([0.0, gain.mean, gain.low, gain.high])
            rows.append({"panel": subject.name(label), "part": name, **dict(zip(keys, values, strict=True))})
    if not rows:
        return []
    drawn = {row["part"] for row in rows}
    order = [part for part in (*STEPS.values(), TOTAL) if part in drawn]
    paints = dict(zip((*STEPS.values(), TOTAL), ("orange", "sky", "purple", "blue", "green"), strict=True))
    colours = [OKABE_ITO[paints[part]] for part in order]
    y = alt.Y("part:N", sort=order, title=None)
    colour = alt.Color("part:N", scale=alt.Scale(domain=order, range=colours), legend=None)
    x = alt.X("begin:Q", title=f"points of {subject.measure.noun}")
    tooltip = told(("panel:N", "method"), "part:N", ("gain:Q", "points"), *INTERVAL)
    bars = alt.Chart().mark_bar(height=16).encode(x=x, x2="gain:Q", y=y, color=colour, tooltip=tooltip)
    whiskers = alt.Chart().mark_rule(strokeWidth=2.5, color=WHISKER).encode(x="low:Q", x2="high:Q", y=y)
    panel = alt.layer(bars, whiskers, zero("x"), data=inline(rows)).properties(width=PANEL - 20, height=alt.Step(30))
    chart = side_by_side(panel, [subject.name(label) for label in subject.methods])
    note = (
        f"From {subject.baseline.name} to the method step by step: counting clients alike instead of by their samples (where the method "
        "does), splitting clients at random into groups of the same sizes (then, where clients differ in size, only among clients of like "
        "size, so that large ones count as they do in the method), and choosing the groups by similarity. Thin lines are 95 % intervals."
    )
    return [Figure(subject.id("decomposition"), "The gain in steps", note, chart, several=True)]


def gains(subject: Subject) -> list[Figure]:
    """Every client's gain over the baseline, sorted: where a line crosses zero, losers end and winners begin."""
    labels = [
        label for label in subject.shown if label != subject.findings.roles.baseline and subject.findings.roles.of[label] != "uniform"
    ]
    rows, ids = [], subject.findings.records.ids
    for label in labels:
        gain = subject.findings.methods[label].fairness.gain
        order = np.argsort(gain, kind="stable")[: int(np.isfinite(gain).sum())]
        values = percent(gain[order])
        for i in thinned(len(order), CLIENTS) if len(order) else ():
            at = round(100 * (i + 0.5) / len(order), 2)
            rows.append({"method": subject.name(label), "share": at, "gain": values[i], "client": ids[order[i]]})
    if not rows:
        return []
    styles = [subject.styles[label] for label in labels]
    x = alt.X("share:Q", title="clients, from the one that loses most to the one that gains most, %", scale=alt.Scale(domain=[0, 100]))
    y = alt.Y("gain:Q", title=f"gain over {subject.baseline.name}, points")
    drawn = lines(rows, styles, x, y, told("client:N", "method:N", ("gain:Q", "gain, points")), dots=True)
    chart = alt.layer(zero("y"), drawn).properties(height=340)
    note = (
        f"Clients below zero score lower than with {subject.baseline.name}; with few test samples that may be chance.{subject.of_draw} "
        "Each line sorts the clients anew. Hover over a point to see which client it is; click a name to switch it off or on."
    )
    return [Figure(subject.id("gains"), "Every client's gain, sorted", note, chart)]
