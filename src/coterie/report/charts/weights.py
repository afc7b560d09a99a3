"""Who counts how much: aggregation weights over the rounds."""

import altair as alt
import numpy as np

from coterie.core.arrays import Doubles
from coterie.report.charts.common import lines, rounds_axis, told
from coterie.report.charts.heatmaps import Heatmap, HeatmapStyle, heatmaps
from coterie.report.figure import Figure
from coterie.report.raster import shades, shrunk
from coterie.report.style import RAMP
from coterie.report.subject import ROUNDS, Subject, thinned
from coterie.statistics import t_bands


def weight_figures(subject: Subject) -> list[Figure]:
    """The weights themselves in one seed, and how widely they are spread in all."""
    shown = [label for label in subject.shown if label in subject.weighing.spread]
    return [*_shares(subject, shown), *_spread(subject, shown)] if shown else []


def _shares(subject: Subject, shown: list[str]) -> list[Figure]:
    records = subject.findings.records
    labels = [label for label in shown if subject.findings.roles.of[label] in ("baseline", "method")]
    order = np.argsort(-records.train, kind="stable")
    tables, most = [], max((float(subject.weighing.shares[label].max()) for label in labels), default=0.0)
    for label in labels:
        table = subject.weighing.shares[label][1:]  # nothing is mixed at the start
        rounds = thinned(len(table), ROUNDS)
        tables.append(Heatmap(subject.name(label), table[rounds][:, order].T, [records.ids[i] for i in order], (rounds + 1).tolist()))
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
        paint=lambda values: shades(shrunk(values / most), RAMP),
        show=lambda value: round(100 * float(value), 2),
    )
    note = (
        f"{subject.where}Seed {records.settings.seeds[subject.seed]}. A client's share of the model that it helps to make, from white "
        f"(none: it was not picked) to dark blue ({100 * most:.0f} %). Clients with the most training samples are at the top."
    )
    return [Figure(subject.id("weights"), "Weights over the rounds", note, heatmaps(tables, kind), several=True)]


def _spread(subject: Subject, shown: list[str]) -> list[Figure]:
    rows = [row for label in shown for row in _curve(subject.name(label), subject.weighing.spread[label])]
    styles = [subject.styles[label] for label in shown]
    y = alt.Y("clients:Q", title="clients that make a model", scale=alt.Scale(zero=True))
    chart = lines(rows, styles, rounds_axis(), y, told("method:N", "round:Q", "clients:Q")).properties(height=240)
    note = (
        "How widely a model's weight is spread: the number of clients with equal weights that would spread it as widely (1 / sum of "
        f"squared weights), mean over models and seeds.{subject.of_first_draw}"
    )
    return [Figure(subject.id("spread"), "How many clients make a model", note, chart)]


def _curve(name: str, spread: Doubles) -> list[dict[str, object]]:
    mean = t_bands(spread)[0]
    return [
        {"method": name, "round": int(i), "clients": round(float(mean[i]), 2)} for i in thinned(len(mean), ROUNDS) if np.isfinite(mean[i])
    ]
