"""Groups: who is in which over the rounds, and how often two clients share one."""

import altair as alt
import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie.core.arrays import Array, Ids
from coterie.report.charts.heatmaps import Heatmap, HeatmapStyle, heatmaps
from coterie.report.figure import Figure
from coterie.report.raster import colours, shades, shrunk
from coterie.report.style import NOBODY, RAMP, group_colours
from coterie.report.subject import ROUNDS, Subject, thinned

NAMED = 24  # groups in a legend at most


def groups_over_rounds(subject: Subject) -> list[Figure]:
    """Which group each client is in, round by round, in one seed."""
    records, tables = subject.findings.records, []
    for label, places in subject.orders.items():
        order = subject.pictured[places]
        history = _history(subject, label)  # (rounds, clients)
        rounds = thinned(len(history), ROUNDS)
        tables.append(Heatmap(subject.name(label), history[rounds][:, order].T, [records.ids[i] for i in order], rounds.tolist()))
    if not tables:
        return []
    count = 1 + max(int(table.values.max()) for table in tables)
    paints = group_colours(count)
    names = ["none", *(f"group {number}" for number in range(count))]
    scale = alt.Scale(domain=names, range=[NOBODY, *paints])
    kind = HeatmapStyle(
        row="clients",
        column="round",
        value="group",
        colour=alt.Color("value:N", scale=scale, title=None, legend=alt.Legend(orient="bottom", columns=8) if count <= NAMED else None),
        paint=lambda values: colours(values[thinned(len(values), ROUNDS)], paints, NOBODY),
        show=lambda value: names[int(value) + 1],
    )
    seed = records.settings.seeds[subject.seed]
    sorted_by = "true group, then by who shares groups" if records.truth is not None else "who shares groups"
    told = f"Each row is a client, each colour a group, grey is none in that round. Clients are sorted by {sorted_by}."
    note = f"{subject.where}Seed {seed}. {told}{subject.left_out_of_pairs}"
    return [Figure(subject.id("groups"), "The groups over the rounds", note, heatmaps(tables, kind), several=True)]


def agreement_matrix(subject: Subject) -> list[Figure]:
    """How often two clients share a group."""
    records, tables = subject.findings.records, []
    for label, agreement in subject.agreements.items():
        order = subject.orders[label]
        ids = [records.ids[i] for i in subject.pictured[order]]
        tables.append(Heatmap(subject.name(label), agreement[np.ix_(order, order)], ids, ids))
    if not tables:
        return []
    kind = HeatmapStyle(
        row="clients",
        column="clients",
        value="together, %",
        colour=alt.Color("value:Q", scale=alt.Scale(domain=[0, 33, 67, 100], range=list(RAMP), interpolate="rgb"), legend=None),
        paint=lambda values: shades(shrunk(values), RAMP),
        show=lambda value: round(100 * float(value)),
        height=320,
    )
    note = (
        "How similar the methods find two clients: the share of the seeds in which both end in the same group (for groups that last one "
        "round: of the rounds in which both took part), from white, never, to dark blue, always. Blocks along the diagonal are groups that "
        f"come back.{subject.of_first_draw}{subject.left_out_of_pairs}"
    )
    return [Figure(subject.id("agreement"), "Which clients are found similar", note, heatmaps(tables, kind), several=True)]


def steady(rounds: list[tuple[Ids, Array] | None], clients: int) -> Array:
    """(rounds, clients) labels of groups that are drawn anew each round, named so that as many clients as possible keep their label."""
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


def _history(subject: Subject, label: str) -> Array:
    records, last = subject.findings.records, subject.findings.scope.last
    if label in records.groups:
        return np.asarray(records.groups[label][subject.seed, : last + 1])
    pieces = [records.clusters[label].get((subject.seed, round_)) for round_ in range(last + 1)]
    return steady(pieces, len(records.ids))
