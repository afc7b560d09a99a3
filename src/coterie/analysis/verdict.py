"""Findings in words: gains, significance, losers, the origin of a gain, the method to use. The rules are in `verdict_rules`.

Controls (random groups, true groups) are never recommended: they exist to judge others. A method is recommended only where its gain over
the baseline is significant (a method under test: after Holm's correction); of methods within half a point of the best, the simplest is
taken. The formatters are used by the report, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np

from coterie._util.errors import UserError
from coterie._util.formatting import format_count
from coterie.analysis.caveats import list_caveats, suggest_more_runs
from coterie.analysis.draws import DecidingTest, Gap
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.metrics import SCORES
from coterie.analysis.roles import MethodRole
from coterie.analysis.verdict_rules import Decomposition, classify_origin, compute_advised_repetitions, decide_by_interval
from coterie.statistics import Interval

TEST_NAMES: dict[DecidingTest | None, str] = {  # what decides over draws or seeds
    "signed-rank": "Wilcoxon's signed-rank test",
    "paired t": "the paired t test, since they are too few for Wilcoxon's",
    None: "Wilcoxon's signed-rank test, for which they are too few",
}


def format_points(value: float) -> str:
    """A share in points, without a sign."""
    return f"{abs(100 * value):.1f}"


def format_signed(value: float) -> str:
    """A share in points with its sign; zero has none."""
    text = f"{100 * value:+.1f}"
    return text if float(text) else "0.0"


def format_interval(low: float, high: float) -> str:
    """Two ends of an interval."""
    return f"{format_signed(low)} to {format_signed(high)}"


def format_p_value(value: float) -> str:
    """A p-value with three digits."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def describe_change(value: float) -> str:
    """What groups or weights do to the score."""
    if abs(value) < 0.0005:
        return "change nothing"
    return f"{'gain' if value > 0 else 'lose'} {format_points(value)} points"


def describe_interval(gap: Gap) -> str:
    """The widest interval that decides."""
    return f"95 % interval {format_interval(gap.low, gap.high)}"


def describe_intervals(gap: Gap, findings: Findings) -> str:
    """Every interval that is known, with what it is over: draws of the data, seeds, test clients or samples."""
    found: dict[str, str] = {}
    named, repetitions = gap.sources.named, findings.repetitions
    if not repetitions.several_draws:
        found[f"over {format_count(gap.n, 'seed')}"] = format_interval(gap.units.low, gap.units.high)
    elif isinstance(own := named["draws"], Interval):
        found[f"over {format_count(gap.n, 'draw')} of the data"] = format_interval(own.low, own.high)
    if repetitions.several_draws and isinstance(own := named["seeds"], Interval):
        found["over other seeds of these draws"] = format_interval(own.low, own.high)
    if isinstance(own := named["test clients"], Interval):
        found[f"over {own.over}{', at the widest' if own.bound else ''}"] = format_interval(own.low, own.high)
    return "95 % intervals " + "; ".join(f"{over} {numbers}" for over, numbers in found.items())


def describe_score(findings: Findings) -> str:
    """The headline score; of a mean over rounds, which rounds."""
    tail = findings.records.rounds[findings.scope.tail]
    rounds = f"{tail[0]} to {tail[-1]}" if len(tail) > 1 else f"{tail[0]} alone"
    return SCORES[findings.score].words.format(measure=findings.metric.noun, rounds=rounds)


def describe_losers(finding: Finding) -> str:
    """How many clients lose, and how many of them clearly: with few test samples a lower number is a coin toss."""
    own = finding.fairness
    if isnan(own.worse):
        return ""
    clear = "" if isnan(own.tested) or not own.tested else f", {_format_count(own.clearly_worse)} of {_format_count(own.tested)} clearly"
    return f"{100 * own.worse:.0f} % of clients score lower{clear}"


def _format_count(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def describe_divergence(finding: Finding) -> list[str]:
    """A warning where a score is of models that training ruined."""
    return [] if finding.divergence is None else [f"Do not rely on its score, since {finding.divergence}."]


def describe_random_groups(parts: Decomposition) -> str:
    """What the last control gains, which has all of the method but similarity."""
    similar_size = " among clients of similar size" if parts.step("balance") is not None else ""
    return f"Random groups of the same sizes{similar_size} {describe_change(parts.without_similarity)}"


def write_verdicts(findings: Findings) -> list[str]:
    """A few sentences for each method under test, after those that concern the study as a whole."""
    verdicts = (write_verdict(findings, findings.methods[label]) for label in findings.roles.methods)
    return [*list_caveats(findings), *verdicts, *suggest_more_runs(findings)]


def write_verdict(findings: Findings, finding: Finding) -> str:
    """What the study finds about one method."""
    return " ".join(list_verdict_sentences(findings, finding))


def list_verdict_sentences(findings: Findings, finding: Finding) -> list[str]:
    """The same, sentence by sentence."""
    name = findings.display_name(finding.label)
    if not finding.gap.n:
        base = findings.display_name(findings.roles.baseline)
        return [f"{name} cannot be judged: in no run did both it and {base} reach the last round."]
    sentences = [_gain_sentence(findings, finding), *describe_divergence(finding), *_last_round_sentences(findings, finding)]
    if finding.gap.testable and finding.decomposition is not None:
        sentences.append(_origin_sentence(finding.decomposition, gained=finding.outcome == "better"))
    sentences += [*_oracle_sentences(findings, finding), *_simpler_rivals(findings, finding), *_group_sentences(finding)]
    if finding.missing:
        why = next(iter(finding.stopped.values()), "why is not recorded")
        pairs = f"{finding.missing} of {findings.repetitions.runs} pairs of runs"
        sentences.append(f"{pairs} are left out, since a run did not reach the end ({why}).")
    return sentences


def _gain_sentence(findings: Findings, finding: Finding) -> str:
    name, base, score = findings.display_name(finding.label), findings.display_name(findings.roles.baseline), describe_score(findings)
    gap, lose = finding.gap, f"; {describe_losers(finding)}" if describe_losers(finding) else ""
    if not gap.testable:
        return f"{name} differs by {format_signed(gap.mean)} points from {base} in {score}, in one run{lose}."
    detail, points = describe_intervals(gap, findings), format_points(gap.mean)
    match finding.outcome:
        case "better":
            return f"{name} gains {points} points over {base} in {score} ({detail}; {_describe_test(findings, finding)}){lose}."
        case "unproven" | "unclear" if gap.low > 0:
            ahead = f"{name} is {points} points ahead of {base} in {score} ({detail}){lose}."
            return f"{ahead} {_undecided_sentence(findings, finding)}"
        case "worse":
            return f"{name} loses {points} points to {base} in {score} ({detail}){lose}."
        case "same":
            equivalent = f"{name} is equivalent to {base} within {format_points(findings.margin)} points in {score}"
            test = f"two one-sided tests {format_p_value(finding.equivalence.p)}"
            return f"{equivalent}: {format_signed(gap.mean)} ({detail}; {test}){lose}."
    return f"{name} does not differ significantly from {base} in {score}: {format_signed(gap.mean)} points ({detail}){lose}."


def _describe_test(findings: Findings, finding: Finding) -> str:
    """The p-value, and the test where it is not the signed-rank test."""
    return f"{format_p_value(finding.corrected_p)}{', paired t test' if findings.test == 'paired t' else ''}"


def _undecided_sentence(findings: Findings, finding: Finding) -> str:
    """Why a gain whose interval lies above 0 is not called one."""
    gap, tested, unit = finding.gap, format_count(len(findings.roles.methods), "method"), findings.repetitions.unit
    if finding.outcome == "unproven":
        few = f"{format_count(gap.n, unit)} {'is' if gap.n == 1 else 'are'} too few for the test of {tested}; the 95 % interval excludes 0."
        return f"{few} Run {compute_advised_repetitions(len(findings.roles.methods))} {unit}s to settle it."
    return f"The 95 % interval excludes 0, but after Holm's correction for {tested} {_describe_test(findings, finding)}: inconclusive."


def _last_round_sentences(findings: Findings, finding: Finding) -> list[str]:
    mean = finding.over_baseline["final"].mean
    if findings.score != "last10" or findings.scope.tail.stop - findings.scope.tail.start < 2 or not np.isfinite(mean):
        return []
    return [f"After the last round it is {format_signed(mean)}."]


def _origin_sentence(parts: Decomposition, gained: bool) -> str:
    similarity, weights = parts.step("similarity"), parts.step("weights")
    assert similarity is not None
    sentence = describe_random_groups(parts)
    if weights is not None:
        sentence += f", uniform weights alone {describe_change(weights.gain.mean)}"
    own, interval = similarity.gain, describe_interval(similarity.gain)
    if not gained:
        return f"{sentence}; similarity itself brings {format_signed(own.mean)} ({interval})."
    match classify_origin(parts):
        case "all":
            return f"{sentence}: the gain is from similarity ({format_signed(own.mean)}, {interval})."
        case "part":
            total = format_points(parts.total.mean)
            return f"{sentence}: only {format_points(own.mean)} of the {total} points are from similarity."
    origin = "not from similarity, which costs" if own.high < 0 else "not attributable to similarity"
    return f"{sentence}: the gain is {origin} ({format_signed(own.mean)}, {interval})."


def _oracle_sentences(findings: Findings, finding: Finding) -> list[str]:
    label = findings.roles.controls.get(finding.label, {}).get("oracle")
    gap = findings.gap(label, finding.label) if label is not None else None
    if gap is None or not gap.testable:
        return []
    return [f"With the true groups it is {format_signed(gap.mean)} points ({describe_interval(gap)})."]


def _simpler_rivals(findings: Findings, finding: Finding) -> list[str]:
    rivals: dict[MethodRole, str] = {"local": "Clients that train alone do", "finetuned": "FedAvg with fine-tuning does"}
    gaps = {label: findings.gap(label, finding.label) for role in rivals if (label := findings.roles.first(role)) is not None}
    return [
        f"{rivals[findings.roles.of[label]]} {format_points(gap.mean)} points better than it ({describe_interval(gap)})."
        for label, gap in gaps.items()
        if gap.low > 0
    ]


def _group_sentences(finding: Finding) -> list[str]:
    quality = finding.group_quality
    if quality is None:
        return []
    sentences = [f"Its groups agree with the true ones to {quality.ari.mean:.2f} (adjusted Rand index)."] if quality.ari is not None else []
    runs = {"with another seed": quality.between_seeds, "in another draw of the data": quality.between_draws}
    if agreements := [f"{value:.2f} {where}" for where, value in runs.items() if np.isfinite(value)]:
        sentences.append(f"{'They' if sentences else 'Its groups'} agree with those of another run to {' and '.join(agreements)}.")
    if quality.collapse_rate > 0:
        sentences.append(f"In {100 * quality.collapse_rate:.0f} % of the runs groups collapse.")
    if quality.one_group_rate > 0:
        sentences.append(f"In {100 * quality.one_group_rate:.0f} % of the runs it found one group: one model for all clients.")
    return sentences


NEGLIGIBLE = 0.005  # half a point: a smaller difference is not worth a more complicated method
SIMPLICITY_ORDER: tuple[MethodRole, ...] = ("baseline", "uniform", "finetuned", "local", "method")
NOT_SERVED: tuple[MethodRole, ...] = ("control",)
MEANING: dict[MethodRole, str] = {
    "baseline": "one model for all clients",
    "uniform": "one model for all clients, each weighted alike",
    "finetuned": "one model, fine-tuned by each client",
    "local": "each client trains alone",
    "method": "the method under test",
}


@dataclass(frozen=True)
class Recommendation:
    """A method's label in the study, and the reason in one sentence."""

    label: str
    name: str  # as text shows it: without the learning rate that tuning gave it
    meaning: str
    reason: str
    best: str  # the label with the highest score of those ahead of the baseline; the label itself unless that one is simpler

    def __str__(self) -> str:
        return f"Recommended: {self.name} ({self.meaning}). {self.reason}"


def recommend(findings: Findings) -> Recommendation | None:
    """Choose a method of a comparison.

    Args:
        findings: One federation's comparison.

    Returns:
        The recommendation, or None where a single run or missing scores leave nothing to decide by.
    """
    base, score = findings.roles.baseline, findings.score
    means = {
        label: float(found.scores[score].mean)
        for label, found in findings.methods.items()
        if found.role not in NOT_SERVED and np.isfinite(found.scores[score].mean)
    }
    if base not in means or not any(found.gap.testable for label, found in findings.methods.items() if label != base):
        return None
    gaps = {label: findings.methods[label].gap for label in means if label != base}
    ahead = {label: means[label] for label in gaps if is_ahead(findings.methods[label])}
    if not ahead:
        return _make_recommendation(findings, base, f"No other method is significantly ahead of it{_describe_closest(findings, gaps)}.")
    label, best = choose_simplest(ahead, findings.roles.of)
    gap = gaps[label]
    reason = f"It is {format_signed(gap.mean)} points from {findings.display_name(base)} ({describe_interval(gap)})"
    if label != best:
        reason += f"; {findings.display_name(best)} is {format_points(ahead[best] - ahead[label])} points ahead of it, too little to matter"
    return _make_recommendation(findings, label, f"{reason}.", best)


def is_ahead(finding: Finding) -> bool:
    """Whether a method is significantly ahead of the baseline."""
    outcome = finding.outcome if finding.role == "method" else decide_by_interval(finding.gap, finding.equivalence)
    return outcome == "better"


def choose_simplest(ahead: Mapping[str, float], roles: Mapping[str, MethodRole]) -> tuple[str, str]:
    """Of the methods ahead of the baseline, with their scores: the simplest within half a point of the best, and the best."""
    best = max(ahead, key=lambda label: ahead[label])
    near = [label for label, mean in ahead.items() if mean >= ahead[best] - NEGLIGIBLE]
    return min(near, key=lambda each: (SIMPLICITY_ORDER.index(roles[each]), -ahead[each])), best


def require_recommendation(findings: Findings) -> Recommendation:
    """The recommendation of a comparison that is to be exported.

    Raises:
        UserError: The study is too small to recommend a method; one must be named.
    """
    found = recommend(findings)
    if found is None:
        labels = ", ".join(label for label, own in findings.methods.items() if own.role not in NOT_SERVED)
        raise UserError(f"The study has too few runs to recommend one of its methods: name one with --method, {labels}.")
    return found


def _make_recommendation(findings: Findings, label: str, reason: str, best: str | None = None) -> Recommendation:
    role = findings.roles.of[label]
    meaning = MEANING[role] if role != "baseline" or findings.display_name(label) == "fedavg" else "the baseline"
    return Recommendation(label, findings.display_name(label), meaning, reason, best or label)


def _describe_closest(findings: Findings, gaps: Mapping[str, Gap]) -> str:
    """The largest gain that was not significant, in brackets."""
    known = {label: gap for label, gap in gaps.items() if gap.testable}
    if not known:
        return ""
    label = max(known, key=lambda each: known[each].mean)
    gap = known[label]
    return (
        f" ({findings.display_name(label)}: {format_signed(gap.mean)}, 95 % interval {format_signed(gap.low)} to {format_signed(gap.high)})"
    )
