"""The findings in plain words: who gains, whether chance could do it, who loses, where the gain comes from. The rules are in `rules`."""

import numpy as np

from coterie.analysis.decomposition import Decomposition
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.records import honest_only
from coterie.analysis.roles import MethodRole
from coterie.analysis.rules import origin_of, seeds_needed
from coterie.analysis.score_names import SCORES
from coterie.statistics import Paired


def verdicts(findings: Findings) -> list[str]:
    """A few sentences for each method under test, after those that concern the study as a whole."""
    return [*caveats(findings), *(verdict(findings, findings.methods[label]) for label in findings.roles.methods)]


def verdict(findings: Findings, finding: Finding) -> str:
    """What the study says about one method."""
    test = finding.over_baseline[findings.score]
    name = findings.called(finding.label)
    if not test.n:
        return f"{name} cannot be judged: in no seed did both it and {findings.called(findings.roles.baseline)} reach the last round."
    sentences = [_gain(findings, finding, test)]
    if test.testable and finding.decomposition is not None:
        sentences.append(_origin(finding.decomposition, gained=finding.outcome == "better"))
    sentences += [*_oracle(findings, finding), *_others(findings, finding), *_groups(finding), *_early(finding, len(findings.seeds))]
    return " ".join(sentences)


def caveats(findings: Findings) -> list[str]:
    """What a reader should know before any finding."""
    seeds, sentences = len(findings.seeds), []
    if seeds == 1:
        sentences.append("One seed cannot test: every difference below may be chance. Run at least 5, better 35.")
    elif seeds < 5:
        sentences.append(
            f"{seeds} seeds cannot reach 5 % in Wilcoxon's test (the least p is {2.0**-seeds:.3g}): run at least 5, better 35."
        )
    return sentences + unfinished(findings)


def unfinished(findings: Findings) -> list[str]:
    """What is missing of a study, whom its scores leave out, and a score that flatters."""
    settings, seeds, sentences = findings.records.settings, len(findings.seeds), []
    if seeds < len(settings.seeds):
        sentences.append(f"Only {seeds} of {len(settings.seeds)} seeds are complete and compared.")
    if findings.scope.last < settings.plan.rounds:
        sentences.append(f"The study stands at round {findings.scope.last} of {settings.plan.rounds}: this is no final result.")
    if (told := honest_only(findings.records)) is not None:
        sentences.append(told)
    if findings.score == "max":
        sentences.append("The score is the highest of all rounds on test data, as a paper reports it: too high, and not to be relied on.")
    return sentences


def _gain(findings: Findings, finding: Finding, test: Paired) -> str:
    name, base, score = findings.called(finding.label), findings.called(findings.roles.baseline), score_name(findings)
    losers = f"; {100 * finding.fairness.worse:.0f} % of clients lose" if np.isfinite(finding.fairness.worse) else ""
    if not test.testable:
        return f"{name} differs by {_signed(test.mean)} points from {base} in {score}, in one seed{losers}."
    detail = f"{_span(test)}, {_p(finding.corrected_p)}, {test.n} seeds"
    tested = len(findings.roles.methods)
    match finding.outcome:
        case "better":
            return f"{name} gains {_points(test.mean)} points over {base} in {score} ({detail}){losers}."
        case "unproven":
            return (
                f"{name} is {_points(test.mean)} points ahead of {base} in {score} ({_span(test)}){losers}. {test.n} seeds are too few for "
                f"Wilcoxon's test of {tested} method(s) to reach 5 %: run at least {seeds_needed(tested)} to settle it."
            )
        case "worse":
            return f"{name} loses {_points(-test.mean)} points to {base} in {score} ({_span(test)}, {test.n} seeds){losers}."
    return f"{name} shows no clear difference from {base} in {score}: {_signed(test.mean)} points ({detail}){losers}."


def score_name(findings: Findings) -> str:
    """What the headline score is, in words."""
    tail = findings.scope.tail
    return SCORES[findings.score].words.format(tail.stop - tail.start)


def _origin(parts: Decomposition, gained: bool) -> str:
    """What the controls say. Random groups of the same sizes have all of the method but similarity."""
    similarity, weights = parts.step("similarity"), parts.step("weights")
    assert similarity is not None
    by_random = parts.total.mean - similarity.gain.mean
    sentence = f"Random groups of the same sizes {_gain_or_lose(by_random)}"
    if weights is not None:
        sentence += f", uniform weights alone {_gain_or_lose(weights.gain.mean)}"
    effect = f"similarity itself brings {_signed(similarity.gain.mean)} ({_span(similarity.gain)})"
    if not gained:
        return f"{sentence}; {effect}."
    match origin_of(parts):
        case "all":
            return f"{sentence}: the gain is from similarity ({_signed(similarity.gain.mean)}, {_span(similarity.gain)})."
        case "part":
            return f"{sentence}: only {_points(similarity.gain.mean)} of the {_points(parts.total.mean)} points are from similarity."
    return f"{sentence}: the gain is not shown to be from similarity ({_signed(similarity.gain.mean)}, {_span(similarity.gain)})."


def _oracle(findings: Findings, finding: Finding) -> list[str]:
    label = findings.roles.controls.get(finding.label, {}).get("oracle")
    gap = findings.paired(label, finding.label) if label is not None else None
    if gap is None or not gap.testable:
        return []
    return [f"The true groups would bring {_signed(gap.mean)} points more ({_span(gap)})."]


def _others(findings: Findings, finding: Finding) -> list[str]:
    """Simpler things that clearly do better."""
    rivals: dict[MethodRole, str] = {"local": "Clients that train alone do", "finetuned": "FedAvg with fine-tuning does"}
    gaps = {label: findings.paired(label, finding.label) for role in rivals if (label := findings.roles.first(role)) is not None}
    return [
        f"{rivals[findings.roles.of[label]]} {_points(gap.mean)} points better than it ({_span(gap)})."
        for label, gap in gaps.items()
        if gap.low > 0
    ]


def _groups(finding: Finding) -> list[str]:
    quality = finding.grouping
    if quality is None:
        return []
    sentences = [f"Its groups agree with the true ones to {quality.ari.mean:.2f} (adjusted Rand index)."] if quality.ari is not None else []
    if quality.collapse_rate > 0:
        sentences.append(f"In {100 * quality.collapse_rate:.0f} % of the runs groups collapse.")
    return sentences


def _early(finding: Finding, seeds: int) -> list[str]:
    missing = finding.over_baseline["final"].missing
    if not missing:
        return []
    why = next(iter(finding.stopped.values()), "why is not recorded")
    return [f"{missing} of {seeds} pairs of runs are left out, since a run did not reach the end ({why})."]


def _points(value: float) -> str:
    return f"{100 * value:.1f}"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}"


def _span(test: Paired) -> str:
    return f"95 % interval {_signed(test.low)} to {_signed(test.high)}"


def _gain_or_lose(value: float) -> str:
    return f"gain {_points(value)}" if value >= 0 else f"lose {_points(-value)}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
