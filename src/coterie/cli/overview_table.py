"""A comparison at a glance: the verdict, the recommendation, and one table in which the interval of each gain is drawn in characters."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite
from typing import TYPE_CHECKING

from rich.text import Text

from coterie.analysis.caveats import collect_remarks, list_incomplete
from coterie.analysis.findings import Findings
from coterie.analysis.overview import Difference, Overview, OverviewRow, VerdictClass, format_interval, format_signed, make_overview
from coterie.cli.console import PlainConsole, make_bold
from coterie.cli.terminal import MIN_NAME, make_method_table, shorten_names

if TYPE_CHECKING:
    from rich.table import Table

STYLES: dict[VerdictClass, str] = {"better": "green", "worse": "red", "equivalent": "blue", "inconclusive": ""}
DOTS: dict[VerdictClass, str] = {"better": "●", "worse": "●", "equivalent": "◆", "inconclusive": "○"}
MEANINGS = {"●": "significant", "○": "not significant", "◆": "equivalent"}
ZERO, MARGIN, LEFT, RIGHT, LINE, CROSSING = "│", "┊", "├", "┤", "─", "┼"
INTERVAL = "95 % interval"
MIN_PLOT, MAX_PLOT = 20, 60  # columns
MAX_NOUN = 12  # columns of a metric's name
WIDE = 100  # columns of a terminal from which intervals are also printed as numbers
GRID_EDGE = " ^"  # beside a score at a learning rate at the edge of those evaluated


@dataclass(frozen=True)
class Axis:
    """Maps gains (as shares) to columns of the plot."""

    low: float
    high: float
    width: int

    @classmethod
    def around(cls, gains: Sequence[Difference], margin: float, width: int) -> "Axis":
        """The axis that holds every interval, zero and the margin."""
        ends = [0.0, -margin, margin, *(end for gain in gains for end in (gain.low, gain.mean, gain.high) if isfinite(end))]
        return cls(min(ends), max(ends), width)

    def column(self, value: float) -> int:
        return round((value - self.low) / max(self.high - self.low, 1e-9) * (self.width - 1))

    def reach(self, margin: float) -> int:
        """The columns between zero and the margin; none where zero hides it."""
        return self.column(self.low + margin)

    def draw(self, gain: Difference | None, margin: float) -> Text:
        """One row: zero, the margin on both sides of it, and the interval with a dot at the gain."""
        cells, zero, reach = [" "] * self.width, self.column(0.0), self.reach(margin)
        for column in (zero - reach, zero + reach):
            cells[min(max(column, 0), self.width - 1)] = MARGIN
        cells[zero] = ZERO
        if gain is None or not isfinite(gain.mean):
            return Text("".join(cells), style="dim")
        at = self.column(gain.mean)
        first, last = (self.column(end) if isfinite(end) else at for end in (gain.low, gain.high))
        cells[first : last + 1] = [LEFT, *(CROSSING if c == zero else LINE for c in range(first + 1, last)), RIGHT][: last - first + 1]
        cells[at] = DOTS[gain.verdict]
        drawn = "".join(cells)
        return Text.assemble((drawn[:first], "dim"), (drawn[first : last + 1], STYLES[gain.verdict]), (drawn[last + 1 :], "dim"))

    def draw_ticks(self) -> Text:
        """Round numbers below their columns."""
        cells, end = [" "] * self.width, -1
        step = _choose_step((self.high - self.low) * 100 * 6 / self.width)
        for number in range(ceil(100 * self.low / step), floor(100 * self.high / step) + 1):
            text = format_signed(number * step / 100).removesuffix(".0")
            first = min(max(self.column(number * step / 100) - len(text) // 2, 0), self.width - len(text))
            if first > end:
                cells[first : first + len(text)] = text
                end = first + len(text)
        return Text("".join(cells), style="dim")


def _choose_step(least: float) -> float:
    """The smallest of 0.1, 0.2, 0.5, 1, 2, 5, 10, ... that is not below `least`."""
    scale = 0.1
    while True:
        for factor in (1, 2, 5):
            if factor * scale >= least:
                return factor * scale
        scale *= 10


def print_overview(findings: Findings, at_edge: frozenset[str], console: PlainConsole) -> None:
    """Print what one federation's comparison found."""
    found = make_overview(findings)
    console.print("\n", make_bold(found.data), f", {found.repetitions}, to round {findings.scope.last}", sep="")
    console.print(make_bold(found.verdict))
    console.print(found.recommendation)
    console.print()
    table, axis, legend = _make_table(found, findings, at_edge, console)
    console.print(table)
    for line in (*_describe_table(found, findings, at_edge, axis), *_describe_specs(found), *legend):
        console.print(line, style="dim")
    print_stages(found, console)
    cautions = [f"{row.label}: {row.caution}" for row in found.rows if row.caution]
    for sentence in dict.fromkeys([*list_incomplete(findings), *cautions, *collect_remarks(findings.evidence)]):
        console.print(sentence, style="yellow")


def print_stages(found: Overview, console: PlainConsole) -> None:
    """Each method at both stages, against the baseline at the same stage; nothing where fewer than two methods have both."""
    pairs = found.list_stages()
    if len(pairs) < 2:
        return
    base, epochs = found.baseline.label, pairs[0][1].epochs
    rows = []
    for served, tuned in pairs:
        gains = ["" if gain is None else str(gain) for gain in (served.own_stage_gain, tuned.own_stage_gain)]
        rows.append((served.label, f"{100 * served.score:.1f}", gains[0], f"{100 * tuned.score:.1f}", gains[1]))
    titles = ["served", "gain", f"+{epochs} epochs", "gain"]
    console.print()
    caption = f"As served, and after {epochs} local epochs more: gains over {base} at the same stage."
    console.print(make_method_table(titles, rows, caption=caption))


def _get_row_name(row: OverviewRow, found: Overview) -> str:
    """Its label; of a control, what it controls for, below its method."""
    return row.label if row.of is None else f"  {row.label.removeprefix(f'{found.row(row.of).label}, ')}"


def _make_table(found: Overview, findings: Findings, at_edge: frozenset[str], console: PlainConsole) -> "tuple[Table, Axis, list[str]]":
    """The table, its axis, and the legend of names that are cut to leave room for the plot."""
    gains = [row.gain for row in found.rows if row.gain is not None]
    columns: dict[str, list[str | Text]] = {
        noun if len(noun := findings.metric.noun) <= MAX_NOUN else "score": [_format_score(row, findings, at_edge) for row in found.rows],
    }
    if findings.unseen is not None:
        unseen = findings.unseen.methods
        columns["unseen"] = [f"{100 * unseen[row.spec].scores[findings.score].mean:.1f}".replace("nan", "–") for row in found.rows]
    columns["gain"] = ["" if row.gain is None else format_signed(row.gain.mean) for row in found.rows]
    plot = INTERVAL
    if console.width >= WIDE:
        plot = ""
        columns[INTERVAL] = ["" if row.gain is None or not isfinite(row.gain.low) else _format_ends(row.gain) for row in found.rows]
    worse: dict[str, list[str | Text]] = {
        "worse": [f"{100 * row.clearly_worse:.0f} %" if isfinite(row.clearly_worse) else "" for row in found.rows]
    }
    worse = worse if any(worse["worse"]) else {}
    used = sum(2 + max(map(len, (title, *map(str, cells)))) for title, cells in (columns | worse).items())
    names, legend = shorten_names([_get_row_name(row, found) for row in found.rows], console.width - used - 2 - MIN_PLOT)
    width = min(max(console.width - max(MIN_NAME, *map(len, names)) - used - 2, MIN_PLOT), MAX_PLOT)
    axis = Axis.around(gains, found.margin, width)
    columns[plot] = [axis.draw(row.gain, found.margin) for row in found.rows]
    columns |= worse
    bold = next((i for i, row in enumerate(found.rows) if row.spec == found.recommended), None)
    rows = list(zip(names, *columns.values(), strict=True))
    ticks = [axis.draw_ticks() if title == plot else "" for title in columns]
    return make_method_table(list(columns), [*rows, ("", *ticks)], bold=bold, left=(plot,)), axis, legend


def _format_score(row: OverviewRow, findings: Findings, at_edge: frozenset[str]) -> str:
    mark = GRID_EDGE if row.spec in at_edge else ""
    return f"{100 * row.score:.1f}{' %' if findings.metric.is_share else ''}{mark}" if isfinite(row.score) else "–"


def _format_ends(gain: Difference) -> str:
    return format_interval(gain.low, gain.high)


def _describe_table(found: Overview, findings: Findings, at_edge: frozenset[str], axis: Axis) -> list[str]:
    """What the columns and signs mean, for those that occur."""
    hundredths = "" if findings.metric.is_share else f"{findings.metric.times_100}. "
    lines = [f"{hundredths}Gain: points over {found.baseline.label} in {found.measure}."]
    dots = dict.fromkeys(DOTS[row.gain.verdict] for row in found.rows if row.gain is not None)
    signs = [f"{dot} {meaning}" for dot, meaning in MEANINGS.items() if dot in dots]
    if axis.reach(found.margin):
        signs.append(f"{MARGIN} margin of equivalence, ±{100 * found.margin:g}")
    lines.append("   ".join(signs))
    lines += [f"{GRID_EDGE.strip()} at the lowest or highest learning rate that was tested"] if at_edge else []
    if any(isfinite(row.clearly_worse) for row in found.rows):
        lines.append(f"Worse: clients that {found.baseline.label} serves significantly better.")
    if findings.unseen is not None:
        lines.append(f"Unseen: {findings.metric.noun} of the {len(findings.unseen.records.ids)} clients that took no part.")
    return lines


def _describe_specs(found: Overview) -> list[str]:
    """The specs of methods whose names do not show their settings."""
    hidden = [row for row in found.rows if row.role in ("method", "finetuned") and row.spec not in (row.label, row.label.lower())]
    return [f"{row.label}: {row.spec}" for row in hidden]
