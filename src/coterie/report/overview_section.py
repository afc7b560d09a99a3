"""The first screen: verdict, recommendation and a forest plot; then a table of one line a method, whose rows open to details.

The plot is a table that the style sheet draws: it needs no script, keeps its columns in line at any width, and prints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10, nan
from typing import Any

import pandas as pd

from coterie.analysis.findings import Finding
from coterie.analysis.overview import Difference, Overview, OverviewRow, format_interval, format_signed
from coterie.analysis.verdict import describe_divergence, describe_intervals, format_points, list_verdict_sentences
from coterie.report.federation_view import FederationView
from coterie.report.page import (
    MISSING,
    Block,
    CellFormatter,
    Column,
    Html,
    ReportTable,
    render_paragraph,
    show_number,
    show_points,
    show_text,
)
from coterie.report.wording import describe_clear_losers, describe_groups, describe_method

MAX_ROWS = 13  # of the plot, so that the first screen holds it


def render_first_screen(view: FederationView, overview: Overview) -> list[Block]:
    """Verdict, recommendation and forest plot of one federation."""
    advice = f'<p class="do"><strong>What to do:</strong> {escape(overview.recommendation)}</p>'
    return [render_paragraph(overview.verdict, "answer"), Html(advice), _render_forest(view, overview)]


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of the plot, in shares."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Where a value is, in percent of the width; at an end where it is beyond."""
        return round(100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low), 2)

    def ticks(self) -> list[tuple[float, bool]]:
        """Three to eight round numbers, and whether each stands on a narrow page, too: every second one, 0 among them."""
        step = 10.0 ** floor(log10((self.high - self.low) / 3))
        step *= next(times for times in (1, 2, 5, 10) if (self.high - self.low) / (step * times) <= 8)
        return [(number * step, number % 2 == 0) for number in range(floor(self.low / step) + 1, floor(self.high / step) + 1)]


def make_axis(rows: Sequence[OverviewRow], margin: float) -> Axis:
    """Wide enough for every gain, for the intervals of the methods under test, and for the margin; much wider intervals are cut off."""
    gains = [(row, row.gain) for row in rows if row.gain is not None]
    values = [gain.mean for _, gain in gains] + [-1.5 * margin, 1.5 * margin]
    values += [end for row, gain in gains for end in (gain.low, gain.high) if row.role == "method" and isfinite(end)]
    ends = [end for _, gain in gains for end in (gain.low, gain.high) if isfinite(end)]
    low, high = min(values), max(values)
    most = 0.3 * (high - low)
    low, high = max(min([low, *ends]), low - most), min(max([high, *ends]), high + most)
    return Axis(low - 0.03 * (high - low), high + 0.03 * (high - low))


def choose_forest_rows(overview: Overview) -> tuple[list[OverviewRow], bool, int]:
    """The rows of the plot, whether controls are ticks in their methods' rows instead of rows, and how many methods do not fit."""
    rows = list(overview.rows)
    if len(rows) <= MAX_ROWS:
        return rows, False, 0
    rows = [row for row in rows if row.role != "control"]
    over = max(0, len(rows) - MAX_ROWS)
    dropped = {row.spec for row in overview.methods[len(overview.methods) - over :]}
    return [row for row in rows if row.spec not in dropped], True, len(dropped)


def _render_forest(view: FederationView, overview: Overview) -> Html:
    rows, ticked, hidden = choose_forest_rows(overview)
    axis, base, margin = make_axis(rows, overview.margin), escape(overview.baseline.label), overview.margin
    controls = {row.of: row for row in overview.rows if row.of is not None} if ticked else {}
    body = "".join(_render_forest_row(view, overview, row, axis, controls.get(row.spec)) for row in rows)
    scale = "".join(
        f'<span{"" if main else " class=wide"} style="left:{axis.place(tick)}%">{format_signed(tick).removesuffix(".0")}</span>'
        for tick, main in axis.ticks()
    )
    shown = {row.gain.verdict for row in rows if row.gain is not None}
    names = {"better": "better", "equivalent": "equivalent", "worse": "worse", "inconclusive": "inconclusive"}
    legend = "".join(f'<span class="{kind}"><b></b>{name}</span>' for kind, name in names.items() if kind in shown)
    legend += '<span class="hollow"><b></b>hollow: a control</span>' if any(row.role == "control" for row in rows) else ""
    legend += f'<span class="band"><b></b>{_describe_margin(margin)}: no difference that matters</span>'
    legend += '<span class="tick"><b></b>the same method with random groups</span>' if controls else ""
    more = f" {hidden} more methods are in the table below." if hidden else ""
    known = any(row.gain is not None and isfinite(row.gain.low) for row in rows)
    caption = (
        f"Gain over {base} in points, {'with 95 % confidence interval' if known else 'of one repetition, so without intervals'}.{more}"
    )
    worse = "clearly worse off" if any(isfinite(row.clearly_worse) for row in overview.rows) else "score lower"
    head = (
        f'<tr><th>method</th><th class="plot"><span>← worse</span><span>better than {base} →</span></th><th class="gain">gain</th>'
        f"<th>{escape(view.metric.axis)}</th><th>{worse}</th></tr>"
    )
    return Html(
        f'<div class="forest" id="{view.id("forest")}"><p class="caption">{caption}</p>'
        f"<table><thead>{head}</thead><tbody>{body}</tbody>"
        f'<tfoot><tr><td></td><td class="plot">{scale}</td><td class="gain"></td><td></td><td></td></tr></tfoot></table>'
        f'<p class="legend">{legend}</p></div>'
    )


def _describe_margin(margin: float) -> str:
    points = format_points(margin).removesuffix(".0")
    return f"within {points} point{'' if points == '1' else 's'}"


def _render_forest_row(view: FederationView, overview: Overview, row: OverviewRow, axis: Axis, control: OverviewRow | None) -> str:
    gain, kind = row.gain, _get_class(row)
    begin, end = axis.place(-overview.margin), axis.place(overview.margin)
    marks = [f'<i class="band" style="left:{begin}%;width:{end - begin:.2f}%"></i><i class="zero" style="left:{axis.place(0)}%"></i>']
    if control is not None and control.gain is not None:
        marks.append(f'<i class="tick" style="left:{axis.place(control.gain.mean)}%"></i>')
    if gain is not None and isfinite(gain.low):
        low, high = axis.place(gain.low), axis.place(gain.high)
        cut = f"{' from' if gain.low < axis.low else ''}{' to' if gain.high > axis.high else ''}"
        marks.append(f'<i class="ci{cut}" style="left:{low}%;width:{high - low:.2f}%"></i>')
    if kind != "unjudged":
        marks.append(f'<b style="left:{axis.place(0 if gain is None else gain.mean)}%"></b>')
    name = row.label if row.of is None else "random groups"
    tested = any(isfinite(other.clearly_worse) for other in overview.rows)
    worse = row.clearly_worse if tested else row.worse
    cells = [MISSING if gain is None else format_signed(gain.mean), _format_score(row), _format_share(worse)]
    numbers = "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(cells, (' class="gain"', "", ""), strict=True))
    role = {"control": " control", "method": "", "baseline": ""}.get(row.role, " simpler")
    return (
        f'<tr class="{kind}{role}" tabindex="0"><th scope="row">{escape(name)}'
        f'<span class="tip" role="tooltip">{escape(explain_row(view, overview, row))}</span></th>'
        f'<td class="plot">{"".join(marks)}</td>{numbers}</tr>'
    )


def _get_class(row: OverviewRow) -> str:
    """The class of the style sheet; a method of which no run can be compared has no verdict."""
    return row.gain.verdict if row.gain is not None else "baseline" if row.role == "baseline" else "unjudged"


def explain_row(view: FederationView, overview: Overview, row: OverviewRow) -> str:
    """A row of the plot in words."""
    does = describe_method(row.spec) if row.of is None else f"{overview.row(row.of).label} with random groups of the same sizes."
    if row.gain is None:
        compared = "All others are compared with it." if row.role == "baseline" else f"It cannot be judged. {row.caution}"
        return f"{row.label}: {does} {compared}"
    gain, base = row.gain, overview.baseline.label
    why = f"{row.label}: {format_signed(gain.mean)} points against {base}"
    if isfinite(gain.low):
        why += f", 95 % confidence interval {format_interval(gain.low, gain.high)}: {_explain_class(view, overview, row, gain)}"
    return " ".join(part for part in (f"{why}.", row.caution, does) if part)


def _explain_class(view: FederationView, overview: Overview, row: OverviewRow, gain: Difference) -> str:
    many = len(overview.methods)
    match gain.verdict:
        case "better":
            return "better, since the interval is above 0" + (
                f", also after correction for {many} methods" if row.role == "method" and many > 1 else ""
            )
        case "worse":
            return "worse, since the interval is below 0"
        case "equivalent":
            return f"equivalent, since the difference is significantly {_describe_margin(overview.margin)}"
    if gain.low <= 0 <= gain.high:
        return "inconclusive, since the interval contains 0"
    few = view.findings.methods[row.spec].outcome == "unproven"
    return "inconclusive: the interval excludes 0, but " + ("the repetitions are too few for the test" if few else "not after correction")


def build_overview_table(view: FederationView, overview: Overview) -> ReportTable:
    """One line a method: gain, verdict, comparisons with simpler ways, similarity, losers and cost."""
    columns = [
        Column("method", show_text("method")),
        Column(view.metric.axis, show_points("score")),
        Column(f"gain over {overview.baseline.label}", _show_difference("gain")),
        Column("verdict", show_text("verdict")),
        *(Column(title, _show_difference(name)) for name, title in _COMPARISONS.items() if any(_get(row, name) for row in overview.rows)),
        Column("clients clearly worse off", show_number("clearly_worse", ".0f", " %", 100)),
        Column("traffic", _show_times("traffic")),
        Column("passes", _show_times("passes")),
    ]
    frame = pd.DataFrame([_make_table_row(row) for row in overview.rows if row.of is None])
    caption = (
        f"Differences in points with their 95 % intervals. Due to similarity: what similar groups bring over random ones. Traffic and "
        f"passes over clients' data: as multiples of {overview.baseline.label}'s."
    )
    return ReportTable(view.id("overview"), caption, frame, tuple(columns))


def build_stage_tables(view: FederationView, overview: Overview) -> list[ReportTable]:
    """Each method at both stages, against the baseline at the same stage; none where fewer than two methods have both."""
    pairs = overview.list_stages()
    if len(pairs) < 2:
        return []
    rows = []
    for served, tuned in pairs:
        row: dict[str, Any] = {"label": served.spec, "method": served.label, "served": served.score, "tuned": tuned.score}
        for name, own in (("served_gain", served.own_stage_gain), ("tuned_gain", tuned.own_stage_gain)):
            row |= {name if end == "mean" else f"{name}_{end}": getattr(own, end, nan) for end in ("mean", "low", "high")}
        rows.append(row | {"similarity_share": nan})
    epochs, base = pairs[0][1].epochs, overview.baseline.label
    columns = (
        Column("method", show_text("method")),
        Column("as served", show_points("served")),
        Column(f"gain over {base}", _show_difference("served_gain")),
        Column(f"after {epochs} local epochs", show_points("tuned")),
        Column(f"gain over {base} after as many", _show_difference("tuned_gain")),
    )
    caption = f"Both stages, each against {base} at the same stage, in points with 95 % intervals. No gain is across stages."
    return [ReportTable(view.id("stages-table"), caption, pd.DataFrame(rows), columns)]


_COMPARISONS = {"against_alone": "against alone", "against_finetuned": "against fine-tuned", "similarity": "due to similarity"}


def _show_difference(name: str) -> CellFormatter:
    """A difference with its interval; of similarity, with its share of the gain before it."""

    def show(row: Mapping[str, Any]) -> str:
        if not isfinite(row[name]):
            return MISSING
        share = row["similarity_share"] if name == "similarity" else nan
        of_gain = "" if not isfinite(share) else "all: " if share > 0.995 else f"{100 * share:.0f} %: "
        ends = f" ({format_interval(row[f'{name}_low'], row[f'{name}_high'])})" if isfinite(row[f"{name}_low"]) else ""
        return f"{of_gain}{format_signed(row[name])}{ends}"

    return show


def _show_times(name: str) -> CellFormatter:
    return lambda row: f"× {row[name]:.1f}" if isfinite(row[name]) else MISSING


def _get(row: OverviewRow, name: str) -> Difference | None:
    found: Difference | None = getattr(row, name)
    return found


def _make_table_row(row: OverviewRow) -> dict[str, Any]:
    numbers: dict[str, Any] = {"label": row.spec, "method": row.label, "role": row.role, "score": row.score}
    for name in ("gain", *_COMPARISONS):
        own = _get(row, name)
        numbers |= {name if end == "mean" else f"{name}_{end}": getattr(own, end, float("nan")) for end in ("mean", "low", "high")}
    return numbers | {
        "verdict": _get_class(row),
        "similarity_share": row.similarity_share,
        "clearly_worse": row.clearly_worse,
        "traffic": row.relative_traffic,
        "passes": row.relative_passes,
    }


def render_method_table(view: FederationView, overview: Overview, table: ReportTable) -> Html:
    """The table with a second row for each method, closed at first, that holds its details."""
    head = "".join(f"<th>{escape(column.title)}</th>" for column in table.columns)
    body = ""
    for row, cells in zip((row for row in overview.rows if row.of is None), table.cells(), strict=True):
        name, *others = cells
        inside = "".join(f"<li>{escape(sentence)}</li>" for sentence in list_details(view, row))
        place = f"{view.id('details')}-{overview.rows.index(row)}"
        button = f'<button aria-expanded="false" aria-controls="{place}">{escape(name)}</button>'
        line = "".join(f"<td>{_break_interval(cell)}</td>" for cell in others)
        body += f'<tr class="{_get_class(row)}"><th scope="row">{button}</th>{line}</tr>'
        body += f'<tr class="details" id="{place}" hidden><td colspan="{len(cells)}"><ul>{inside}</ul></td></tr>'
    return Html(
        f'<p class="caption">{escape(table.caption)} Click a name for details.</p>'
        f'<div class="table"><table class="methods"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _break_interval(cell: str) -> str:
    """An interval in brackets goes below its number."""
    number, _, interval = cell.partition(" (")
    return f"{escape(number)}<small>{escape(interval.removesuffix(')'))}</small>" if interval else escape(cell)


def list_details(view: FederationView, row: OverviewRow) -> list[str]:
    """What is behind a line of the table: what the method does, the tests, the clients and the groups."""
    finding, does = view.findings.methods[row.spec], describe_method(row.spec)
    sentences = [does] if does else []
    if row.role == "method":
        sentences += list_verdict_sentences(view.findings, finding)
    elif row.role != "baseline":
        sentences += [*_describe_simple(view, finding), *describe_divergence(finding)]
    lost = describe_clear_losers(view, finding) if row.role != "baseline" else []
    return [*sentences, *lost, *describe_groups(view, finding), f"In full: {row.spec}"]


def _describe_simple(view: FederationView, finding: Finding) -> list[str]:
    gap = finding.gap
    points = f"It is {format_signed(gap.mean)} points from {view.baseline.name}"
    return [f"{points} ({describe_intervals(gap, view.findings)})." if gap.testable else f"{points}, in one run."] if gap.n else []


def _format_score(row: OverviewRow) -> str:
    return f"{100 * row.score:.1f}".replace("-", "−") if isfinite(row.score) else MISSING


def _format_share(share: float) -> str:
    return f"{100 * share:.0f} %" if isfinite(share) else MISSING
