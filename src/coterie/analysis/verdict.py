"""The findings in words: gains, significance, losers, the origin of a gain, the method to use. The rules are in `verdict_rules`.

Controls (random groups, true groups) are never recommended: they exist to judge others. A method is recommended only where its gain over
the baseline is significant (a method under test: after Holm's correction); of methods within half a point of the best, the simplest is
taken.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np

from coterie._util.errors import UserError
from coterie._util.formatting import format_count
from coterie.analysis.caveats import describe_malicious, describe_sampling
from coterie.analysis.draws import DecidingTest, Gap
from coterie.analysis.findings import Finding, Findings
from coterie.analysis.metrics import SCORES
from coterie.analysis.roles import MethodRole
from coterie.analysis.verdict_rules import (
    UNDECIDED,
    Decomposition,
    Outcome,
    classify_origin,
    compute_advised_repetitions,
    compute_needed_repetitions,
    describe_design,
)
from coterie.evidence.manifest import REQUEST
from coterie.statistics import Interval, PairedTest

TEST_NAMES: dict[DecidingTest | None, str] = {  # what decides over draws or seeds, in words
    "signed-rank": "Wilcoxon's signed-rank test",
    "paired t": "the paired t test, since they are too few for Wilcoxon's",
    None: "Wilcoxon's signed-rank test, for which they are too few",
}


def format_points(value: float) -> str:
    """A share in points, without a sign."""
    return f"{100 * value:.1f}"


def format_signed(value: float) -> str:
    """With its sign, which nothing has not."""
    text = f"{100 * value:+.1f}"
    return text if float(text) else "0.0"


def format_interval(low: float, high: float) -> str:
    """Two ends of an interval."""
    return f"{format_signed(low)} to {format_signed(high)}"


def describe_interval(gap: Gap) -> str:
    """The widest interval that decides."""
    return f"95 % interval {format_interval(gap.low, gap.high)}"


def list_intervals(gap: Gap, findings: Findings) -> dict[str, str]:
    """Every interval that could be had, by what it is over: draws of the data, seeds, test clients or samples."""
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
    return found


def describe_intervals(gap: Gap, findings: Findings) -> str:
    """The intervals in one line."""
    return "95 % intervals " + "; ".join(f"{over} {numbers}" for over, numbers in list_intervals(gap, findings).items())


def format_p_value(value: float) -> str:
    """A p-value as it is written."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def describe_score(findings: Findings) -> str:
    """What the headline score is, in words: of a mean over rounds, which."""
    tail = findings.records.rounds[findings.scope.tail]
    rounds = f"{tail[0]} to {tail[-1]}" if len(tail) > 1 else f"{tail[0]} alone"
    return SCORES[findings.score].words.format(measure=findings.measure.noun, rounds=rounds)


def describe_losers(finding: Finding) -> str:
    """How many clients lose, and how many of them clearly: with few test samples a lower number is a coin toss."""
    own = finding.fairness
    if isnan(own.worse):
        return ""
    clear = "" if isnan(own.tested) or not own.tested else f", {_format_count(own.clearly_worse)} of {_format_count(own.tested)} clearly"
    return f"{100 * own.worse:.0f} % of clients score lower{clear}"


def list_unknowns(findings: Findings) -> list[str]:
    """What the study cannot tell, in sentences, each once."""
    labels = findings.roles.methods or list(findings.methods)
    said = [text for label in labels for text in findings.methods[label].gap.sources.unknown if findings.methods[label].gap.n]
    known = [text.replace(": this says", ", so it says") for text in said]
    return [*dict.fromkeys(f"Not told by this study: {text}." for text in known)]


def _format_count(value: float) -> str:
    """A count, or a mean of counts over draws."""
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


ADVISED_REPETITIONS = 10  # what is worth running where one is at it


def suggest_more_runs(findings: Findings) -> list[str]:
    """Where there are too few repetitions to settle anything: how to get enough, if a command can."""
    repetitions = findings.repetitions
    there = len(repetitions.draws) if repetitions.several_draws else repetitions.runs
    needed = compute_needed_repetitions(len(findings.roles.methods))
    wanted = max(needed, ADVISED_REPETITIONS)
    settled = findings.test is not None and not any(findings.methods[label].outcome in UNDECIDED for label in findings.roles.methods)
    command = _resume_command(findings, wanted) if there < needed and not settled else None
    return [] if command is None else [f"To run {wanted} {repetitions.unit}s: {command}"]


def _resume_command(findings: Findings, wanted: int) -> str | None:
    """None where nothing is on disk, or the data are an object that no command can name."""
    from coterie.data.catalogue import is_data_spec  # here: reading a comparison need not wait for every data set's code

    folder, settings = findings.records.evidence.source.folder, findings.records.settings
    if folder is None or not is_data_spec(settings.data):
        return None
    place = folder.parent if (folder.parent / REQUEST).is_file() else folder
    more = f"--draws {wanted}" if findings.repetitions.several_draws else f"--seeds {_format_seeds(settings.seeds, wanted)}"
    return f"coterie resume {shlex.quote(str(place))} {more}"


def _format_seeds(there: tuple[int, ...], wanted: int) -> str:
    """Those that there are and so many more that they are enough, as one writes them."""
    after = max(there) + 1
    whole = sorted({*there, *range(after, after + max(wanted - len(there), 0))})
    if whole == list(range(whole[0], whole[-1] + 1)):
        return f"{whole[0]}-{whole[-1]}"
    return ",".join(map(str, whole))


def write_verdicts(findings: Findings) -> list[str]:
    """A few sentences for each method under test, after those that concern the study as a whole."""
    told = (write_verdict(findings, findings.methods[label]) for label in findings.roles.methods)
    return [*list_caveats(findings), *told, *suggest_more_runs(findings)]


def write_verdict(findings: Findings, finding: Finding) -> str:
    """What the study says about one method."""
    name = findings.called(finding.label)
    if not finding.gap.n:
        return f"{name} cannot be judged: in no run did both it and {findings.called(findings.roles.baseline)} reach the last round."
    sentences = [_gain_sentence(findings, finding), *_divergence_sentences(finding), *_last_round_sentences(findings, finding)]
    if finding.gap.testable and finding.decomposition is not None:
        sentences.append(_origin_sentence(finding.decomposition, gained=finding.outcome == "better"))
    sentences += [
        *_oracle_sentences(findings, finding),
        *_simpler_rivals(findings, finding),
        *_group_sentences(finding),
        *_early_stop_sentences(findings, finding),
    ]
    return " ".join(sentences)


def list_caveats(findings: Findings) -> list[str]:
    """What a reader should know before any finding."""
    n, unit, sentences = len(findings.repetitions.draws), "draw", []
    if not findings.repetitions.several_draws:
        n, unit = findings.repetitions.runs, "seed"
    if n == 1:
        sentences.append("One seed cannot test: every difference below may be chance. Run at least 5, better 10 draws of the data.")
    elif (told := describe_design(n, unit, len(findings.roles.methods), "better 10", findings.test)) is not None:
        sentences.append(told)
    return sentences + list_incomplete(findings) + list_unknowns(findings)


def list_incomplete(findings: Findings) -> list[str]:
    """What is missing of a study, whom its scores leave out, and a score that flatters."""
    settings, repetitions, sentences = findings.records.settings, findings.repetitions, []
    if len(repetitions.draws) < findings.draws.asked:
        sentences.append(f"Only {len(repetitions.draws)} of {findings.draws.asked} draws are complete and compared.")
    whole = len(repetitions.draws) * len(settings.seeds)
    if repetitions.runs < whole:
        sentences.append(f"Only {repetitions.runs} of {format_count(whole, 'repetition')} are complete and compared.")
    if findings.scope.last < settings.plan.rounds:
        sentences.append(f"The study stands at round {findings.scope.last} of {settings.plan.rounds}: this is no final result.")
    sentences += [told for told in (describe_malicious(findings.records), describe_sampling(findings.records)) if told is not None]
    others = [finding for finding in findings.methods.values() if finding.role != "method" and finding.divergence is not None]
    sentences += [f"{findings.called(finding.label)}: {finding.divergence}." for finding in others]
    if findings.score == "max":
        sentences.append("The score is the highest of all rounds on test data, as a paper reports it: too high, and not to be relied on.")
    return sentences


def _gain_sentence(findings: Findings, finding: Finding) -> str:
    name, base, score = findings.called(finding.label), findings.called(findings.roles.baseline), describe_score(findings)
    gap, lose = finding.gap, f"; {describe_losers(finding)}" if describe_losers(finding) else ""
    if not gap.testable:
        return f"{name} differs by {format_signed(gap.mean)} points from {base} in {score}, in one run{lose}."
    detail = describe_intervals(gap, findings)
    match finding.outcome:
        case "better":
            return (
                f"{name} gains {format_points(gap.mean)} points over {base} in {score} ({detail}; {_test_words(findings, finding)}){lose}."
            )
        case "unproven" | "unclear" if gap.low > 0:
            return f"{name} is {format_points(gap.mean)} points ahead of {base} in {score} ({detail}){lose}. {_undecided_sentence(findings, finding)}"
        case "worse":
            return f"{name} loses {format_points(-gap.mean)} points to {base} in {score} ({detail}){lose}."
        case "same":
            return (
                f"{name} is shown to be within {format_points(findings.margin)} points of {base} in {score}: {format_signed(gap.mean)} ({detail}; "
                f"equivalence {format_p_value(finding.same.p)}){lose}."
            )
    return f"{name} shows no clear difference from {base} in {score}: {format_signed(gap.mean)} points ({detail}){lose}."


def _test_words(findings: Findings, finding: Finding) -> str:
    """The p-value, and the test where it is not the usual one."""
    return f"{format_p_value(finding.corrected_p)}{', paired t test' if findings.test == 'paired t' else ''}"


def _undecided_sentence(findings: Findings, finding: Finding) -> str:
    """Why a gain whose interval lies above 0 is not called one."""
    gap, tested, unit = finding.gap, format_count(len(findings.roles.methods), "method"), findings.repetitions.unit
    if finding.outcome == "unproven":
        few = f"{format_count(gap.n, unit)} {'is' if gap.n == 1 else 'are'} too few for the test of {tested}; the 95 % interval excludes 0."
        return f"{few} Run {compute_advised_repetitions(len(findings.roles.methods))} {unit}s to settle it."
    return f"The 95 % interval excludes 0, but after Holm's correction for {tested} {_test_words(findings, finding)}: inconclusive."


def _divergence_sentences(finding: Finding) -> list[str]:
    """That a score is of models that training ruined."""
    return [] if finding.divergence is None else [f"Do not rely on its score, since {finding.divergence}."]


def _last_round_sentences(findings: Findings, finding: Finding) -> list[str]:
    """Where the headline is a mean over rounds, what the model that one is left with does."""
    test: PairedTest = finding.over_baseline["final"]
    if findings.score != "last10" or findings.scope.tail.stop - findings.scope.tail.start < 2 or not np.isfinite(test.mean):
        return []
    return [f"After the last round it is {format_signed(test.mean)}."]


def _origin_sentence(parts: Decomposition, gained: bool) -> str:
    """What the controls say: the last of them has all of the method but similarity."""
    similarity, weights = parts.step("similarity"), parts.step("weights")
    assert similarity is not None
    like = " among clients of like size" if parts.step("balance") is not None else ""
    sentence = f"Random groups of the same sizes{like} {_gain_or_lose(parts.without_similarity)}"
    if weights is not None:
        sentence += f", uniform weights alone {_gain_or_lose(weights.gain.mean)}"
    effect = f"similarity itself brings {format_signed(similarity.gain.mean)} ({describe_interval(similarity.gain)})"
    if not gained:
        return f"{sentence}; {effect}."
    match classify_origin(parts):
        case "all":
            return f"{sentence}: the gain is from similarity ({format_signed(similarity.gain.mean)}, {describe_interval(similarity.gain)})."
        case "part":
            return f"{sentence}: only {format_points(similarity.gain.mean)} of the {format_points(parts.total.mean)} points are from similarity."
    shown = "not from similarity, which costs" if similarity.gain.high < 0 else "not shown to be from similarity"
    return f"{sentence}: the gain is {shown} ({format_signed(similarity.gain.mean)}, {describe_interval(similarity.gain)})."


def _oracle_sentences(findings: Findings, finding: Finding) -> list[str]:
    label = findings.roles.controls.get(finding.label, {}).get("oracle")
    gap = findings.gap(label, finding.label) if label is not None else None
    if gap is None or not gap.testable:
        return []
    return [f"With the true groups it is {format_signed(gap.mean)} points ({describe_interval(gap)})."]


def _simpler_rivals(findings: Findings, finding: Finding) -> list[str]:
    """Simpler things that clearly do better."""
    rivals: dict[MethodRole, str] = {"local": "Clients that train alone do", "finetuned": "FedAvg with fine-tuning does"}
    gaps = {label: findings.gap(label, finding.label) for role in rivals if (label := findings.roles.first(role)) is not None}
    return [
        f"{rivals[findings.roles.of[label]]} {format_points(gap.mean)} points better than it ({describe_interval(gap)})."
        for label, gap in gaps.items()
        if gap.low > 0
    ]


def _group_sentences(finding: Finding) -> list[str]:
    """How good its groups are, and whether it finds them again."""
    quality = finding.grouping
    if quality is None:
        return []
    sentences = [f"Its groups agree with the true ones to {quality.ari.mean:.2f} (adjusted Rand index)."] if quality.ari is not None else []
    again = [f"{value:.2f} {where}" for value, where in _repeat_agreements(finding) if np.isfinite(value)]
    if again:
        sentences.append(f"{'They' if sentences else 'Its groups'} agree with those of another run to {' and '.join(again)}.")
    if quality.collapse_rate > 0:
        sentences.append(f"In {100 * quality.collapse_rate:.0f} % of the runs groups collapse.")
    if quality.one_group_rate > 0:
        sentences.append(f"In {100 * quality.one_group_rate:.0f} % of the runs it found one group: one model for all clients.")
    return sentences


def _repeat_agreements(finding: Finding) -> list[tuple[float, str]]:
    assert finding.grouping is not None
    return [(finding.grouping.between_seeds, "with another seed"), (finding.grouping.between_draws, "in another draw of the data")]


def _early_stop_sentences(findings: Findings, finding: Finding) -> list[str]:
    if not finding.missing:
        return []
    why = next(iter(finding.stopped.values()), "why is not recorded")
    return [f"{finding.missing} of {findings.repetitions.runs} pairs of runs are left out, since a run did not reach the end ({why})."]


def _gain_or_lose(value: float) -> str:
    return f"gain {format_points(value)}" if value >= 0 else f"lose {format_points(-value)}"


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
    ahead = {
        label: means[label] for label, gap in gaps.items() if is_ahead(findings.methods[label].role, findings.methods[label].outcome, gap)
    }
    if not ahead:
        return _make_recommendation(findings, base, f"No other method is significantly ahead of it{_describe_closest(findings, gaps)}.")
    label, best = choose_simplest(ahead, findings.roles.of)
    gap = gaps[label]
    reason = f"It is {format_signed(gap.mean)} points from {findings.called(base)} (95 % interval {format_signed(gap.low)} to {format_signed(gap.high)})"
    if label != best:
        reason += f"; {findings.called(best)} is {format_points(ahead[best] - ahead[label])} points ahead of it, too little to matter"
    return _make_recommendation(findings, label, f"{reason}.", best)


def is_ahead(role: MethodRole, outcome: Outcome, gap: Gap) -> bool:
    """Whether a method is significantly ahead of the baseline: simpler ways are no hypotheses, and are not corrected for."""
    return outcome == "better" if role == "method" else gap.testable and gap.low > 0


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
    meaning = MEANING[role] if role != "baseline" or findings.called(label) == "fedavg" else "the baseline"
    return Recommendation(label, findings.called(label), meaning, reason, best or label)


def _describe_closest(findings: Findings, gaps: Mapping[str, Gap]) -> str:
    """The largest gain that was not significant, in brackets."""
    known = {label: gap for label, gap in gaps.items() if gap.testable}
    if not known:
        return ""
    label = max(known, key=lambda each: known[each].mean)
    gap = known[label]
    return f" ({findings.called(label)}: {format_signed(gap.mean)}, 95 % interval {format_signed(gap.low)} to {format_signed(gap.high)})"
