"""The parts of a gain, every client's gain, what fine-tuning adds, and a map of clients."""

import altair as alt
import numpy as np
from sklearn.decomposition import PCA

from coterie.analysis.overview import make_difference
from coterie.analysis.verdict_rules import StepName
from coterie.core.arrays import Doubles
from coterie.core.rng import make_generator, make_key
from coterie.report.charts.elements import INTERVAL_FIELDS, Layers, Rows, draw_panels, draw_zero_line, inline_rows, make_tooltip
from coterie.report.federation_view import MAX_CLIENTS, FederationView, pick_evenly, to_percent
from coterie.report.figure import PANEL, Figure
from coterie.report.style import GROUPS, LIGHT_GREY, OKABE_ITO, UNASSIGNED

PARTS: dict[StepName, str] = {
    "weights": "other weights",
    "groups": "having groups",
    "balance": "groups of similar sizes",
    "similarity": "similarity",
}
PART_COLOURS = {"similarity": "#6A3D9A", "having groups": "#9A9A9A", "groups of similar sizes": "#B8A07A", "other weights": "#C9C9C9"}
TOTAL = "gain in all"


def draw_decomposition(view: FederationView) -> list[Figure]:
    """The gain over the baseline as a stacked bar; similarity begins at 0, so that its interval can be seen to contain 0 or not."""
    bars: Rows = []
    ends: Rows = []
    for row in view.overview.methods:
        parts, similarity = view.findings.methods[row.spec].decomposition, row.similarity
        if parts is None or similarity is None:
            continue
        begin = {True: 0.0, False: 0.0}  # of the next part above and below 0
        for step in sorted(parts.steps, key=lambda step: step.name != "similarity"):
            own = step.gain.mean
            values = to_percent([begin[own > 0], begin[own > 0] + own, own, step.gain.low, step.gain.high])
            bars.append(
                {"method": row.label, "part": PARTS[step.name]} | dict(zip(("from", "to", "gain", "low", "high"), values, strict=True))
            )
            begin[own > 0] += own
        low, high, total = to_percent([similarity.low, similarity.high, parts.total.mean])
        ends.append({"method": row.label, "low": low, "high": high, "total": total})
    if not bars:
        return []
    used = [part for part in PART_COLOURS if any(bar["part"] == part for bar in bars)]
    y = alt.Y("method:N", sort=[end["method"] for end in ends], title=None)
    colour = alt.Color("part:N", scale=alt.Scale(domain=used, range=[PART_COLOURS[part] for part in used]))
    tooltip = make_tooltip("method:N", "part:N", ("gain:Q", "points"), *INTERVAL_FIELDS)
    x = alt.X("from:Q", title=f"gain over {view.baseline.name}, points of {view.metric.noun}", axis=alt.Axis(tickCount=8))
    data = inline_rows(ends)
    chart = alt.layer(
        alt.Chart(inline_rows(bars)).mark_bar(height=18).encode(x=x, x2="to:Q", y=y, color=colour, tooltip=tooltip),
        draw_zero_line("x"),
        alt.Chart(data).mark_rule(strokeWidth=3, color=OKABE_ITO["orange"]).encode(x="low:Q", x2="high:Q", y=y),
        alt.Chart(data)
        .mark_point(filled=True, shape="diamond", size=130, opacity=1, color="#FFFFFF", stroke="#000000", strokeWidth=1.5)
        .encode(x="total:Q", y=y, tooltip=make_tooltip("method:N", ("total:Q", "gain in all, points"))),
    ).properties(height=alt.Step(34))
    note = (
        "Similarity: what similar groups bring over random ones of the same sizes, with its 95 % interval in orange. Having groups: what "
        "random groups bring. Other weights: clients count alike and not by their samples. The diamond is the gain in all."
    )
    return [Figure(view.id("decomposition"), "The parts of the gain", note, chart)]


MAX_BARS = 40  # clients that are drawn as bars with names; more are a swarm of points
MIN_RUNS = 3  # from which on an interval over runs is drawn
CLEARLY = "clearly worse off"


def draw_client_gains(view: FederationView) -> list[Figure]:
    """Every client's gain over the baseline, with each method and each simpler way that adapts to clients."""
    specs = [row.spec for row in view.overview.rows if row.role in ("method", "finetuned", "local")]
    specs = [spec for spec in specs if np.isfinite(view.findings.methods[spec].fairness.gain).any()]
    if not specs:
        return []
    few = len(view.findings.records.ids) <= MAX_BARS
    lost = [own for spec in specs if (own := view.findings.methods[spec].fairness.losers) is not None and own.significant.any()]
    marked = f" Triangles: {CLEARLY}, beyond the chance of runs and of few test samples." if lost else ""
    unit = f"{view.findings.repetitions.unit}s" if view.findings.repetitions.same_clients else "seeds"
    lines = f" Lines are 95 % intervals over {unit}." if few and _count_runs(view) >= MIN_RUNS else ""
    chance = f"Left of 0 a client scores lower than with {view.baseline.name}; with few test samples that may be chance."
    note = f"{chance}{marked}{lines}{view.draw_note}"
    if few:
        return [Figure(view.id("gains"), "Every client's gain", note, _draw_bars(view, specs), several=True)]
    return [Figure(view.id("gains"), "Every client's gain", note + view.sample_note, _draw_swarm(view, specs))]


def _count_runs(view: FederationView) -> int:
    """Runs over which a client's interval is: draws that have the same clients, or the seeds of one draw."""
    repetitions = view.findings.repetitions
    return len(repetitions.draws) if repetitions.several_draws and repetitions.same_clients else int(repetitions.compared[0].sum())


def _list_client_rows(view: FederationView, spec: str) -> Rows:
    """A row for each client, from the highest gain to the lowest."""
    own, records = view.findings.methods[spec].fairness, view.findings.records
    order = np.argsort(-own.gain, kind="stable")[: int(np.isfinite(own.gain).sum())]
    shown = own.losers if own.losers is not None and _count_runs(view) >= MIN_RUNS else None
    rows = []
    for i in order:
        low, high = to_percent([shown.low[i], shown.high[i]]) if shown is not None else (None, None)
        lost = own.losers is not None and bool(own.losers.significant[i])
        row = {"client": records.ids[i], "gain": to_percent([own.gain[i]])[0], "low": low, "high": high, "samples": int(records.test[i])}
        rows.append(row | {"lost": CLEARLY if lost else "", "method": view.name(spec)})
    return rows


CLIENT_TOOLTIP = (
    "client:N",
    "method:N",
    ("gain:Q", "gain, points"),
    *INTERVAL_FIELDS,
    ("samples:Q", "test samples"),
    ("lost:N", "verdict"),
)


def _draw_bars(view: FederationView, specs: list[str]) -> alt.ConcatChart:
    tables = {spec: _list_client_rows(view, spec) for spec in specs}
    means = [row["gain"] for rows in tables.values() for row in rows]
    ends = [row[end] for rows in tables.values() for row in rows for end in ("low", "high") if row[end] is not None]
    low, high = min(0.0, *means), max(0.0, *means)
    span = max(high - low, 1.0)  # intervals may be as long again as all gains; longer ones are cut off
    domain = [max(min([low, *ends]), low - span), min(max([high, *ends]), high + span)]
    panels = []
    for spec, rows in tables.items():
        data = inline_rows(rows)
        y = alt.Y(
            "client:N", sort=[row["client"] for row in rows], title=None, axis=alt.Axis(labelLimit=90, labelFontSize=11, labelOverlap=False)
        )
        x = alt.X("gain:Q", title=f"gain over {view.baseline.name}, points", scale=alt.Scale(domain=domain, nice=False))
        bars = alt.Chart(data).mark_bar(color=view.styles[spec].colour).encode(x=x, y=y, tooltip=make_tooltip(*CLIENT_TOOLTIP))
        whiskers = alt.Chart(data).mark_rule(color=LIGHT_GREY, strokeWidth=1.5, clip=True).encode(x="low:Q", x2="high:Q", y=y)
        layers = [bars, whiskers, draw_zero_line("x"), _mark_losers(data, y)]
        panels.append(alt.layer(*layers, title=view.name(spec)).properties(width=PANEL - 40, height=alt.Step(14)))
    chart: alt.ConcatChart = alt.concat(*panels, columns=3)
    return chart


def _mark_losers(data: alt.InlineData, y: alt.Y) -> alt.Chart:
    marks = alt.Chart(data).transform_filter(f"datum.lost == '{CLEARLY}'")
    shown: alt.Chart = marks.mark_point(filled=True, shape="triangle-down", size=70, opacity=1, color=OKABE_ITO["vermillion"]).encode(
        x="gain:Q", y=y, tooltip=make_tooltip(*CLIENT_TOOLTIP)
    )
    return shown


def _draw_swarm(view: FederationView, specs: list[str]) -> Layers:
    """A row of points for each method, one a client, those of like gain one above the other."""
    rows = []
    for place, spec in enumerate(specs):
        clients = _list_client_rows(view, spec)
        drawn = [clients[i] for i in pick_evenly(len(clients), MAX_CLIENTS)]
        offsets = spread_points(np.array([row["gain"] for row in drawn]))
        rows += [row | {"place": round(place + float(offset), 3)} for row, offset in zip(drawn, offsets, strict=True)]
    names = [view.name(spec) for spec in specs]
    data = inline_rows(rows)
    label = f"{names}[datum.value]"
    axis = alt.Axis(values=list(range(len(specs))), labelExpr=label, grid=False, ticks=False, domain=False)
    y = alt.Y("place:Q", title=None, axis=axis, scale=alt.Scale(domain=[len(specs) - 0.5, -0.5], nice=False))
    colour = alt.Color("method:N", scale=alt.Scale(domain=names, range=[view.styles[spec].colour for spec in specs]), legend=None)
    x = alt.X("gain:Q", title=f"gain over {view.baseline.name}, points")
    points = (
        alt.Chart(data).mark_point(filled=True, size=30, opacity=0.75).encode(x=x, y=y, color=colour, tooltip=make_tooltip(*CLIENT_TOOLTIP))
    )
    chart: Layers = alt.layer(draw_zero_line("x"), points, _mark_losers(data, y)).properties(height=90 * len(specs))
    return chart


def spread_points(values: Doubles) -> Doubles:
    """Offsets from -0.42 to 0.42 that keep points of like values apart: within each hundredth of the range they stand in a column."""
    span = float(np.ptp(values)) or 1.0
    columns = np.round(100 * (values - values.min()) / span).astype(np.int64)
    height = np.zeros(len(values))
    for column in np.unique(columns):
        members = np.flatnonzero(columns == column)
        height[members] = np.arange(len(members)) - (len(members) - 1) / 2
    return np.asarray(height * min(0.84 / max(float(np.ptp(height)), 1e-9), 0.1))


def draw_stages(view: FederationView) -> list[Figure]:
    """Each method as it is served and after local epochs, where the study has both."""
    findings = view.findings
    rows: Rows = []
    for row in view.overview.rows:
        if row.served is None:
            continue
        served, name = view.overview.row(row.served), view.name(row.served)
        added = make_difference(findings.gap(row.spec, row.served), findings.margin)
        for stage, score in (("as served", served.score), (f"after {row.epochs} local epochs", row.score)):
            rows.append(
                {
                    "method": name,
                    "stage": stage,
                    "accuracy": to_percent([score])[0],
                    "added": str(added),
                    "colour": view.styles[row.served].colour,
                }
            )
    if not rows:
        return []
    names, stages = list(dict.fromkeys(row["method"] for row in rows)), list(dict.fromkeys(row["stage"] for row in rows))
    y = alt.Y("method:N", sort=names, title=None)
    x = alt.X("accuracy:Q", title=view.metric.axis, scale=alt.Scale(zero=False, padding=12), axis=alt.Axis(tickCount=6))
    shape = alt.Shape("stage:N", scale=alt.Scale(domain=stages, range=["circle", "square", "diamond", "triangle-up"][: len(stages)]))
    colour = alt.Color("colour:N", scale=None)
    tooltip = make_tooltip("method:N", "stage:N", ("accuracy:Q", view.metric.axis), ("added:N", "fine-tuning adds, points"))
    base = alt.Chart(inline_rows(rows))
    chart = alt.layer(
        base.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=colour, detail="method:N"),
        base.mark_point(filled=True, size=110, opacity=1).encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip),
    ).properties(height=alt.Step(34))
    note = "The model that a client is served, and the same after the client trained it further on its own data."
    return [Figure(view.id("stages"), "Both stages: served, and after local epochs", note, chart)]


JITTER = 0.03  # of the map's width: clients that always share a group would hide each other


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
    plane = np.zeros((len(table), 2))
    if np.ptp(table, axis=0).any():  # points that are all equal have no directions
        plane = PCA(2, svd_solver="full" if len(table) < 100 else "randomized", random_state=0).fit_transform(table)
        plane /= max(float(np.abs(plane).max()), 1e-9)
    return np.asarray(plane + JITTER * make_generator(make_key(0, "client map", label)).standard_normal(plane.shape))


def _client_tooltips(view: FederationView) -> list[str]:
    return [f"{name}:{'Q' if name == 'samples' else 'N'}" for name in view.client_tooltip(0)]
