"""Kaplan-Meier curves of clients and of the groups that methods and the data know, from counts by interval alone."""

from collections.abc import Iterator, Sequence

import altair as alt
import numpy as np

from coterie.core.arrays import Array, Ints
from coterie.core.survival import compute_kaplan_meier, count_at_risk
from coterie.report.charts.elements import Rows, draw_panels, inline_rows, make_tooltip
from coterie.report.federation_view import FederationView
from coterie.report.figure import Figure
from coterie.report.style import GREY, pick_group_colours

ALL, CLIENTS, ONE_CLIENT = "all clients", "Clients", "one client"
MIN_DRAWN = 5  # samples from which on a client has a curve of its own
ALL_COLOUR = "#a3428c"  # of the curve of all clients: no group has it, and it is seen on light and dark pages
MAX_GROUPS = 12  # groups up to which each has a colour of its own


def draw_kaplan_meier(view: FederationView) -> list[Figure]:
    """The share without an event over time: of each client, and of each group of the first compared seed."""
    evidence = view.findings.records.evidence
    if evidence.task != "survival":
        return []
    groupings = dict(_list_groupings(view))
    rows = _client_rows(view) + [
        row for panel, labels in groupings.items() for row in _group_rows(panel, labels, evidence.exits, evidence.grid)
    ]
    names = sorted({row["curve"] for row in rows} - {ALL, ONE_CLIENT}, key=lambda name: int(name.split()[-1]))
    scale = alt.Scale(domain=[ALL, ONE_CLIENT, *names], range=[ALL_COLOUR, GREY, *pick_group_colours(max(len(names), 1))[: len(names)]])
    chart = (
        alt.Chart(inline_rows(rows))
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=18))  # known at the ends of intervals: no steps in between
        .encode(
            x=alt.X("time:Q", title="time", scale=alt.Scale(nice=False)),
            y=alt.Y("survival:Q", title="without an event, %", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color("curve:N", scale=scale, title=None, legend=alt.Legend(orient="bottom", columns=6)),
            opacity=alt.condition(alt.datum.curve == ONE_CLIENT, alt.value(0.45), alt.value(1.0)),
            detail="who:N",
            tooltip=make_tooltip(("who:N", "curve"), "time:Q", ("survival:Q", "without an event, %"), ("risk:Q", "at risk before")),
        )
        .properties(width=300, height=240)
    )
    seed = f" Groups are those of seed {view.findings.records.settings.seeds[view.seed]} after the last round." if groupings else ""
    note = (
        f"{view.draw_prefix}Kaplan-Meier curves at the ends of the model's intervals, from each client's events and censored times by "
        "interval: all its samples, of a real federation its training samples with rare counts combined. Clients with fewer than "
        f"{MIN_DRAWN} samples have no curve of their own.{seed}"
    )
    return [Figure(view.id("kaplan-meier"), "Survival by client and group", note, draw_panels(chart, [CLIENTS, *groupings]), several=True)]


def _list_groupings(view: FederationView) -> Iterator[tuple[str, Ints]]:
    """By panel, the group of each client; those of many groups are left out."""
    records, last = view.findings.records, view.findings.scope.last
    found = {} if records.truth is None else {"True groups": np.asarray(records.truth)}
    shown = [label for label in view.shown_methods if label in records.groups]
    found |= {view.name(label): np.asarray(records.groups[label][view.seed, last]) for label in shown}
    yield from ((panel, labels) for panel, labels in found.items() if 0 < len(np.unique(labels[labels >= 0])) <= MAX_GROUPS)


def _client_rows(view: FederationView) -> Rows:
    records = view.findings.records
    exits, grid = records.evidence.exits, records.evidence.grid
    large = [client for client in view.drawn_clients.tolist() if exits[client].sum() >= MIN_DRAWN]
    rows = [row for client in large for row in make_curve_rows(CLIENTS, ONE_CLIENT, records.ids[client], exits[client], grid)]
    return rows + make_curve_rows(CLIENTS, ALL, ALL, exits.sum(axis=0), grid)


def _group_rows(panel: str, labels: Ints, exits: Array, grid: Sequence[float]) -> Rows:
    named = {f"group {group}": exits[labels == group].sum(axis=0) for group in np.unique(labels[labels >= 0]).tolist()}
    return [row for name, own in named.items() for row in make_curve_rows(panel, name, name, own, grid)]


def make_curve_rows(panel: str, curve: str, who: str, exits: Array, grid: Sequence[float]) -> Rows:
    """The points of a curve; it ends where no sample is left at risk."""
    survival, risk = compute_kaplan_meier(exits), count_at_risk(exits)
    last = int((risk > 0).sum())
    return [
        {
            "panel": panel,
            "curve": curve,
            "who": who,
            "time": float(f"{grid[j]:.6g}"),
            "survival": round(100 * float(survival[j]), 2),
            "risk": int(risk[j]) if j < len(risk) else 0,
        }
        for j in range(last + 1)
    ]
