"""Clients one by one: before and after, and a map on which those that are grouped together are near each other."""

import altair as alt
import numpy as np
from sklearn.decomposition import PCA

from coterie.core.arrays import Doubles
from coterie.core.rng import generator, key
from coterie.report.charts.common import inline, side_by_side
from coterie.report.figure import PANEL, Figure
from coterie.report.style import GREY, GROUPS, NOBODY, OKABE_ITO
from coterie.report.subject import Subject, percent

WORSE = ["not worse", "worse"]
JITTER = 0.03  # of the map's width: clients that always share a group would hide each other


def before_and_after(subject: Subject) -> list[Figure]:
    """Each client's value under the baseline and under each method."""
    findings = subject.findings
    before = findings.methods[findings.roles.baseline].fairness.accuracy
    was, rows = percent(before), []
    for label, finding in subject.methods.items():
        now = percent(finding.fairness.accuracy)
        both = [i for i in subject.drawn if was[i] is not None and now[i] is not None]
        result = {i: WORSE[int(finding.fairness.gain[i] < 0)] for i in both}
        rows += [{**subject.client(i), "panel": subject.name(label), "before": was[i], "after": now[i], "result": result[i]} for i in both]
    if not rows:
        return []
    lowest = min(min(row["before"], row["after"]) for row in rows) - 3
    low = max(0.0, lowest) if subject.measure.share else lowest
    unit = ", %" if subject.measure.share else ", hundredths"
    scale = alt.Scale(domain=[low, 100], nice=False)
    told = [alt.Tooltip("before:Q", title=f"with {subject.baseline.name}{unit}"), alt.Tooltip("after:Q", title=f"with the method{unit}")]
    points = (
        alt.Chart()
        .mark_point(filled=True, size=40, opacity=0.75)
        .encode(
            x=alt.X("before:Q", title=f"{subject.measure.noun} with {subject.baseline.name}{unit}", scale=scale),
            y=alt.Y("after:Q", title=f"{subject.measure.noun} with the method{unit}", scale=scale),
            color=alt.Color("result:N", scale=alt.Scale(domain=WORSE, range=[OKABE_ITO["blue"], OKABE_ITO["vermillion"]])),
            shape=alt.Shape("result:N", scale=alt.Scale(domain=WORSE, range=["circle", "triangle-down"])),
            tooltip=[*_told(subject), *told],
        )
    )
    ends = alt.Chart(inline([{"before": end, "after": end} for end in (low, 100)]))
    diagonal = ends.mark_line(color=GREY, strokeDash=[4, 3]).encode(x=alt.X("before:Q", scale=scale), y=alt.Y("after:Q", scale=scale))
    panel = alt.layer(diagonal, points, data=inline(rows)).properties(width=PANEL, height=PANEL)
    chart = side_by_side(panel, [subject.name(label) for label in subject.methods])
    note = (
        f"Every point is a client, its {subject.measure.noun} averaged over the last rounds and the runs. Above the line it scores higher."
        f"{subject.of_draw}{subject.left_out}"
    )
    return [Figure(subject.id("clients"), "Every client, before and after", note, chart, several=True)]


def client_map(subject: Subject) -> list[Figure]:
    """Clients in the plane, near each other where a method often groups them together."""
    records, rows = subject.findings.records, []
    for label, table in subject.agreements.items():
        if len(table) < 3:
            continue
        plane, gain = _plane(table, label), percent(subject.findings.methods[label].fairness.gain)
        rows += [
            {
                **subject.client(i),
                "panel": subject.name(label),
                "x": round(float(plane[place, 0]), 3),
                "y": round(float(plane[place, 1]), 3),
                "gain": gain[i],
            }
            for i, place in zip(subject.drawn, np.searchsorted(subject.pictured, subject.drawn), strict=True)
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
        meaning = f"colours are the gain over {subject.baseline.name}, in points"
    bare = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    panel = (
        alt.Chart(inline(rows))
        .mark_point(filled=True, size=55, opacity=0.8)
        .encode(
            x=alt.X("x:Q", title="first direction", axis=bare),
            y=alt.Y("y:Q", title="second direction", axis=bare),
            color=colour,
            tooltip=[*_told(subject), alt.Tooltip("gain:Q", title="gain, points")],
        )
        .properties(width=PANEL, height=PANEL, view=alt.ViewBackground(stroke=NOBODY))
    )
    chart = side_by_side(panel, [subject.name(label) for label in subject.agreements])
    note = (
        "Clients that a method often puts in the same group are near each other (principal components of how often two share one, a "
        f"little scattered so that none hides another); {meaning}.{subject.of_first_draw}{subject.left_out}"
    )
    return [Figure(subject.id("map"), "A map of the clients", note, chart, several=True)]


def _plane(table: Doubles, label: str) -> Doubles:
    """(N, 2) places between -1 and 1."""
    plane = PCA(2, svd_solver="full" if len(table) < 100 else "randomized", random_state=0).fit_transform(table)
    plane /= max(float(np.abs(plane).max()), 1e-9)
    return np.asarray(plane + JITTER * generator(key(0, "client map", label)).standard_normal(plane.shape))


def _told(subject: Subject) -> list[str]:
    """What a reader who points at a client is told of it."""
    return [f"{name}:{'Q' if name == 'samples' else 'N'}" for name in subject.client(0)]
