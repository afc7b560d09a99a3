"""Clients one by one: the steps of a gain, every client's gain, before and after, and a map of clients."""

import altair as alt
import numpy as np
from sklearn.decomposition import PCA

from coterie.analysis.verdict_rules import StepName
from coterie.core.arrays import Doubles
from coterie.core.rng import make_generator, make_key
from coterie.report.charts.elements import INTERVAL_FIELDS, draw_lines, draw_panels, draw_zero_line, inline_rows, make_tooltip
from coterie.report.federation_view import MAX_CLIENTS, FederationView, pick_evenly, to_percent
from coterie.report.figure import PANEL, Figure
from coterie.report.style import GREY, GROUPS, OKABE_ITO, UNASSIGNED

STEPS: dict[StepName, str] = {
    "weights": "other weights",
    "groups": "having groups",
    "balance": "groups of similar sizes",
    "similarity": "similarity",
}
TOTAL = "gain in all"
WHISKER = "#A8A8A8"  # seen on a bar of any colour, on white and on near-black


def draw_decomposition(view: FederationView) -> list[Figure]:
    """The gain over FedAvg in steps, each from 0, so that its interval can be seen to hold 0 or not."""
    rows = []
    for label, finding in view.methods.items():
        parts = finding.decomposition
        if parts is None or not parts.total.n:
            continue
        for name, gain in [*((STEPS[step.name], step.gain) for step in parts.steps), (TOTAL, parts.total)]:
            keys = ("begin", "gain", "low", "high")
            values = to_percent([0.0, gain.mean, gain.low, gain.high])
            rows.append({"panel": view.name(label), "part": name, **dict(zip(keys, values, strict=True))})
    if not rows:
        return []
    drawn = {row["part"] for row in rows}
    order = [part for part in (*STEPS.values(), TOTAL) if part in drawn]
    paints = dict(zip((*STEPS.values(), TOTAL), ("orange", "sky", "purple", "blue", "green"), strict=True))
    colours = [OKABE_ITO[paints[part]] for part in order]
    y = alt.Y("part:N", sort=order, title=None)
    colour = alt.Color("part:N", scale=alt.Scale(domain=order, range=colours), legend=None)
    x = alt.X("begin:Q", title=f"points of {view.metric.noun}")
    tooltip = make_tooltip(("panel:N", "method"), "part:N", ("gain:Q", "points"), *INTERVAL_FIELDS)
    bars = alt.Chart().mark_bar(height=16).encode(x=x, x2="gain:Q", y=y, color=colour, tooltip=tooltip)
    whiskers = alt.Chart().mark_rule(strokeWidth=2.5, color=WHISKER).encode(x="low:Q", x2="high:Q", y=y)
    panel = alt.layer(bars, whiskers, draw_zero_line("x"), data=inline_rows(rows)).properties(width=PANEL - 20, height=alt.Step(30))
    chart = draw_panels(panel, [view.name(label) for label in view.methods])
    note = (
        f"From {view.baseline.name} to the method step by step: weighting clients equally instead of by their samples (where the method "
        "does), splitting clients at random into groups of the same sizes (then, where clients differ in size, only among clients of "
        "similar size, so that large ones have the weight that they have in the method), and choosing the groups by similarity. Thin lines "
        "are 95 % intervals."
    )
    return [Figure(view.id("decomposition"), "The gain in steps", note, chart, several=True)]


def draw_gains(view: FederationView) -> list[Figure]:
    """Every client's gain over the baseline, sorted: where a line crosses zero, losers end and winners begin."""
    labels = [label for label in view.shown_methods if label != view.findings.roles.baseline and view.findings.roles.of[label] != "uniform"]
    rows, ids = [], view.findings.records.ids
    for label in labels:
        gain = view.findings.methods[label].fairness.gain
        order = np.argsort(gain, kind="stable")[: int(np.isfinite(gain).sum())]
        values = to_percent(gain[order])
        for i in pick_evenly(len(order), MAX_CLIENTS) if len(order) else ():
            at = round(100 * (i + 0.5) / len(order), 2)
            rows.append({"method": view.name(label), "share": at, "gain": values[i], "client": ids[order[i]]})
    if not rows:
        return []
    styles = [view.styles[label] for label in labels]
    x = alt.X("share:Q", title="clients, from the one that loses most to the one that gains most, %", scale=alt.Scale(domain=[0, 100]))
    y = alt.Y("gain:Q", title=f"gain over {view.baseline.name}, points")
    drawn = draw_lines(rows, styles, x, y, make_tooltip("client:N", "method:N", ("gain:Q", "gain, points")), dots=True)
    chart = alt.layer(draw_zero_line("y"), drawn).properties(height=340)
    note = (
        f"Clients below zero score lower than with {view.baseline.name}; with few test samples that may be chance.{view.draw_note} "
        "Each line has its own order of clients. Hover over a point to see which client it is; click a name to switch it off or on."
    )
    return [Figure(view.id("gains"), "Every client's gain, sorted", note, chart)]


WORSE = ["not worse", "worse"]
JITTER = 0.03  # of the map's width: clients that always share a group would hide each other


def draw_before_and_after(view: FederationView) -> list[Figure]:
    """Each client's value under the baseline and under each method."""
    findings = view.findings
    before = findings.methods[findings.roles.baseline].fairness.accuracy
    was, rows = to_percent(before), []
    for label, finding in view.methods.items():
        now = to_percent(finding.fairness.accuracy)
        both = [i for i in view.drawn_clients if was[i] is not None and now[i] is not None]
        result = {i: WORSE[int(finding.fairness.gain[i] < 0)] for i in both}
        rows += [
            {**view.client_tooltip(i), "panel": view.name(label), "before": was[i], "after": now[i], "result": result[i]} for i in both
        ]
    if not rows:
        return []
    lowest = min(min(row["before"], row["after"]) for row in rows) - 3
    low = max(0.0, lowest) if view.metric.is_share else lowest
    unit = ", %" if view.metric.is_share else ", hundredths"
    scale = alt.Scale(domain=[low, 100], nice=False)
    scores = [alt.Tooltip("before:Q", title=f"with {view.baseline.name}{unit}"), alt.Tooltip("after:Q", title=f"with the method{unit}")]
    points = (
        alt.Chart()
        .mark_point(filled=True, size=40, opacity=0.75)
        .encode(
            x=alt.X("before:Q", title=f"{view.metric.noun} with {view.baseline.name}{unit}", scale=scale),
            y=alt.Y("after:Q", title=f"{view.metric.noun} with the method{unit}", scale=scale),
            color=alt.Color("result:N", scale=alt.Scale(domain=WORSE, range=[OKABE_ITO["blue"], OKABE_ITO["vermillion"]])),
            shape=alt.Shape("result:N", scale=alt.Scale(domain=WORSE, range=["circle", "triangle-down"])),
            tooltip=[*_client_tooltips(view), *scores],
        )
    )
    ends = alt.Chart(inline_rows([{"before": end, "after": end} for end in (low, 100)]))
    diagonal = ends.mark_line(color=GREY, strokeDash=[4, 3]).encode(x=alt.X("before:Q", scale=scale), y=alt.Y("after:Q", scale=scale))
    panel = alt.layer(diagonal, points, data=inline_rows(rows)).properties(width=PANEL, height=PANEL)
    chart = draw_panels(panel, [view.name(label) for label in view.methods])
    note = (
        f"Every point is a client, its {view.metric.noun} averaged over the last rounds and the runs. Above the line it scores higher."
        f"{view.draw_note}{view.sample_note}"
    )
    return [Figure(view.id("clients"), "Every client, before and after", note, chart, several=True)]


def draw_client_map(view: FederationView) -> list[Figure]:
    """Clients in the plane, near each other where a method often groups them together."""
    records, rows = view.findings.records, []
    for label, table in view.agreements.items():
        if len(table) < 3:
            continue
        plane, gain = _project_clients(table, label), to_percent(view.findings.methods[label].fairness.gain)
        rows += [
            {
                **view.client_tooltip(i),
                "panel": view.name(label),
                "x": round(float(plane[place, 0]), 3),
                "y": round(float(plane[place, 1]), 3),
                "gain": gain[i],
            }
            for i, place in zip(view.drawn_clients, np.searchsorted(view.pictured_clients, view.drawn_clients), strict=True)
        ]
    if not rows:
        return []
    if records.truth is not None and len(np.unique(records.truth)) <= len(GROUPS):
        colour, meaning = (
            alt.Color("true group:N", scale=alt.Scale(range=list(GROUPS)), legend=alt.Legend(columns=len(GROUPS))),
            "colours are the true groups",
        )
    else:
        colour = alt.Color("gain:Q", scale=alt.Scale(scheme="blueorange", reverse=True, domainMid=0))
        meaning = f"colours are the gain over {view.baseline.name}, in points"
    bare = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    panel = (
        alt.Chart(inline_rows(rows))
        .mark_point(filled=True, size=55, opacity=0.8)
        .encode(
            x=alt.X("x:Q", title="first direction", axis=bare),
            y=alt.Y("y:Q", title="second direction", axis=bare),
            color=colour,
            tooltip=[*_client_tooltips(view), alt.Tooltip("gain:Q", title="gain, points")],
        )
        .properties(width=PANEL, height=PANEL, view=alt.ViewBackground(stroke=UNASSIGNED))
    )
    chart = draw_panels(panel, [view.name(label) for label in view.agreements])
    note = (
        "Clients that a method often puts in the same group are near each other (principal components of how often two share one, a "
        f"little scattered so that none hides another); {meaning}.{view.first_draw_note}{view.sample_note}"
    )
    return [Figure(view.id("map"), "A map of the clients", note, chart, several=True)]


def _project_clients(table: Doubles, label: str) -> Doubles:
    """(N, 2) places between -1 and 1."""
    plane = PCA(2, svd_solver="full" if len(table) < 100 else "randomized", random_state=0).fit_transform(table)
    plane /= max(float(np.abs(plane).max()), 1e-9)
    return np.asarray(plane + JITTER * make_generator(make_key(0, "client map", label)).standard_normal(plane.shape))


def _client_tooltips(view: FederationView) -> list[str]:
    return [f"{name}:{'Q' if name == 'samples' else 'N'}" for name in view.client_tooltip(0)]
