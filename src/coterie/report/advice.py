"""So do this: which method, which model for whom, what to measure next; or nothing, where nothing is shown to help."""

from coterie.analysis.rules import repetitions_needed
from coterie.report.style import ALONE
from coterie.report.subject import Subject

DRAWS = "Repeat it over other splits of the data: coterie compare ... --draws 10."


def advice(subject: Subject) -> list[str]:
    """Sentences to act on, from the same rules as the verdict."""
    findings, roles = subject.findings, subject.findings.roles
    winners = [label for label in roles.methods if findings.methods[label].outcome == "better"]
    simpler = [label for role in ("local", "finetuned") if (label := roles.first(role)) is not None]
    best = max([*winners, *_clear(subject, simpler)], key=lambda label: findings.methods[label].scores[findings.score].mean, default=None)
    if best is None:
        return [f"Do nothing new: no method is shown to help, so stay with {subject.baseline.name}.", *_next(subject)]
    rival = next((label for label in simpler if label != best and findings.gap(best, label).low <= 0), None)
    if rival is not None and findings.gap(rival, best).high >= 0 and best not in simpler:
        name = "training alone" if subject.name(rival) == ALONE else subject.name(rival)
        return [
            f"{subject.name(best)} helps, but it is not shown to do more than {name}, which is simpler: begin with that.",
            *_next(subject),
        ]
    return [_use(subject, best), *_spared(subject, best), *_next(subject)]


def _clear(subject: Subject, labels: list[str]) -> list[str]:
    """Of simpler things those that are clearly better than the baseline."""
    return [label for label in labels if subject.findings.methods[label].gap.testable and subject.findings.methods[label].gap.low > 0]


def _use(subject: Subject, best: str) -> str:
    role, name = subject.findings.roles.of[best], subject.name(best)
    if role == "local":
        return "Let every client train by itself: sharing a model is not shown to be worth it."
    if role == "finetuned":
        return f"Use {name}: share one model, and let every client train it a little further on its own data."
    grouped = subject.findings.methods[best].grouping is not None
    who = (
        "each client gets the model of its group; a new client is placed by the method from its own data"
        if grouped
        else "all get its model"
    )
    return f"Use {name}: {who} (coterie export DIR --method '{best}')."


def _spared(subject: Subject, best: str) -> list[str]:
    """For whom the baseline is clearly better."""
    own, records = subject.findings.methods[best].fairness, subject.findings.records
    if own.losers is None or not subject.findings.repetitions.same_clients or not own.losers.clearly.any():
        return []
    names = [records.ids[i] for i, lost in enumerate(own.losers.clearly) if lost]
    listed = f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
    return [f"Except for {listed}: clearly served better by {subject.baseline.name}; let them keep it."]


def _next(subject: Subject) -> list[str]:
    """What would settle what is open."""
    findings, said = subject.findings, []
    outcomes = {findings.methods[label].outcome for label in findings.roles.methods}
    needed = repetitions_needed(len(findings.roles.methods))
    if not findings.repetitions.several_draws:
        said.append(f"{DRAWS} This study has one split, and cannot tell what another would show.")
    elif len(findings.repetitions.draws) < needed and outcomes & {"unproven", "unclear", "unjudged"}:
        said.append(f"Run at least {needed} draws: with fewer nothing can be proven of so many methods.")
    undecided = [label for label in findings.roles.methods if findings.methods[label].outcome == "unclear"]
    if any(_by_test_samples(subject, label) for label in undecided):
        tested = int(sum(own.records.test.sum() for own in findings.draws.each) / len(findings.draws.each))
        said.append(f"Collect more test data: {tested:,} test samples leave more doubt than the repetitions do.")
    return said


def _by_test_samples(subject: Subject, label: str) -> bool:
    """Whether test clients or samples are what leaves a difference open."""
    widest = subject.findings.methods[label].gap.sources.widest
    return widest is not None and widest[0] == "test clients"
