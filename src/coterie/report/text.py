"""The verdict for a reader who knows the clients but not the statistics: short sentences, numbers in right answers out of 100.

The rules are those of `analysis.rules`; `analysis.verdict` says the same with tests and intervals.
"""

from dataclasses import dataclass

import numpy as np

from coterie.analysis.findings import Finding
from coterie.analysis.roles import MethodRole
from coterie.analysis.rules import Outcome, origin_of, seeds_needed
from coterie.core.arrays import Doubles
from coterie.report.style import ALONE
from coterie.report.subject import Subject
from coterie.statistics import Paired

TAGS: dict[Outcome, str] = {
    "better": "Better than {base}",
    "worse": "Worse than {base}",
    "unclear": "No clear difference from {base}",
    "unproven": "Looks better than {base}, not proven",
    "unjudged": "Cannot be judged",
}
RIVALS: dict[MethodRole, str] = {"local": "Clients that train alone do", "finetuned": "Fine-tuning the shared model does"}


@dataclass(frozen=True)
class Card:
    """One method's verdict."""

    name: str
    outcome: Outcome
    tag: str
    sentences: tuple[str, ...]


def cards(subject: Subject) -> list[Card]:
    """A verdict for each method under test."""
    return [_card(subject, subject.findings.methods[label]) for label in subject.findings.roles.methods]


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
    rivals = {label: findings.paired(label, best) for role in RIVALS if (label := findings.roles.first(role)) is not None}
    better = [label for label, gap in rivals.items() if gap.low > 0]
    equal = [label for label, gap in rivals.items() if gap.low <= 0 <= gap.high]
    if better or equal:
        than = "something simpler is better still" if better else "not clearly better than something simpler"
        return f"{subject.name(best)} is better than {base}, but {than}: {_listed([subject.name(label) for label in better or equal])}."
    first = [label for label in winners if label == best or findings.paired(best, label).low <= 0]
    gain = findings.methods[best].over_baseline[findings.score].mean
    if len(first) > 1:
        return f"{_listed([subject.name(label) for label in first])} do best: up to {_count(gain)} more right answers in 100 than {base}."
    return f"{subject.name(best)} does best: {_count(gain)} more right answers in 100 than {base}."


def _without_winner(outcomes: set[Outcome], base: str) -> str:
    if outcomes == {"unjudged"}:
        return "This study cannot say which method is better: it takes several repetitions."
    if "unproven" in outcomes:
        return f"Some methods look better than {base}, but the study is too small to prove it."
    return f"No method that was compared is clearly better than {base}."


def _card(subject: Subject, finding: Finding) -> Card:
    test, name, kind = finding.over_baseline[subject.findings.score], subject.name(finding.label), finding.outcome
    tag = TAGS[kind].format(base=subject.baseline.name)
    if kind == "unjudged":
        why = (
            "No repetition of it was completed."
            if not test.n
            else f"It differs by {_signed(test.mean)} points in a single repetition, which may be chance."
        )
        return Card(name, kind, tag, (why, "Run at least 5 repetitions, better 35."))
    said = [_level(subject, finding, test), _certainty(subject, kind, test), *_losers(subject, finding)]
    said += [*_origin(subject, finding, kind), *_simpler(subject, finding), *_room(subject, finding), *_early(subject, finding)]
    return Card(name, kind, tag, tuple(said))


def _level(subject: Subject, finding: Finding, test: Paired) -> str:
    """How many answers are right, and how many were."""
    own = finding.scores[subject.findings.score].mean
    return f"Of 100 answers, {100 * own:.1f} are right; with {subject.baseline.name}, {100 * (own - test.mean):.1f}."


def _certainty(subject: Subject, kind: Outcome, test: Paired) -> str:
    span, tested = f"{_signed(test.low)} and {_signed(test.high)} points", len(subject.findings.roles.methods)
    if kind == "unproven":
        return (
            f"It did better in {test.wins} of {test.n} repetitions, by {_count(test.mean)} points on average. With "
            f"{_methods(tested)} tested, proof takes at least {seeds_needed(tested)} repetitions."
        )
    if max(abs(test.low), abs(test.high)) < 0.0005:
        return "The difference is less than 0.1 points."
    if kind == "unclear":
        return f"The difference may be chance: it lies between {span}."
    return f"Over {test.n} repetitions the difference lies between {span}. Chance does not explain it."


def _losers(subject: Subject, finding: Finding) -> list[str]:
    """Clients that the baseline serves better, and those that would do better alone."""
    base, own = subject.baseline.name, finding.fairness
    known, count = _below_zero(own.gain)
    if not known:
        return []
    who = f"{_of(count, known)} served worse than with {base}, by {_count(np.nanmin(own.gain))} points{'' if count == 1 else ' at most'}."
    said = [who if count else f"No client is served worse than with {base}."]
    alone = _below_zero(own.gain_over_local)[1] if own.gain_over_local is not None else 0
    return [*said, f"{_of(alone, known)} better off alone."] if alone else said


def _below_zero(gain: Doubles) -> tuple[int, int]:
    """How many clients have a gain, and how many of them lose."""
    known = gain[np.isfinite(gain)]
    return len(known), int((known < -1e-12).sum())


def _of(count: int, known: int) -> str:
    return f"{count:,} of {known:,} clients {'is' if count == 1 else 'are'}"


def _origin(subject: Subject, finding: Finding, kind: Outcome) -> list[str]:
    """Whether it is similarity that helps, from the control with random groups."""
    parts = finding.decomposition
    similarity = parts.step("similarity") if parts is not None else None
    if parts is None or similarity is None or not similarity.gain.testable:
        return []
    by_chance, own = parts.total.mean - similarity.gain.mean, similarity.gain
    random = f"Groups of the same sizes drawn by lot {_gain_or_lose(by_chance)}"
    if kind not in ("better", "unproven"):
        if own.low > 0:
            return [f"{random}: choosing similar clients helps, but not enough."]
        return [f"{random}: choosing similar clients {'does harm' if own.high < 0 else 'makes no clear difference'}."]
    match origin_of(parts):
        case "all":
            return [f"{random}: the gain comes from putting similar clients together."]
        case "part":
            return [f"{random}: only {_count(own.mean)} points come from putting similar clients together."]
    return [f"{random}: the gain is not shown to come from putting similar clients together."]


def _simpler(subject: Subject, finding: Finding) -> list[str]:
    """Simpler things that do as well or better."""
    findings, found = subject.findings, []
    for role, who in RIVALS.items():
        label = findings.roles.first(role)
        gap = findings.paired(label, finding.label) if label is not None else None
        if gap is not None and gap.low > 0:
            found.append(f"{who} better, by {_count(gap.mean)} points.")
        elif gap is not None and gap.low <= 0 <= gap.high:
            found.append(f"{who} neither clearly better nor clearly worse.")
    return found


def _room(subject: Subject, finding: Finding) -> list[str]:
    """What the true groups would add, where it is more than chance."""
    label = subject.findings.roles.controls.get(finding.label, {}).get("oracle")
    gap = subject.findings.paired(label, finding.label) if label is not None else None
    if gap is None or not gap.testable or gap.low <= 0:
        return []
    return [f"Knowing the true groups would add {_count(gap.mean)} points."]


def _early(subject: Subject, finding: Finding) -> list[str]:
    missing = finding.over_baseline["final"].missing
    return [f"{missing} of {len(subject.findings.seeds)} repetitions broke off and are not counted."] if missing else []


def _methods(count: int) -> str:
    return "one method" if count == 1 else f"{count} methods"


def _gain_or_lose(value: float) -> str:
    if abs(value) < 0.0005:
        return "change nothing"
    return f"gain {_count(value)} points" if value > 0 else f"lose {_count(value)} points"


def _count(value: float) -> str:
    return f"{abs(100 * value):.1f}"


def _signed(value: float) -> str:
    text = f"{100 * value:+.1f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def _listed(names: list[str]) -> str:
    return " and ".join("training alone" if name == ALONE else name for name in names)
