"""The verdict for a reader who knows the clients but not the statistics: short sentences, numbers in right answers out of 100.

The rules are those of `analysis.rules`; `analysis.verdict` says the same with tests and intervals.
"""

from dataclasses import dataclass

import numpy as np

from coterie.analysis.findings import Finding
from coterie.analysis.gaps import Gap
from coterie.analysis.roles import MethodRole
from coterie.analysis.rules import Outcome, origin_of, repetitions_needed
from coterie.core.arrays import Doubles
from coterie.data.redrawing import Redrawn
from coterie.report.about import about
from coterie.report.style import ALONE
from coterie.report.subject import Subject
from coterie.statistics import Interval

TAGS: dict[Outcome, str] = {
    "better": "Better than {base}",
    "worse": "Worse than {base}",
    "same": "As good as {base}, shown to be within {margin} points",
    "unclear": "Not shown to differ from {base}",
    "unproven": "Looks better than {base}, not proven",
    "unjudged": "Cannot be judged",
}
ANEW: dict[Redrawn, str] = {
    "everything": "With other data of this kind",
    "partition": "With the data shared out anew",
    "split": "With the data split anew for training and test",
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
    rivals = {label: findings.gap(label, best) for role in RIVALS if (label := findings.roles.first(role)) is not None}
    better = [label for label, gap in rivals.items() if gap.low > 0]
    equal = [label for label, gap in rivals.items() if gap.low <= 0 <= gap.high]
    if better or equal:
        than = "something simpler is better still" if better else "not clearly better than something simpler"
        return f"{subject.name(best)} is better than {base}, but {than}: {_listed([subject.name(label) for label in better or equal])}."
    first = [label for label in winners if label == best or findings.gap(best, label).low <= 0]
    gain = findings.methods[best].gap.mean
    if len(first) > 1:
        return f"{_listed([subject.name(label) for label in first])} do best: up to {_count(gain)} more right answers in 100 than {base}."
    return f"{subject.name(best)} does best: {_count(gain)} more right answers in 100 than {base}."


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
    tag = TAGS[kind].format(base=subject.baseline.name, margin=_count(subject.findings.margin))
    does = [told] if (told := about(finding.label)) else []
    if kind == "unjudged":
        why = (
            "No repetition of it was completed."
            if not gap.n
            else f"It differs by {_signed(gap.mean)} points in a single repetition, which may be chance."
        )
        return Card(name, kind, tag, (*does, why, "Run at least 5 repetitions, better 10 draws of the data."))
    said = [*does, _level(subject, finding, gap), *_certainty(subject, kind, gap), *_losers(subject, finding)]
    said += [*_origin(subject, finding, kind), *_simpler(subject, finding), *_room(subject, finding), *_early(subject, finding)]
    return Card(name, kind, tag, tuple(said))


def _level(subject: Subject, finding: Finding, gap: Gap) -> str:
    """How many answers are right, and how many were."""
    own = finding.scores[subject.findings.score].mean
    return f"Of 100 answers, {100 * own:.1f} are right; with {subject.baseline.name}, {100 * (own - gap.mean):.1f}."


def _certainty(subject: Subject, kind: Outcome, gap: Gap) -> list[str]:
    """How sure it is, by each thing that could have come out otherwise."""
    tested = len(subject.findings.roles.methods)
    if kind == "unproven":
        return [
            f"It did better in {gap.units.wins} of {gap.n} repetitions, by {_count(gap.mean)} points on average. With {_methods(tested)} "
            f"tested, proof takes at least {repetitions_needed(tested)} repetitions."
        ]
    if max(abs(gap.low), abs(gap.high)) < 0.0005:
        return ["The difference is less than 0.1 points."]
    said = [sentence for sentence in (_again(subject, gap), _elsewhere(gap)) if sentence]
    if kind in ("better", "worse"):
        return [*said, "Chance does not explain it."]
    if kind == "unclear":
        return [*said, "The difference may be chance." if gap.units.low <= 0 <= gap.units.high else _undecided(gap)]
    return said


def _again(subject: Subject, gap: Gap) -> str:
    """What other repetitions would show: of the data where they were redrawn, else on this one split."""
    again = subject.findings.repetitions
    when = ANEW[again.redrawn] if again.several_draws else "Repeated on this one split of the data"
    own = gap.sources.draws if again.several_draws else None
    low, high = (own.low, own.high) if isinstance(own, Interval) else (gap.units.low, gap.units.high)
    return f"{when}, the difference lies between {_signed(low)} and {_signed(high)} points ({again.runs} repetitions)."


def _elsewhere(gap: Gap) -> str:
    """What other test samples or clients would show."""
    own = gap.sources.clients
    if isinstance(own, str):
        return ""
    who = "other samples of these clients" if "samples of" in own.over else "other clients like these"
    return f"For {who} it lies between {_signed(own.low)} and {_signed(own.high)}{', at the widest' if own.bound else ''}."


def _undecided(gap: Gap) -> str:
    """Where repetitions agree and the verdict is open all the same, why."""
    others = [name for name, own in gap.sources.deciding.items() if own.low <= 0 <= own.high]
    if "test clients" in others:
        return "These clients' test samples are too few, or too unlike each other, to say so of others."
    return "It is not shown once it is counted how many methods were tried."


def _losers(subject: Subject, finding: Finding) -> list[str]:
    """Clients that the baseline serves better, those of them that clearly are, and those that would do better alone."""
    base, own = subject.baseline.name, finding.fairness
    known, count = _below_zero(own.gain)
    if not known:
        return []
    if not count:
        said = [f"No client scores lower than with {base}."]
    else:
        said = [f"{_of(count, known)} lower than with {base}, by {_count(np.nanmin(own.gain))} points{'' if count == 1 else ' at most'}."]
        said += _clearly(subject, finding)
    alone = _below_zero(own.gain_over_local)[1] if own.gain_over_local is not None else 0
    return [*said, f"{_of(alone, known)} lower than alone."] if alone else said


def _clearly(subject: Subject, finding: Finding) -> list[str]:
    """Who loses beyond the chance of few test samples and few runs, by name where a name is the same client in all draws."""
    own, records, losers = finding.fairness, subject.findings.records, finding.fairness.losers
    if losers is None or not own.tested:
        return []
    samples = np.median(records.test[records.test > 0])
    behind = f" (half of the clients have {samples:.0f} test samples or fewer)"
    if not own.clearly_worse:
        return [f"Of none is this more than chance may do{behind}."]
    if not subject.findings.repetitions.same_clients:
        return [f"Clearly, beyond chance: {own.clearly_worse:.1f} clients a draw, on average{behind}."]
    worst = sorted(np.flatnonzero(losers.clearly), key=lambda i: losers.mean[i])
    named = [f"{records.ids[i]} ({_signed(losers.mean[i])}, {_signed(losers.low[i])} to {_signed(losers.high[i])})" for i in worst[:5]]
    more = f" and {len(worst) - 5} more" if len(worst) > 5 else ""
    return [f"Clearly, beyond chance: {', '.join(named)}{more}."]


def _below_zero(gain: Doubles) -> tuple[int, int]:
    """How many clients have a gain, and how many of them lose."""
    known = gain[np.isfinite(gain)]
    return len(known), int((known < -1e-12).sum())


def _of(count: int, known: int) -> str:
    return f"{count:,} of {known:,} clients {'scores' if count == 1 else 'score'}"


def _origin(subject: Subject, finding: Finding, kind: Outcome) -> list[str]:
    """Whether it is similarity that helps, from the control with random groups."""
    parts = finding.decomposition
    similarity = parts.step("similarity") if parts is not None else None
    if parts is None or similarity is None or not similarity.gain.testable:
        return []
    own, like = similarity.gain, " among clients of like size" if parts.step("balance") is not None else ""
    random = f"Groups of the same sizes drawn by lot{like} {_gain_or_lose(parts.without_similarity)}"
    if kind not in ("better", "unproven"):
        if own.low > 0:
            return [f"{random}: choosing similar clients helps, but not enough."]
        return [f"{random}: choosing similar clients {'does harm' if own.high < 0 else 'is not shown to make a difference'}."]
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
        gap = findings.gap(label, finding.label) if label is not None else None
        if gap is not None and gap.low > 0:
            found.append(f"{who} better, by {_count(gap.mean)} points.")
        elif gap is not None and gap.low <= 0 <= gap.high:
            found.append(f"{who} neither clearly better nor clearly worse.")
    return found


def _room(subject: Subject, finding: Finding) -> list[str]:
    """What the true groups would add, where it is more than chance."""
    label = subject.findings.roles.controls.get(finding.label, {}).get("oracle")
    gap = subject.findings.gap(label, finding.label) if label is not None else None
    if gap is None or not gap.testable or gap.low <= 0:
        return []
    return [f"Knowing the true groups would add {_count(gap.mean)} points."]


def _early(subject: Subject, finding: Finding) -> list[str]:
    lost = f"{finding.missing} of {subject.findings.repetitions.runs} repetitions broke off and are not counted."
    return [lost] if finding.missing else []


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
