"""Results of studies and comparisons as tables on the terminal."""

from typing import TYPE_CHECKING

import numpy as np

from coterie.analysis.caveats import collect_remarks
from coterie.analysis.comparison import Comparison
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.metrics import SCORES, Metric
from coterie.analysis.scores import DECILE_TITLES, TAIL_ROUNDS
from coterie.analysis.verdict import TEST_NAMES, recommend
from coterie.cli.console import PlainConsole, make_bold
from coterie.cli.overview_table import GRID_EDGE, print_overview
from coterie.cli.terminal import make_method_table, shorten_names
from coterie.run.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table
PRINTED_SCORES = {name: score for name, score in SCORES.items() if score.printed}
PERCENT_COLUMNS: dict[str, str] = {
    "final": "final",
    "±": "±",
    **{name: score.title for name, score in PRINTED_SCORES.items() if score.percent},
}
OTHER_SCORES: dict[str, str] = {name: score.title for name, score in PRINTED_SCORES.items() if not score.percent}
PLAIN_COLUMNS = OTHER_SCORES | {"seeds": "seeds", "MB/round": "MB/round"}
QUANTILE_TITLES = [DECILE_TITLES[i] for i in (0, 1, 3, 5, 7, 9, 10)]  # as many quantiles as a terminal has room for
RESULT_CAPTION = (
    "{} on every client's own test part, with the model it is served: after the last round (± over seeds), {}, and of the "
    "worst-served client."
)
DIVERGED = " !"  # beside a score of models whose training diverged
UNSEEN_CAPTION = "Unseen: after the last round, of the clients that took no part; they are in no other column."


def print_result(result: Result, console: PlainConsole, *, details: bool = False) -> None:
    """The methods side by side, and every lane that did not reach the end; with `details`, every score and quantiles over clients."""
    table, legend = make_result_table(result, details=details)
    console.print(table)
    for line in legend:
        console.print(line, style="dim")
    if result.spread is not None and details:
        console.print(make_quantile_table(result.spread, result.metric))
    for sentence in dict.fromkeys(result.remarks):
        console.print(sentence, style="yellow", highlight=False, markup=False)
    if silent := find_clients_without_scores(result):
        console.print(f"{len(silent)} clients share no scores, by their sites' policies: {', '.join(silent)}.", style="yellow")
    for remark in collect_remarks(result.evidence):
        console.print(remark, style="yellow")
    for key, end in result.problems.items():
        where = f", draw {key.draw}" if len(result.evidence.settings.draws) > 1 else ""
        console.print(f"{key.method}, seed {key.seed}{where}: {end}", style="yellow")


def make_result_table(result: Result, *, details: bool = False) -> "tuple[Table, list[str]]":
    """The methods of a study side by side, and the legend of names that are cut."""
    frame = result.table()
    few = result.evidence.settings.plan.rounds <= TAIL_ROUNDS  # then the last ten are all of them
    left_out = {"last10" if few else "" if details else "mean", "" if details else "seeds"}
    frame = frame[[name for name in [*PERCENT_COLUMNS, *PLAIN_COLUMNS] if name in frame and name not in left_out]]
    measure = result.metric
    means = "mean of all rounds" if few else f"mean of the last {TAIL_ROUNDS} rounds{' and of all rounds' if details else ''}"
    caption = RESULT_CAPTION.format(f"{measure.title} in %" if measure.is_share else measure.times_100, means)
    caption += f" {UNSEEN_CAPTION}" if "unseen" in frame else ""
    caption += f" {DIVERGED.strip()}: training diverged." if result.diverged else ""
    best = str(frame["final"].idxmax()) if frame["final"].notna().any() and len(frame) > 1 else None
    methods = [str(method) for method in frame.index]
    names, legend = (methods, []) if details else shorten_names(methods)
    rows = []
    for name, (method, row) in zip(names, frame.iterrows(), strict=True):
        mark = DIVERGED if method in result.diverged else ""
        rows.append((name, *(_format_cell(column, value) + (mark if column == "final" else "") for column, value in row.items())))
    titles = [(PERCENT_COLUMNS | PLAIN_COLUMNS)[name] for name in frame.columns]
    return make_method_table(titles, rows, bold=None if best is None else methods.index(best), caption=caption), legend


def make_quantile_table(quantiles: "pd.DataFrame", measure: Metric) -> "Table":
    """Quantiles of all clients' scores, of studies that keep rows of a sample."""
    caption = f"{measure.times_100} of clients' own test parts after the last round, over all clients: so many are at or below."
    rows = [(str(method), *(_format_cell("final", row[title]) for title in QUANTILE_TITLES)) for method, row in quantiles.iterrows()]
    return make_method_table(QUANTILE_TITLES, rows, caption=caption)


def _format_cell(name: object, value: float) -> str:
    if value is None or np.isnan(value):
        return "–"
    if name in PERCENT_COLUMNS:
        return f"{100 * value:.1f}"
    return f"{value:.0f}" if name == "seeds" else f"{value:.3g}"


def find_clients_without_scores(result: Result) -> list[str]:
    """The clients whose sites deny evaluations in the last round: they train with the others, without a score."""
    evidence = result.evidence
    absences = evidence.frame("absences")
    denied = absences[(absences["why"] == "DENIED") & (absences["ask"] == "Evaluate") & (absences["round"] == result.last)]
    ids = evidence.rosters[evidence.settings.draws[0]].column("id").to_pylist()
    return [str(ids[client]) for client in sorted(set(denied["client"]))]


COMPARISON_CAPTION = (
    "{} and gain in points over the baseline on every client's own test part; the 95 % interval is the widest of those that decide "
    "(over draws, or seeds of one draw; over test clients), p the largest of their one-sided p-values, over {} by {}, after Holm's "
    "correction; lower: "
    "clients that score lower than under the baseline, and how many clearly do."
)


def print_comparison(comparison: Comparison, console: PlainConsole, *, details: bool = False) -> None:
    """An overview of each federation, or with `details` every verdict in words and a table of all methods and controls."""
    for findings in comparison.federations:
        if details:
            _print_details(comparison, findings, console)
        else:
            print_overview(findings, comparison.at_edge(findings), console)
    if (ranks := comparison.ranking) is not None:
        order = sorted(zip(ranks.ranks, ranks.methods, strict=True))
        listed = ", ".join(f"{method} {rank:.2f}" for rank, method in order)
        console.print(f"\nMean ranks over {ranks.federations} federations: {listed}.")
        console.print(f"Friedman's p = {ranks.p:.3g}; ranks less than {ranks.difference:.2f} apart do not differ significantly.")
    for fault in comparison.faults:
        console.print(fault, style="yellow")


def _print_details(comparison: Comparison, findings: Findings, console: PlainConsole) -> None:
    console.print("\n", make_bold(findings.data), f", {findings.repetitions}, to round {findings.scope.last}", sep="")
    for sentence in comparison.verdicts()[findings.data]:
        console.print(f"- {sentence}")
    console.print(_make_comparison_table(findings, comparison.at_edge(findings)))
    if (chosen := recommend(findings)) is not None:
        console.print(make_bold("Recommended: "), f"{chosen.name} ({chosen.meaning}). {chosen.reason}", sep="", soft_wrap=True)
    if findings.unseen is not None:
        console.print(_make_unseen_table(findings.unseen))
    for remark in collect_remarks(findings.records.evidence):
        console.print(remark, style="yellow")


def _make_comparison_table(findings: Findings, at_edge: frozenset[str]) -> "Table":
    measure = findings.metric
    caption = measure.title if measure.is_share else measure.times_100
    caption = COMPARISON_CAPTION.format(caption, f"{findings.repetitions.unit}s", TEST_NAMES[findings.test])
    caption += f" {DIVERGED.strip()}: training diverged." if any(own.divergence is not None for own in findings.methods.values()) else ""
    caption += f" {GRID_EDGE.strip()}: at the lowest or highest learning rate that was evaluated." if at_edge else ""
    rows = [_format_cells(findings, finding, GRID_EDGE if finding.label in at_edge else "") for finding in findings.methods.values()]
    return make_method_table((findings.score, "gain", "95 % interval", "p", "lower", "clearly"), rows, caption=caption)


def _make_unseen_table(findings: Findings) -> "Table":
    """The scores of clients that took no part."""
    rows = []
    for finding in findings.methods.values():
        own, gain, base = finding.scores[findings.score], finding.gap, finding.role == "baseline"
        rows.append(
            (
                finding.label,
                _format_number(100 * own.mean, ".1f"),
                f"{100 * own.low:.1f} to {100 * own.high:.1f}" if own.low == own.low else "",  # of one run there is none
                "" if base else _format_number(100 * gain.mean, "+z.1f"),
                "" if base or not gain.testable else f"{100 * gain.low:+z.1f} to {100 * gain.high:+z.1f}",
            )
        )
    title = f"\nClients that took no part ({len(findings.records.ids)})"
    return make_method_table((findings.score, "95 % interval", "gain", "95 % interval"), rows, title=title)


def _format_cells(findings: Findings, finding: Finding, mark: str) -> list[str]:
    gain = finding.gap
    base = finding.role == "baseline"
    return [
        finding.label,
        _format_number(100 * finding.scores[findings.score].mean, ".1f") + DIVERGED * (finding.divergence is not None) + mark,
        "" if base else _format_number(100 * gain.mean, "+z.1f"),
        "" if base or not gain.testable else f"{100 * gain.low:+z.1f} to {100 * gain.high:+z.1f}",
        _format_number(finding.corrected_p, ".3f") if finding.role == "method" else "",
        "" if base else _format_number(100 * finding.fairness.worse, ".0f", " %"),
        "" if base else _format_number(finding.fairness.clearly_worse, ".3g"),
    ]


def _format_number(value: float, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if abs(value) < float("inf") else "–"  # neither nan nor infinite
