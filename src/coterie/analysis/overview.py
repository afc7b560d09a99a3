"""A comparison at a glance: one sentence of verdict, one of advice, and a row of numbers for each method and each simpler way.

The report, the terminal and README show the same overview. The rules are those of `verdict_rules`: a method under test is judged after
Holm's correction; simpler ways and controls are no hypotheses, and their interval alone decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Literal

from coterie._util.formatting import format_count
from coterie.analysis import verdict
from coterie.analysis.draws import Gap
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.roles import MethodRole, find_served, get_tuning_epochs, name_methods
from coterie.analysis.verdict import describe_score, format_points, recommend
from coterie.analysis.verdict_rules import Outcome, compute_advised_repetitions
from coterie.statistics import check_equivalence

VerdictClass = Literal["better", "equivalent", "worse", "inconclusive"]
CLASSES: dict[Outcome, VerdictClass] = {"better": "better", "worse": "worse", "same": "equivalent"}  # all others are inconclusive
SIMPLER: tuple[MethodRole, ...] = ("uniform", "finetuned", "local")
RIVALS: dict[MethodRole, str] = {"local": "training alone", "finetuned": "FedAvg with fine-tuning"}


@dataclass(frozen=True)
class Difference:
    """One method minus another as shares (0.049 is 4.9 points), with the widest of the 95 % intervals that decide.

    The ends are nan where a single repetition leaves no interval.
    """

    mean: float
    low: float
    high: float
    verdict: VerdictClass

    def __str__(self) -> str:
        return f"{format_signed(self.mean)}{f' ({format_interval(self.low, self.high)})' if isfinite(self.low) else ''}"


@dataclass(frozen=True)
class OverviewRow:
    """One method, simpler way or control against the baseline. What is not known is nan or None; of the baseline, `gain` is None."""

    label: str  # as pages and tables name it, different for all rows: "FeSEM", "Training alone"
    spec: str  # its label in the study
    role: MethodRole
    gain: Difference | None
    score: float  # the headline score, a share
    clearly_worse: float  # the share of clients that are clearly worse off than under the baseline; nan where none could be tested
    worse: float  # the share that scores lower, which may be chance
    against_alone: Difference | None
    against_finetuned: Difference | None
    similarity: Difference | None  # the part of the gain that similarity brings over random groups
    traffic: float  # bytes of a run
    passes: float  # passes over clients' data, of a run
    relative_traffic: float  # times the baseline's
    relative_passes: float
    of: str | None = None  # of a control: the spec of its method
    served: str | None = None  # of a method whose clients fine-tune: the spec of the same method without that, where the study has it
    epochs: int = 0  # local epochs after serving
    caution: str = ""  # why not to rely on the score

    @property
    def own_stage_gain(self) -> Difference | None:
        """The gain over the baseline at the same stage: of a method whose clients fine-tune, over the fine-tuned baseline."""
        return self.against_finetuned if self.epochs else self.gain

    @property
    def similarity_share(self) -> float:
        """The share of the gain that is due to similarity; nan unless the method is better than the baseline."""
        if self.similarity is None or self.gain is None or self.gain.verdict != "better":
            return nan
        return self.similarity.mean / self.gain.mean


@dataclass(frozen=True)
class Overview:
    """One federation. Rows: the baseline; methods under test by falling gain, each followed by its random groups; simpler ways."""

    data: str
    verdict: str
    recommendation: str
    recommended: str | None  # the spec of the method to use; None where the study is too small to recommend one
    margin: float  # a share: a difference that does not matter
    measure: str  # what the gain is a difference of: "mean accuracy of rounds 6 to 15"
    repetitions: str  # "10 draws, 2 seeds each"
    rows: tuple[OverviewRow, ...]

    @property
    def baseline(self) -> OverviewRow:
        return self.rows[0]

    @property
    def methods(self) -> tuple[OverviewRow, ...]:
        """The methods under test."""
        return tuple(row for row in self.rows if row.role == "method")

    def list_stages(self) -> list[tuple[OverviewRow, OverviewRow]]:
        """Each row as it is served and after local epochs, where the study has both: the baseline first, then by falling gain."""
        tuned = [row for row in self.rows if row.served is not None and row.role != "control"]
        return [(self.row(row.served), row) for row in sorted(tuned, key=lambda row: row.role != "finetuned") if row.served is not None]

    def row(self, spec: str) -> OverviewRow:
        """The row of one label of the study."""
        return next(row for row in self.rows if row.spec == spec)


def format_signed(value: float) -> str:
    """A share in points with a sign as wide as a plus; zero has none."""
    return verdict.format_signed(value).replace("-", "−")


def format_interval(low: float, high: float) -> str:
    """Two ends of an interval in points."""
    return verdict.format_interval(low, high).replace("-", "−")


def make_overview(findings: Findings) -> Overview:
    """Summarise the comparison of one federation.

    Args:
        findings: As `compute_findings` or `open_comparison(folder).federations` give them.

    Example:
        overview = make_overview(open_comparison("runs/demo").federations[0])
        print(overview.verdict, overview.recommendation)
    """
    names = name_methods(findings.roles)
    rows = tuple(_make_row(findings, names, label, of) for label, of in _order_labels(findings))
    chosen = recommend(findings)
    return Overview(
        data=findings.data,
        verdict=_write_verdict(findings, rows),
        recommendation=_write_recommendation(findings, rows),
        recommended=None if chosen is None else chosen.label,
        margin=findings.margin,
        measure=describe_score(findings),
        repetitions=str(findings.repetitions),
        rows=rows,
    )


def _order_labels(findings: Findings) -> list[tuple[str, str | None]]:
    """The labels of the rows, each with the method that it is a control of."""
    roles = findings.roles
    order: list[tuple[str, str | None]] = [(roles.baseline, None)]
    for label in sorted(roles.methods, key=lambda each: -_sortable(findings.methods[each].gap.mean)):
        controls = roles.controls.get(label, {})
        deciding = controls.get("matched") or controls.get("random")  # the one that lacks nothing but similarity
        order += [(label, None), *([(deciding, label)] if deciding is not None else [])]
    return order + [(label, None) for role in SIMPLER for label, own in roles.of.items() if own == role]


def _sortable(value: float) -> float:
    return value if isfinite(value) else -1e9


def _make_row(findings: Findings, names: dict[str, str], label: str, of: str | None) -> OverviewRow:
    finding, roles, margin = findings.methods[label], findings.roles, findings.margin
    base, own = findings.methods[roles.baseline].spending, finding.spending
    is_base = finding.role == "baseline"

    def compare_with(role: MethodRole) -> Difference | None:
        other = roles.first(role)
        return None if other is None or other == label else make_difference(findings.gap(label, other), margin)

    part = finding.decomposition.step("similarity") if finding.decomposition is not None else None
    tested = finding.fairness.tested
    return OverviewRow(
        label=names[label],
        spec=label,
        role=finding.role,
        gain=None if is_base else make_difference(finding.gap, margin, finding.outcome if finding.role == "method" else None),
        score=finding.scores[findings.score].mean,
        clearly_worse=nan if is_base or not tested else finding.fairness.clearly_worse / tested,
        worse=nan if is_base else finding.fairness.worse,
        against_alone=compare_with("local"),
        against_finetuned=compare_with("finetuned"),
        similarity=make_difference(part.gain, margin) if part is not None else None,
        traffic=own.bytes_,
        passes=own.passes,
        relative_traffic=own.bytes_ / base.bytes_ if base.bytes_ else nan,
        relative_passes=own.passes / base.passes if base.passes else nan,
        of=of,
        served=find_served(label, roles.of),
        epochs=get_tuning_epochs(label),
        caution=_describe_caution(findings, finding),
    )


def make_difference(gap: Gap, margin: float, outcome: Outcome | None = None) -> Difference | None:
    """A gap with its class; None where no pair of runs is complete. `outcome` is that of a method under test, after correction."""
    if not gap.n:
        return None
    if not gap.testable:
        return Difference(gap.mean, nan, nan, "inconclusive")
    if outcome is not None:
        kind = CLASSES.get(outcome, "inconclusive")
    elif gap.low > 0 or gap.high < 0:
        kind = "better" if gap.low > 0 else "worse"
    else:
        kind = "equivalent" if check_equivalence(gap.sources, margin).is_significant else "inconclusive"
    return Difference(gap.mean, gap.low, gap.high, kind)


def _describe_caution(findings: Findings, finding: Finding) -> str:
    sentences = [f"Do not rely on its score: {finding.divergence}."] if finding.divergence is not None else []
    if finding.missing:
        why = next(iter(finding.stopped.values()), "why is not recorded")
        sentences.append(f"{finding.missing} of {findings.repetitions.runs} pairs of runs did not finish and are not counted ({why}).")
    return " ".join(sentences)


def _write_verdict(findings: Findings, rows: Sequence[OverviewRow]) -> str:
    """The main result in one sentence."""
    base, methods = rows[0].label, [row for row in rows if row.role == "method"]
    if not methods:
        return "Nothing was compared: the study holds baselines only."
    winners = [row for row in methods if row.gain is not None and row.gain.verdict == "better"]
    if not winners:
        return _write_no_winner(findings, base, methods)
    best = max(winners, key=lambda row: row.score)
    return f"{best.label} beats {base} by {_describe(best.gain)}{_describe_rivals(best)}."


def _describe(gain: Difference | None) -> str:
    assert gain is not None
    return f"{format_signed(gain.mean)} points (95 % CI {format_interval(gain.low, gain.high)})"


def _describe_rivals(best: OverviewRow) -> str:
    """Whether the winner also beats what is simpler."""
    found = {RIVALS["local"]: best.against_alone, RIVALS["finetuned"]: best.against_finetuned}
    known = {name: own for name, own in found.items() if own is not None and isfinite(own.low)}
    for kind, words in (("worse", "worse than"), ("equivalent", "equivalent to"), ("inconclusive", "not significantly better than")):
        if names := [name for name, own in known.items() if own.verdict == kind]:
            return f"; {words} {(' or ' if kind == 'inconclusive' else ' and ').join(names)}"
    return f"; better than {' and '.join(known)} too" if known else ""


def _write_no_winner(findings: Findings, base: str, methods: Sequence[OverviewRow]) -> str:
    judged = [row for row in methods if row.gain is not None]
    if not judged:
        return f"No method can be compared with {base}: no pair of runs is complete."
    first = judged[0]  # the highest gain
    assert first.gain is not None
    if not isfinite(first.gain.low):
        return f"One repetition cannot show which method is better: {first.label} differs by {format_signed(first.gain.mean)} points."
    outcomes = {findings.methods[row.spec].outcome for row in judged}
    several = len(methods) > 1
    if "unproven" in outcomes:
        row = next(row for row in judged if findings.methods[row.spec].outcome == "unproven")
        few = f"{format_count(findings.methods[row.spec].gap.n, findings.repetitions.unit)} are too few to test it"
        return f"{row.label} is ahead of {base} by {_describe(row.gain)}, but {few}: no significant result yet."
    if outcomes == {"same"}:
        within = f"within {format_points(findings.margin)} points"
        names = f"All {len(methods)} methods are" if several else f"{first.label} is"
        return f"{names} equivalent to {base} ({within})."
    if outcomes == {"worse"}:
        names, best = ("Every method", ", the best") if several else (first.label, "")
        return f"{names} is worse than {base}{best} by {_describe(first.gain)}."
    if several:
        return f"No method is significantly better than {base}; the highest, {first.label}, differs by {_describe(first.gain)}."
    return f"{first.label} does not differ significantly from {base}: {_describe(first.gain)}."


def _write_recommendation(findings: Findings, rows: Sequence[OverviewRow]) -> str:
    """What to do, in one sentence."""
    chosen, base, unit = recommend(findings), rows[0], findings.repetitions.unit
    if chosen is None:
        return "Repeat the study before you decide: at least 5 seeds, better 10 draws of the data."
    unproven = any(findings.methods[row.spec].outcome == "unproven" for row in rows if row.role == "method")
    if chosen.label == base.spec:
        if unproven:
            advised = compute_advised_repetitions(len(findings.roles.methods))
            return f"Run {advised} {unit}s before you decide; keep {base.label} until then."
        return f"Keep {base.label}: no other method is significantly better."
    row = next(row for row in rows if row.spec == chosen.label)
    score = findings.metric.format_score(row.score)
    if chosen.label != chosen.best:
        best = next(other for other in rows if other.spec == chosen.best)
        ahead = f"{best.label} is only {format_points(best.score - row.score)} points ahead"
        return f"{_describe_use(row)} ({score}): it is simpler, and {ahead}."
    if row.role != "method" and any(other.role == "method" for other in rows):
        assert row.gain is not None
        return f"{_describe_use(row)} ({score}): it beats {base.label} by {format_signed(row.gain.mean)} points, more than any method."
    tied = [other.label for other in rows if _is_tied(findings, other, row)]
    others = f"; {' and '.join(tied)} {'does' if len(tied) == 1 else 'do'} not differ from it significantly" if tied else ""
    return f"{_describe_use(row)} ({score}){_describe_exceptions(findings, row, base)}{others}."


def _is_tied(findings: Findings, other: OverviewRow, row: OverviewRow) -> bool:
    """Whether another winner among the methods under test is as good as far as is known."""
    is_winner = other.role == "method" and other.gain is not None and other.gain.verdict == "better" and other is not row
    return is_winner and row.role == "method" and findings.gap(row.spec, other.spec).low <= 0


def _describe_use(row: OverviewRow) -> str:
    return "Let every client train alone" if row.role == "local" else f"Use {row.label}"


def _describe_exceptions(findings: Findings, row: OverviewRow, base: OverviewRow) -> str:
    """The clients that should keep the baseline's model."""
    own = findings.methods[row.spec].fairness
    if not own.clearly_worse > 0:
        return ""
    if own.losers is None or not findings.repetitions.same_clients:
        return f"; {100 * row.clearly_worse:.0f} % of clients are clearly worse off with it"
    names = [name for name, lost in zip(findings.records.ids, own.losers.significant, strict=True) if lost]
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f", except for {some}: {base.label} serves {'it' if len(names) == 1 else 'them'} better"
