"""The verdict for a reader who knows the clients but not the statistics: short sentences, numbers in right answers out of 100, or
what else is compared.

The rules are those of `analysis.rules`; `analysis.verdict` says the same with tests and intervals.
"""

from dataclasses import dataclass

from coterie.analysis.findings import Finding
from coterie.analysis.gaps import Gap
from coterie.analysis.measures import ACCURACY, Measure
from coterie.analysis.roles import MethodRole
from coterie.analysis.rules import Outcome, origin_of, repetitions_advised
from coterie.report.about import about
from coterie.report.plain import and_listed, between_ends, count, gain_or_lose, repeated, sources_in_words, with_sign
from coterie.report.subject import Subject
from coterie.report.two_class_words import two_class_words
from coterie.report.who import who_gains, who_is_together

TAGS: dict[Outcome, str] = {
    "better": "Better than {base}",
    "worse": "Worse than {base}",
    "same": "No different from {base}: within {margin} points",
    "unclear": "Undecided",
    "unproven": "Looks better than {base}, not proven",
    "unjudged": "Cannot be judged",
}
RIVALS: dict[MethodRole, str] = {"local": "training alone", "finetuned": "one model fine-tuned by every client"}


@dataclass(frozen=True)
class Card:
    """One method's verdict."""

    name: str
    outcome: Outcome
    tag: str
    sentences: tuple[str, ...]


def cards(subject: Subject) -> list[Card]:
    """A verdict for each method under test, and beside them what simpler things do."""
    findings = subject.findings
    simpler = [label for role in RIVALS if (label := findings.roles.first(role)) is not None]
    return [_card(subject, findings.methods[label]) for label in findings.roles.methods] + [
        _simple_card(subject, label) for label in simpler
    ]


def headline(subject: Subject) -> str:
    """The one sentence to take home. A method is only best where it is clearly better than simpler things, too."""
    findings, base = subject.findings, subject.baseline.name
    own = {label: findings.methods[label].outcome for label in findings.roles.methods}
    if not own:
        return "Nothing was compared: the study holds baselines only."
    winners = [label for label, kind in own.items() if kind == "better"]
    if not winners:
        return _without_winner(set(own.values()), base)
    best = max(winners, key=lambda label: findings.methods[label].scores[findings.score].mean)
    rivals = {label: findings.gap(label, best) for role in RIVALS if (label := findings.roles.first(role)) is not None}
    better = [label for label, gap in rivals.items() if gap.low > 0]
    equal = [label for label, gap in rivals.items() if gap.low <= 0 <= gap.high]
    if better or equal:
        than = "something simpler is better still" if better else "not clearly better than something simpler"
        return f"{subject.name(best)} is better than {base}, but {than}: {and_listed([subject.name(label) for label in better or equal])}."
    first = [label for label in winners if label == best or findings.gap(best, label).low <= 0]
    gain = findings.methods[best].gap.mean
    if len(first) > 1:
        return f"{and_listed([subject.name(label) for label in first])} do best: up to {subject.measure.more(count(gain))} than {base}."
    return f"{subject.name(best)} does best: {subject.measure.more(count(gain))} than {base}."


def _without_winner(outcomes: set[Outcome], base: str) -> str:
    if outcomes == {"unjudged"}:
        return "This study cannot say which method is better: it takes several repetitions."
    if "unproven" in outcomes:
        return f"Some methods look better than {base}, but the study is too small to prove it."
    if outcomes == {"same"}:
        return f"No method that was compared differs from {base} by more than the margin."
    return f"No method that was compared is shown to be better than {base}."


def _card(subject: Subject, finding: Finding) -> Card:
    gap, name, kind = finding.gap, subject.name(finding.label), finding.outcome
    does = [told] if (told := about(finding.label)) else []
    if kind == "unjudged":
        why = (
            "No repetition of it was completed."
            if not gap.n
            else f"It differs by {with_sign(gap.mean)} points in a single repetition, which may be chance."
        )
        return Card(name, kind, TAGS[kind], (why, *_diverged(finding), "Run at least 5 repetitions, better 10 draws of the data.", *does))
    said = [*_level(subject, finding), *_diverged(finding), *_certainty(subject, kind, gap), *who_gains(subject, finding)]
    said += _simpler(subject, finding)
    said += [*two_class_words(subject, finding), *_origin(finding, kind), *who_is_together(subject, finding), *_room(subject, finding)]
    return Card(name, kind, _tag(subject, kind, gap), (*said, *_early(subject, finding), *does))


def _simple_card(subject: Subject, label: str) -> Card:
    """Something simpler: no candidate, but what a candidate has to beat."""
    finding = subject.findings.methods[label]
    gap, name, does = finding.gap, subject.name(label), [about(label)]
    if not gap.testable:
        return Card(name, "unjudged", "Simpler, for comparison", (*_diverged(finding), *does))
    kind: Outcome = "better" if gap.low > 0 else "worse" if gap.high < 0 else "same" if finding.same.shown else "unclear"
    said = [*_level(subject, finding), *_diverged(finding), *_certainty(subject, kind, gap), *who_gains(subject, finding)]
    said += two_class_words(subject, finding)
    return Card(name, kind, f"Simpler, for comparison. {_tag(subject, kind, gap)}", (*said, *does))


def _tag(subject: Subject, kind: Outcome, gap: Gap) -> str:
    base = subject.baseline.name
    if kind == "unclear":
        return f"Undecided: between {count(gap.low)} worse and {count(gap.high)} better than {base}"
    return TAGS[kind].format(base=base, margin=count(subject.findings.margin))


def _level(subject: Subject, finding: Finding) -> list[str]:
    """Where it stands, and where the baseline does; where that is a mean over rounds, also what the last model does."""
    findings, base = subject.findings, subject.baseline.name
    own, final = finding.scores[findings.score].mean, finding.scores["final"].mean
    measure = subject.measure
    said = f"{measure.standing(own, own - finding.gap.mean, base)}: {with_sign(finding.gap.mean)} points."
    tail = findings.records.rounds[findings.scope.tail]
    if findings.score != "last10" or len(tail) < 2:
        return [said]
    gain = finding.over_baseline["final"].mean
    now, then = (_plain(measure, value) for value in (final, final - gain))
    return [f"{said} That is the mean of rounds {tail[0]} to {tail[-1]}; after the last, {now} and {then}."]


def _diverged(finding: Finding) -> list[str]:
    return [] if finding.divergence is None else [f"Do not rely on that, since {finding.divergence}."]


def _plain(measure: Measure, value: float) -> str:
    return f"{100 * value:.1f}" if measure is ACCURACY else measure.level(value)


def _certainty(subject: Subject, kind: Outcome, gap: Gap) -> list[str]:
    """How sure it is, by everything that could have come out otherwise."""
    tested = len(subject.findings.roles.methods)
    if kind == "unproven":
        return [
            f"It did better in {gap.units.wins} of {gap.n} repetitions, by {count(gap.mean)} points on average; with 95 % confidence the "
            f"difference lies between {with_sign(gap.low)} and {with_sign(gap.high)}, which excludes 0.",
            f"{gap.n} repetitions are too few for the test of {_methods(tested)}: run {repetitions_advised(tested)}.",
        ]
    if max(abs(gap.low), abs(gap.high)) < 0.0005:
        return ["The difference is less than 0.1 points."]
    wide = f"With 95 % confidence the difference lies between {with_sign(gap.low)} and {with_sign(gap.high)} points ({repeated(subject)})"
    said = f"{wide}: the widest of what may come of {sources_in_words(subject, gap)}."
    if kind in ("better", "worse"):
        return [said, "Chance alone would rarely give this."]
    if kind == "unclear":
        return [said, "The difference may be chance." if gap.units.low <= 0 <= gap.units.high else _undecided(subject, gap)]
    return [said]


def _undecided(subject: Subject, gap: Gap) -> str:
    """Where repetitions agree and the verdict is open all the same, why."""
    if any(own.low <= 0 <= own.high for name, own in gap.sources.deciding.items() if name == "test clients"):
        tested = int(subject.findings.records.test.sum())
        return (
            f"With {tested:,} test samples of {len(subject.findings.records.ids):,} clients a difference of this size can still be chance."
        )
    if gap.low <= 0 <= gap.high:
        return "The difference may be chance."
    return "All of that excludes 0, but it is not significant once it is counted how many methods were compared."


def _origin(finding: Finding, kind: Outcome) -> list[str]:
    """Whether it is similarity that helps, from the control with random groups."""
    parts = finding.decomposition
    similarity = parts.step("similarity") if parts is not None else None
    if parts is None or similarity is None or not similarity.gain.testable:
        return []
    own, like = similarity.gain, " among clients of like size" if parts.step("balance") is not None else ""
    random = f"Groups of the same sizes drawn by lot{like} {gain_or_lose(parts.without_similarity)}"
    if kind not in ("better", "unproven"):
        if own.low > 0:
            return [f"{random}: choosing similar clients helps, but not enough."]
        return [f"{random}: choosing similar clients {'does harm' if own.high < 0 else 'is not shown to make a difference'}."]
    match origin_of(parts):
        case "all" if count(own.mean) == count(parts.total.mean):
            return [f"{random}: putting similar clients together makes all of the gain."]
        case "all" if own.mean > parts.total.mean:
            more = f"all of the gain and more, {with_sign(own.mean)} points over such groups"
            return [f"{random}: putting similar clients together makes {more}."]
        case "all":
            return [f"{random}: putting similar clients together makes {count(own.mean)} of the {count(parts.total.mean)} points."]
        case "part":
            return [f"{random}: putting similar clients together makes only {count(own.mean)} of the {count(parts.total.mean)} points."]
    if own.high < 0:
        cost = f"the gain comes from having groups, and choosing similar clients costs {count(own.mean)}"
        return [f"{random}, more than similar ones: {cost}."]
    return [f"{random}: the gain is not shown to come from putting similar clients together."]


def _simpler(subject: Subject, finding: Finding) -> list[str]:
    """The method against simpler things, always: a method that they equal is not worth its trouble."""
    findings, said = subject.findings, []
    for role, who in RIVALS.items():
        label = findings.roles.first(role)
        gap = findings.gap(finding.label, label) if label is not None else None
        if gap is not None and gap.testable:
            verdict = "better" if gap.low > 0 else "worse" if gap.high < 0 else "not shown to differ"
            lower = _lower_than_alone(finding) if role == "local" else ""
            said.append(f"Against {who} {with_sign(gap.mean)} points ({between_ends(gap.low, gap.high)}): {verdict}{lower}.")
    return said


def _lower_than_alone(finding: Finding) -> str:
    share = finding.fairness.worse_than_alone
    return f"; {100 * share:.0f} % of clients score lower than alone" if share > 0 else ""


def _room(subject: Subject, finding: Finding) -> list[str]:
    """What the true groups would add, where it is more than chance."""
    label = subject.findings.roles.controls.get(finding.label, {}).get("oracle")
    gap = subject.findings.gap(label, finding.label) if label is not None else None
    if gap is None or not gap.testable or gap.low <= 0:
        return []
    return [f"Knowing the true groups would add {count(gap.mean)} points."]


def _early(subject: Subject, finding: Finding) -> list[str]:
    lost = f"{finding.missing} of {subject.findings.repetitions.runs} repetitions broke off and are not counted."
    return [lost] if finding.missing else []


def _methods(number: int) -> str:
    return "one method" if number == 1 else f"{number} methods"
