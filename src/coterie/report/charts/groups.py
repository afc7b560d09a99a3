"""Groups over the rounds, how often two clients share one, and aggregation weights."""

import altair as alt
import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie.core.arrays import Array, Doubles, Ids
from coterie.report.charts.elements import (
    Heatmap,
    HeatmapStyle,
    apply_ramp,
    colour_groups,
    draw_heatmaps,
    draw_lines,
    make_rounds_axis,
    make_tooltip,
    shrink,
)
from coterie.report.federation_view import MAX_ROUNDS, FederationView, pick_evenly
from coterie.report.figure import Figure
from coterie.report.style import RAMP, UNASSIGNED, pick_group_colours
from coterie.statistics import compute_t_bands

MAX_NAMED = 24  # groups in a legend at most


def draw_groups(view: FederationView) -> list[Figure]:
    """Which group each client is in, round by round, in one seed."""
    records, tables = view.findings.records, []
    for label, places in view.orders.items():
        order = view.pictured_clients[places]
        history = _group_history(view, label)  # (rounds, clients)
        rounds = pick_evenly(len(history), MAX_ROUNDS)
        tables.append(Heatmap(view.name(label), history[rounds][:, order].T, [records.ids[i] for i in order], rounds.tolist()))
    if not tables:
        return []
    count = 1 + max(int(table.values.max()) for table in tables)
    paints = pick_group_colours(count)
    names = ["none", *(f"group {number}" for number in range(count))]
    scale = alt.Scale(domain=names, range=[UNASSIGNED, *paints])
    kind = HeatmapStyle(
        row="clients",
        column="round",
        value="group",
        colour=alt.Color("value:N", scale=scale, title=None, legend=alt.Legend(orient="bottom", columns=8) if count <= MAX_NAMED else None),
        paint=lambda values: colour_groups(values[pick_evenly(len(values), MAX_ROUNDS)], paints, UNASSIGNED),
        show=lambda value: names[int(value) + 1],
    )
    seed = records.settings.seeds[view.seed]
    sorted_by = "true group, then by shared groups" if records.truth is not None else "shared groups"
    legend = f"Each row is a client, each colour a group, grey is none in that round. Clients are sorted by {sorted_by}."
    note = f"{view.draw_prefix}Seed {seed}. {legend}{view.paired_sample_note}"
    return [Figure(view.id("groups"), "The groups over the rounds", note, draw_heatmaps(tables, kind), several=True)]


def draw_co_membership(view: FederationView) -> list[Figure]:
    """How often two clients share a group."""
    records, tables = view.findings.records, []
    for label, agreement in view.agreements.items():
        order = view.orders[label]
        ids = [records.ids[i] for i in view.pictured_clients[order]]
        tables.append(Heatmap(view.name(label), agreement[np.ix_(order, order)], ids, ids))
    if not tables:
        return []
    kind = HeatmapStyle(
        row="clients",
        column="clients",
        value="together, %",
        colour=alt.Color("value:Q", scale=alt.Scale(domain=[0, 33, 67, 100], range=list(RAMP), interpolate="rgb"), legend=None),
        paint=lambda values: apply_ramp(shrink(values), RAMP),
        show=lambda value: round(100 * float(value)),
        height=320,
    )
    note = (
        "How similar the methods find two clients: the share of the seeds in which both end in the same group (for groups that last one "
        "round: of the rounds in which both took part), from white, never, to dark blue, always. Blocks along the diagonal are groups that "
        f"come back.{view.first_draw_note}{view.paired_sample_note}"
    )
    return [Figure(view.id("agreement"), "Which clients are found similar", note, draw_heatmaps(tables, kind), several=True)]


def match_labels(rounds: list[tuple[Ids, Array] | None], clients: int) -> Array:
    """(rounds, clients) labels of groups that are drawn again each round, named so that as many clients as possible keep their label."""
    table = np.full((len(rounds), clients), -1, dtype=np.int64)
    last = np.full(clients, -1)
    for i, piece in enumerate(rounds):
        if piece is None:
            continue
        members, labels = piece
        count = int(max(labels.max(), last.max())) + 1
        overlap = np.zeros((count, count))
        before = last[members]
        np.add.at(overlap, (labels[before >= 0], before[before >= 0]), 1)
        renamed = linear_sum_assignment(-overlap)[1][labels]
        table[i, members] = last[members] = renamed
    return table


def _group_history(view: FederationView, label: str) -> Array:
    records, last = view.findings.records, view.findings.scope.last
    if label in records.groups:
        return np.asarray(records.groups[label][view.seed, : last + 1])
    pieces = [records.clusters[label].get((view.seed, round_)) for round_ in range(last + 1)]
    return match_labels(pieces, len(records.ids))


def draw_weights(view: FederationView) -> list[Figure]:
    """The weights themselves in one seed, and how widely they are spread in all."""
    shown = [label for label in view.shown_methods if label in view.weighing.spread]
    return [*_draw_shares(view, shown), *_draw_spread(view, shown)] if shown else []


def _draw_shares(view: FederationView, shown: list[str]) -> list[Figure]:
    records = view.findings.records
    labels = [label for label in shown if view.findings.roles.of[label] in ("baseline", "method")]
    order = np.argsort(-records.train, kind="stable")
    tables, most = [], max((float(view.weighing.shares[label].max()) for label in labels), default=0.0)
    for label in labels:
        table = view.weighing.shares[label][1:]  # nothing is mixed at the start
        rounds = pick_evenly(len(table), MAX_ROUNDS)
        tables.append(Heatmap(view.name(label), table[rounds][:, order].T, [records.ids[i] for i in order], (rounds + 1).tolist()))
    if not most or not tables:
        return []
    kind = HeatmapStyle(
        row="clients",
        column="round",
        value="weight, %",
        colour=alt.Color(
            "value:Q",
            scale=alt.Scale(domain=[round(100 * most * part, 3) for part in (0, 1 / 3, 2 / 3, 1)], range=list(RAMP), interpolate="rgb"),
            legend=None,
        ),
        paint=lambda values: apply_ramp(shrink(values / most), RAMP),
        show=lambda value: round(100 * float(value), 2),
    )
    note = (
        f"{view.draw_prefix}Seed {records.settings.seeds[view.seed]}. A client's share of the model that it helps to make, from white "
        f"(none: it was not picked) to dark blue ({100 * most:.0f} %). Clients with the most training samples are at the top."
    )
    return [Figure(view.id("weights"), "Weights over the rounds", note, draw_heatmaps(tables, kind), several=True)]


def _draw_spread(view: FederationView, shown: list[str]) -> list[Figure]:
    rows = [row for label in shown for row in _spread_rows(view.name(label), view.weighing.spread[label])]
    styles = [view.styles[label] for label in shown]
    y = alt.Y("clients:Q", title="clients that make a model", scale=alt.Scale(zero=True))
    chart = draw_lines(rows, styles, make_rounds_axis(), y, make_tooltip("method:N", "round:Q", "clients:Q")).properties(height=240)
    note = (
        "How widely a model's weight is spread: the number of clients with equal weights that would spread it as widely (1 / sum of "
        f"squared weights), mean over models and seeds.{view.first_draw_note}"
    )
    return [Figure(view.id("spread"), "How many clients make a model", note, chart)]


def _spread_rows(name: str, spread: Doubles) -> list[dict[str, object]]:
    mean = compute_t_bands(spread)[0]
    return [
        {"method": name, "round": int(i), "clients": round(float(mean[i]), 2)}
        for i in pick_evenly(len(mean), MAX_ROUNDS)
        if np.isfinite(mean[i])
    ]
