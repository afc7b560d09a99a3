"""The findings in plain words: who gains, whether chance could do it, who loses, where the gain comes from. The rules are in `rules`."""

import numpy as np

from coterie.analysis.decomposition import Decomposition
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.more_runs import more_runs
from coterie.analysis.records import honest_only
from coterie.analysis.roles import MethodRole
from coterie.analysis.rules import describe_design, origin_of, repetitions_advised
from coterie.analysis.sampled import sampled_only
from coterie.analysis.wording import in_points, losers, p_value, score_name, signed, told_spans, unknowns, widest
from coterie.core.counted import counted
from coterie.statistics import Paired


def verdicts(findings: Findings) -> list[str]:
    """A few sentences for each method under test, after those that concern the study as a whole."""
    told = (verdict(findings, findings.methods[label]) for label in findings.roles.methods)
    return [*caveats(findings), *told, *more_runs(findings)]


def verdict(findings: Findings, finding: Finding) -> str:
    """What the study says about one method."""
    name = findings.called(finding.label)
    if not finding.gap.n:
        return f"{name} cannot be judged: in no run did both it and {findings.called(findings.roles.baseline)} reach the last round."
    sentences = [_gain(findings, finding), *_diverged(finding), *_final(findings, finding)]
    if finding.gap.testable and finding.decomposition is not None:
        sentences.append(_origin(finding.decomposition, gained=finding.outcome == "better"))
    sentences += [*_oracle(findings, finding), *_others(findings, finding), *_groups(finding), *_early(findings, finding)]
    return " ".join(sentences)


def caveats(findings: Findings) -> list[str]:
    """What a reader should know before any finding."""
    n, unit, sentences = len(findings.repetitions.draws), "draw", []
    if not findings.repetitions.several_draws:
        n, unit = findings.repetitions.runs, "seed"
    if n == 1:
        sentences.append("One seed cannot test: every difference below may be chance. Run at least 5, better 10 draws of the data.")
    elif (told := describe_design(n, unit, len(findings.roles.methods), "better 10", findings.test)) is not None:
        sentences.append(told)
    return sentences + unfinished(findings) + unknowns(findings)


def unfinished(findings: Findings) -> list[str]:
    """What is missing of a study, whom its scores leave out, and a score that flatters."""
    settings, repetitions, sentences = findings.records.settings, findings.repetitions, []
    if len(repetitions.draws) < findings.draws.asked:
        sentences.append(f"Only {len(repetitions.draws)} of {findings.draws.asked} draws are complete and compared.")
    whole = len(repetitions.draws) * len(settings.seeds)
    if repetitions.runs < whole:
        sentences.append(f"Only {repetitions.runs} of {counted(whole, 'repetition')} are complete and compared.")
    if findings.scope.last < settings.plan.rounds:
        sentences.append(f"The study stands at round {findings.scope.last} of {settings.plan.rounds}: this is no final result.")
    sentences += [told for told in (honest_only(findings.records), sampled_only(findings.records)) if told is not None]
    others = [finding for finding in findings.methods.values() if finding.role != "method" and finding.divergence is not None]
    sentences += [f"{findings.called(finding.label)}: {finding.divergence}." for finding in others]
    if findings.score == "max":
        sentences.append("The score is the highest of all rounds on test data, as a paper reports it: too high, and not to be relied on.")
    return sentences


def _gain(findings: Findings, finding: Finding) -> str:
    name, base, score = findings.called(finding.label), findings.called(findings.roles.baseline), score_name(findings)
    gap, lose = finding.gap, f"; {losers(finding)}" if losers(finding) else ""
    if not gap.testable:
        return f"{name} differs by {signed(gap.mean)} points from {base} in {score}, in one run{lose}."
    detail = told_spans(gap, findings)
    match finding.outcome:
        case "better":
            return f"{name} gains {in_points(gap.mean)} points over {base} in {score} ({detail}; {_tested(findings, finding)}){lose}."
        case "unproven" | "unclear" if gap.low > 0:
            return f"{name} is {in_points(gap.mean)} points ahead of {base} in {score} ({detail}){lose}. {_undecided(findings, finding)}"
        case "worse":
            return f"{name} loses {in_points(-gap.mean)} points to {base} in {score} ({detail}){lose}."
        case "same":
            return (
                f"{name} is shown to be within {in_points(findings.margin)} points of {base} in {score}: {signed(gap.mean)} ({detail}; "
                f"equivalence {p_value(finding.same.p)}){lose}."
            )
    return f"{name} shows no clear difference from {base} in {score}: {signed(gap.mean)} points ({detail}){lose}."


def _tested(findings: Findings, finding: Finding) -> str:
    """The p-value, and the test where it is not the usual one."""
    return f"{p_value(finding.corrected_p)}{', paired t test' if findings.test == 'paired t' else ''}"


def _undecided(findings: Findings, finding: Finding) -> str:
    """Why a gain whose interval lies above 0 is not called one."""
    gap, tested, unit = finding.gap, counted(len(findings.roles.methods), "method"), findings.repetitions.unit
    if finding.outcome == "unproven":
        few = f"{counted(gap.n, unit)} {'is' if gap.n == 1 else 'are'} too few for the test of {tested}; the 95 % interval excludes 0."
        return f"{few} Run {repetitions_advised(len(findings.roles.methods))} {unit}s to settle it."
    return f"The 95 % interval excludes 0, but after Holm's correction for {tested} {_tested(findings, finding)}: inconclusive."


def _diverged(finding: Finding) -> list[str]:
    """That a score is of models that training ruined."""
    return [] if finding.divergence is None else [f"Do not rely on its score, since {finding.divergence}."]


def _final(findings: Findings, finding: Finding) -> list[str]:
    """Where the headline is a mean over rounds, what the model that one is left with does."""
    test: Paired = finding.over_baseline["final"]
    if findings.score != "last10" or findings.scope.tail.stop - findings.scope.tail.start < 2 or not np.isfinite(test.mean):
        return []
    return [f"After the last round it is {signed(test.mean)}."]


def _origin(parts: Decomposition, gained: bool) -> str:
    """What the controls say: the last of them has all of the method but similarity."""
    similarity, weights = parts.step("similarity"), parts.step("weights")
    assert similarity is not None
    like = " among clients of like size" if parts.step("balance") is not None else ""
    sentence = f"Random groups of the same sizes{like} {_gain_or_lose(parts.without_similarity)}"
    if weights is not None:
        sentence += f", uniform weights alone {_gain_or_lose(weights.gain.mean)}"
    effect = f"similarity itself brings {signed(similarity.gain.mean)} ({widest(similarity.gain)})"
    if not gained:
        return f"{sentence}; {effect}."
    match origin_of(parts):
        case "all":
            return f"{sentence}: the gain is from similarity ({signed(similarity.gain.mean)}, {widest(similarity.gain)})."
        case "part":
            return f"{sentence}: only {in_points(similarity.gain.mean)} of the {in_points(parts.total.mean)} points are from similarity."
    shown = "not from similarity, which costs" if similarity.gain.high < 0 else "not shown to be from similarity"
    return f"{sentence}: the gain is {shown} ({signed(similarity.gain.mean)}, {widest(similarity.gain)})."


def _oracle(findings: Findings, finding: Finding) -> list[str]:
    label = findings.roles.controls.get(finding.label, {}).get("oracle")
    gap = findings.gap(label, finding.label) if label is not None else None
    if gap is None or not gap.testable:
        return []
    return [f"With the true groups it is {signed(gap.mean)} points ({widest(gap)})."]


def _others(findings: Findings, finding: Finding) -> list[str]:
    """Simpler things that clearly do better."""
    rivals: dict[MethodRole, str] = {"local": "Clients that train alone do", "finetuned": "FedAvg with fine-tuning does"}
    gaps = {label: findings.gap(label, finding.label) for role in rivals if (label := findings.roles.first(role)) is not None}
    return [
        f"{rivals[findings.roles.of[label]]} {in_points(gap.mean)} points better than it ({widest(gap)})."
        for label, gap in gaps.items()
        if gap.low > 0
    ]


def _groups(finding: Finding) -> list[str]:
    """How good its groups are, and whether it finds them again."""
    quality = finding.grouping
    if quality is None:
        return []
    sentences = [f"Its groups agree with the true ones to {quality.ari.mean:.2f} (adjusted Rand index)."] if quality.ari is not None else []
    again = [f"{value:.2f} {where}" for value, where in _again(finding) if np.isfinite(value)]
    if again:
        sentences.append(f"{'They' if sentences else 'Its groups'} agree with those of another run to {' and '.join(again)}.")
    if quality.collapse_rate > 0:
        sentences.append(f"In {100 * quality.collapse_rate:.0f} % of the runs groups collapse.")
    if quality.one_group_rate > 0:
        sentences.append(f"In {100 * quality.one_group_rate:.0f} % of the runs it found one group: one model for all clients.")
    return sentences


def _again(finding: Finding) -> list[tuple[float, str]]:
    assert finding.grouping is not None
    return [(finding.grouping.between_seeds, "with another seed"), (finding.grouping.between_draws, "in another draw of the data")]


def _early(findings: Findings, finding: Finding) -> list[str]:
    if not finding.missing:
        return []
    why = next(iter(finding.stopped.values()), "why is not recorded")
    return [f"{finding.missing} of {findings.repetitions.runs} pairs of runs are left out, since a run did not reach the end ({why})."]


def _gain_or_lose(value: float) -> str:
    return f"gain {in_points(value)}" if value >= 0 else f"lose {in_points(-value)}"
