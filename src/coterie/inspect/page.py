"""The page of an inspection and its figures: one file, no network."""

from html import escape
from typing import Any

import altair as alt
import numpy as np
from scipy.cluster import hierarchy

from coterie.analysis.metrics import DEFAULT_METRICS, METRICS
from coterie.grouping.heterogeneity import INDICES
from coterie.inspect.answers import Answer, write_answers
from coterie.inspect.inspection import Inspection
from coterie.inspect.pilot import Pilot, ServingWay
from coterie.inspect.recommendation import recommend
from coterie.report.charts.elements import Heatmap, HeatmapStyle, apply_ramp, draw_heatmaps, shrink
from coterie.report.figure import Figure
from coterie.report.page import Block, Html, Section, render_page, render_paragraph
from coterie.report.style import GREY, LIGHT_GREY, OKABE_ITO, SIMPLER_COLOURS, pick_group_colours

MAX_POINTS = 200  # clients, above which points are drawn small
CURVES = [OKABE_ITO["blue"], GREY, OKABE_ITO["orange"], OKABE_ITO["green"]]
DIVERGING = ("#D55E00", "#FFFFFF", "#0072B2")  # from opposite over unrelated to alike


def draw_similarity(found: Inspection) -> Figure:
    """The cosines of all pairs of clients."""
    order = hierarchy.leaves_list(hierarchy.linkage(found.groups.coordinates, "ward"))  # as Ward's tree puts them side by side
    ids = [found.ids[i] for i in order]
    kind = HeatmapStyle(
        row="clients in dendrogram order",
        column="clients in dendrogram order",
        value="similarity",
        colour=alt.Color("value:Q", scale=alt.Scale(domain=[-1, 0, 1], range=list(DIVERGING), interpolate="rgb"), legend=None),
        paint=lambda values: apply_ramp((shrink(values) + 1) / 2, DIVERGING),
        show=lambda value: round(float(value), 2),
        height=320,
    )
    table = Heatmap("", found.similarity[np.ix_(order, order)], ids, ids)
    note = (
        "The cosine between clients in the directions that both halves of their data agree on: blue is alike, white unrelated, orange "
        "opposite. Distinct groups are blocks with sharp edges; in a continuum blue fades."
    )
    return Figure("similarity", "Similarity of clients", note, draw_heatmaps([table], kind), several=True)


def draw_map(found: Inspection) -> Figure:
    """Clients in the two directions in which they differ most."""
    groups = found.groups
    one = groups.coordinates.shape[1] == 1
    points = np.pad(groups.coordinates[:, ::-1], ((0, 0), (0, 1)))  # directions are kept by rising spread; a second is there in any case
    bare = alt.Axis(labels=False, ticks=False, grid=False)
    far = set(groups.outliers.tolist())
    data = [
        {
            "id": found.ids[i],
            "x": float(points[i, 0]),
            "y": float(points[i, 1]),
            "group": str(groups.labels[i]),
            "samples": int(found.sizes[i]),
            "place": "far from its group" if i in far else "within its group",
        }
        for i in range(len(found.ids))
    ]
    chart = (
        alt.Chart(alt.InlineData(values=data))
        .mark_point(filled=True, size=70 if len(data) <= MAX_POINTS else 25, opacity=0.8 if len(data) <= MAX_POINTS else 0.5)
        .encode(
            x=alt.X("x:Q", title="first shared direction", axis=bare),
            y=alt.Y("y:Q", title="(no second direction is shared)" if one else "second shared direction", axis=bare),
            color=alt.Color("group:N", scale=_pick_group_colours(groups.k), title="group"),
            shape=alt.Shape("place:N", scale=alt.Scale(domain=["within its group", "far from its group"], range=["circle", "cross"])),
            tooltip=["id:N", "group:N", "samples:Q", "place:N"],
        )
        .properties(height=340)
    )
    found_as = "distinct groups" if groups.distinct else "groups that are no more distinct than chance"
    note = f"Colours are the {groups.k} {found_as}; clients with few samples are drawn towards the middle, as little is known of them."
    return Figure("map", "A map of the clients", note, chart)


def draw_curves(found: Inspection) -> Figure:
    """How much each number of groups accounts for, here and in one population."""
    groups = found.groups
    lines = {
        "this federation": groups.share,
        "one population of the same spread": groups.expected,
        "agreement of the two halves' groups": groups.stability,
        "the worst group, found again": groups.recurrence,
    }
    data = [
        {"groups": k, "share": float(value), "line": name}
        for name, values in lines.items()
        for k, value in enumerate(values, start=2)
        if np.isfinite(value)
    ]
    names = list(lines)
    chart = (
        alt.Chart(alt.InlineData(values=data))
        .mark_line(point=True)
        .encode(
            x=alt.X("groups:O", title="number of groups", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("share:Q", title="share of the variance; agreement"),
            color=alt.Color("line:N", scale=alt.Scale(domain=names, range=CURVES)),
            strokeDash=alt.StrokeDash("line:N", scale=alt.Scale(domain=names, range=[[1, 0], [6, 4], [2, 3], [8, 3, 2, 3]])),
            tooltip=["line:N", "groups:O", alt.Tooltip("share:Q", format=".2f")],
        )
        .properties(height=280)
    )
    note = (
        "Distinct groups leave little unexplained: where the line of this federation takes a step up that one population does not take, "
        "and the groups are found again on the other half of the data (adjusted Rand index, at least .5) and among other clients (Jaccard "
        "index of the worst group, at least .75), that number of groups is reported. The last number in the figure is never reported."
    )
    return Figure("curves", "How many groups", note, chart)


def draw_pilot_arms(pilot: Pilot) -> Figure:
    """One model, groups, and every random grouping."""
    samples = pilot.judged.sum()
    arms = [
        ("one model", [pilot.one.sum() / samples]),
        ("groups", [pilot.grouped.sum() / samples]),
        ("random groups of the same sizes", pilot.random.sum(axis=1) / samples),
    ]
    if pilot.ways is not None:
        more: tuple[tuple[ServingWay, str], ...] = (("tuned", "one model, fine-tuned"), ("alone", "training alone"))
        arms[1:1] = [(name, [pilot.ways.score(way)]) for way, name in more]
    data = [{"arm": name, "accuracy": 100 * float(score)} for name, drawn in arms for score in drawn]
    names = [name for name, _ in arms]
    colours = {"one model": SIMPLER_COLOURS["FedAvg"], "groups": OKABE_ITO["blue"], "random groups of the same sizes": LIGHT_GREY}
    colours |= {"one model, fine-tuned": SIMPLER_COLOURS["FedAvg, fine-tuned"], "training alone": SIMPLER_COLOURS["Training alone"]}
    chart = (
        alt.Chart(alt.InlineData(values=data))
        .mark_tick(thickness=3, size=26)
        .encode(
            x=alt.X("accuracy:Q", title=METRICS[DEFAULT_METRICS[pilot.task.name]].axis, scale=alt.Scale(zero=False, padding=8)),
            y=alt.Y("arm:N", title=None, sort=names),
            color=alt.Color("arm:N", scale=alt.Scale(domain=names, range=[colours[name] for name in names]), legend=None),
            tooltip=["arm:N", alt.Tooltip("accuracy:Q", format=".1f")],
        )
        .properties(height=190)
    )
    return Figure(
        "pilot",
        "One model, fine-tuned, alone, groups, random groups",
        f"Judged on {pilot.on}. Every light grey tick is one random grouping.",
        chart,
    )


def draw_client_gains(found: Inspection) -> list[Figure]:
    """Each client's own gain from grouping."""
    if found.pilot is None:
        return []
    gains = found.pilot.client_gains
    group = dict(zip(found.ids, found.groups.labels.tolist(), strict=True))
    data: list[dict[str, Any]] = [
        {"rank": rank, "id": found.pilot_ids[i], "gain": 100 * float(gains[i]), "group": str(group[found.pilot_ids[i]])}
        for rank, i in enumerate(np.argsort(gains, kind="stable"), start=1)
    ]
    chart = (
        alt.Chart(alt.InlineData(values=data))
        .mark_bar()
        .encode(
            x=alt.X(
                "rank:Q",
                title="clients, from worst to best",
                scale=alt.Scale(domain=[0.5, len(data) + 0.5], nice=False),  # whole bars at both ends
                axis=alt.Axis(grid=False, tickMinStep=1),
            ),
            y=alt.Y("gain:Q", title="gain over one model, points"),
            color=alt.Color("group:N", scale=_pick_group_colours(found.groups.k), title="group"),
            tooltip=["id:N", "group:N", alt.Tooltip("gain:Q", format="+.1f")],
        )
        .properties(height=240)
    )
    note = "Rough: every client judges on its own few samples. Look at whole groups before single clients."
    return [Figure("gains", "Clients that gain from grouping", note, chart)]


def _pick_group_colours(k: int) -> alt.Scale:
    return alt.Scale(domain=[str(number) for number in range(k)], range=list(pick_group_colours(k)))


METHOD_NOTE = (
    "Every client sent its mean gradient at one random model, on two halves of its data. No sample moved. What the two halves of a client "
    "have in common is the client; what differs is chance. The tests are explained in docs/explanation/inspect.md."
)


def render_inspection(found: Inspection) -> str:
    """The whole page as text."""
    title = f"Are there groups here? {found.data}"
    lead = f"{len(found.ids)} clients, model {found.model}. {found.sampled}".strip()
    return render_page(title, lead, build_sections(found))


def build_sections(found: Inspection) -> list[Section]:
    """Answers first, then their evidence."""
    advised = recommend(found)
    blocks: list[Block] = (
        [] if advised is None else [render_paragraph(str(advised), "answer"), render_paragraph(f"Next: {advised.command}", "note")]
    )
    blocks += [Html("".join(map(_render_card, write_answers(found)))), render_paragraph(METHOD_NOTE, "note")]
    if found.left_out:
        blocks.append(render_paragraph(f"Left out, for lack of samples or of a reply: {len(found.left_out)} clients.", "note"))
    made = [
        Section("The answers", blocks, "answers", "Answers"),
        Section("The clients", [draw_similarity(found), draw_map(found)], "clients", "Clients"),
        Section("The groups", [draw_curves(found)], "groups", "Groups"),
    ]
    if found.pilot is not None:
        made.append(Section("The pilot", [draw_pilot_arms(found.pilot), *draw_client_gains(found)], "help", "Pilot"))
    return [*made, Section("How different the clients are", [_render_indices(found)], "indices", "Indices")]


def _render_card(answer: Answer) -> str:
    return f"<p>{escape(answer.question)} <strong>{escape(answer.short)}</strong><br>{escape(answer.evidence)}</p>"


def _render_indices(found: Inspection) -> Html:
    cells = [(name, f"{value:.3g}", INDICES[name].leaves, INDICES[name].meaning) for name, value in found.indices.items()]
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    head = "<thead><tr><th>index</th><th>value</th><th>what leaves the client</th><th>meaning</th></tr></thead>"
    return Html(f'<div class="table"><table class="words">{head}<tbody>{rows}</tbody></table></div>')
