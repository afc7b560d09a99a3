"""A comparison on the terminal: the verdicts in words, and a table for each federation."""

from rich.table import Table

from coterie.analysis.comparison import Comparison
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.recommendation import recommend
from coterie.analysis.remarks import remarks_of
from coterie.analysis.wording import TESTS
from coterie.cli.console import PlainConsole, bold
from coterie.cli.results import DIVERGED

CAPTION = (
    "{} and gain in points over the baseline on every client's own test part; the 95 % interval is the widest of those that decide "
    "(over draws, or seeds of one draw; over test clients), p the largest of their one-sided p-values, over {} by {}, after Holm's "
    "correction; lower: "
    "clients that score lower than under the baseline, and how many clearly do."
)

EDGE = " ^"  # beside a score at a learning rate beyond which nothing was tried


def print_comparison(comparison: Comparison, console: PlainConsole) -> None:
    """The verdicts and a table for each federation."""
    said = comparison.verdicts()
    for findings in comparison.federations:
        console.print("\n", bold(findings.data), f", {findings.repetitions}, to round {findings.scope.last}", sep="")
        for sentence in said[findings.data]:
            console.print(f"- {sentence}")
        console.print(_table(findings, comparison.at_edge(findings)))
        if (chosen := recommend(findings)) is not None:
            console.print(bold("Recommended: "), f"{chosen.name} ({chosen.meaning}). {chosen.reason}", sep="", soft_wrap=True)
        if findings.unseen is not None:
            console.print(_unseen(findings.unseen))
        for remark in remarks_of(findings.records.evidence):
            console.print(remark, style="yellow")
    if (ranks := comparison.ranking) is not None:
        order = sorted(zip(ranks.ranks, ranks.methods, strict=True))
        listed = ", ".join(f"{method} {rank:.2f}" for rank, method in order)
        console.print(f"\nMean ranks over {ranks.federations} federations: {listed}.")
        console.print(f"Friedman's p = {ranks.p:.3g}; ranks less than {ranks.difference:.2f} apart cannot be told apart.")
    for fault in comparison.faults:
        console.print(fault, style="yellow")


def _table(findings: Findings, at_edge: frozenset[str]) -> Table:
    measure = findings.measure
    caption = measure.title if measure.share else measure.times_100
    told = CAPTION.format(caption, f"{findings.repetitions.unit}s", TESTS[findings.test])
    told += f" {DIVERGED.strip()}: training diverged." if any(own.divergence is not None for own in findings.methods.values()) else ""
    told += f" {EDGE.strip()}: at the lowest or highest learning rate that was tried." if at_edge else ""
    table = Table(header_style="bold", box=None, pad_edge=False, caption=told, caption_justify="left")
    table.add_column("method", overflow="fold", min_width=12)
    for name in (findings.score, "gain", "95 % interval", "p", "lower", "clearly"):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in findings.methods.values():
        table.add_row(*_cells(findings, finding, EDGE if finding.label in at_edge else ""))
    return table


def _unseen(findings: Findings) -> Table:
    """How those fare who took no part."""
    count = len(findings.records.ids)
    table = Table(title=f"\nClients that took no part ({count})", title_justify="left", header_style="bold", box=None, pad_edge=False)
    table.add_column("method", overflow="fold", min_width=12)
    for name in (findings.score, "95 % interval", "gain", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for finding in findings.methods.values():
        own, gain, base = finding.scores[findings.score], finding.gap, finding.role == "baseline"
        table.add_row(
            finding.label,
            _number(100 * own.mean, ".1f"),
            f"{100 * own.low:.1f} to {100 * own.high:.1f}" if own.low == own.low else "",  # of one run there is none
            "" if base else _number(100 * gain.mean, "+z.1f"),
            "" if base or not gain.testable else f"{100 * gain.low:+z.1f} to {100 * gain.high:+z.1f}",
        )
    return table


def _cells(findings: Findings, finding: Finding, mark: str) -> list[str]:
    gain = finding.gap
    base = finding.role == "baseline"
    return [
        finding.label,
        _number(100 * finding.scores[findings.score].mean, ".1f") + DIVERGED * (finding.divergence is not None) + mark,
        "" if base else _number(100 * gain.mean, "+z.1f"),
        "" if base or not gain.testable else f"{100 * gain.low:+z.1f} to {100 * gain.high:+z.1f}",
        _number(finding.corrected_p, ".3f") if finding.role == "method" else "",
        "" if base else _number(100 * finding.fairness.worse, ".0f", " %"),
        "" if base else _number(finding.fairness.clearly_worse, ".3g"),
    ]


def _number(value: float, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if abs(value) < float("inf") else "–"  # neither nan nor infinite
