"""So do this: which method, which model for whom, what to measure next; or nothing, where nothing is shown to help."""

from math import ceil

from coterie.analysis.recommendation import recommend
from coterie.analysis.rules import OPEN, repetitions_advised, repetitions_needed
from coterie.report.plain import and_listed, between_ends, with_sign
from coterie.report.subject import Subject


def advice(subject: Subject) -> list[str]:
    """Sentences to act on, from the same rules as the verdict."""
    chosen = recommend(subject.findings)
    if chosen is None or chosen.label == subject.findings.roles.baseline:
        return [_wait(subject), *_highest(subject), *_next(subject)]
    if chosen.label != chosen.best:
        return [_begin_simple(subject, chosen.best, chosen.label), *_next(subject)]
    return [_use(subject, chosen.label), *_spared(subject, chosen.label), *_next(subject)]


def _score(subject: Subject, label: str) -> float:
    return subject.findings.methods[label].scores[subject.findings.score].mean


def _right(subject: Subject, label: str) -> str:
    return subject.measure.short(_score(subject, label))


def _begin_simple(subject: Subject, best: str, first: str) -> str:
    """Where the best method is too little ahead of something simpler: begin with that."""
    gap = subject.findings.gap(best, first)
    chosen = f"Begin with {and_listed([subject.name(first)])} ({_right(subject, first)}), which is simpler"
    return (
        f"{chosen}: {subject.name(best)} ({_right(subject, best)}) is too little ahead of it to matter ({with_sign(gap.mean)} points, "
        f"{between_ends(gap.low, gap.high)})."
    )


def _wait(subject: Subject) -> str:
    """Where nothing is shown: whether the study is too small, or the methods are."""
    base, outcomes = subject.baseline.name, {finding.outcome for finding in subject.methods.values()}
    if "unproven" in outcomes:
        return f"Run more repetitions before you decide: these are too few for the test, and something looks better than {base}."
    return f"Do nothing new yet: nothing is shown to do better than {base}."


def _highest(subject: Subject) -> list[str]:
    """What scores highest although it is not shown to."""
    findings = subject.findings
    shown = [label for label in subject.shown if label != findings.roles.baseline and findings.methods[label].gap.testable]
    best = max(shown, key=lambda label: _score(subject, label), default=None)
    if best is None or findings.methods[best].gap.mean <= 0:
        return []
    gap = findings.methods[best].gap
    name = and_listed([subject.name(best)])
    return [f"Highest is {name} ({with_sign(gap.mean)} points, {between_ends(gap.low, gap.high)}): {_why_open(subject, best)}."]


def _why_open(subject: Subject, label: str) -> str:
    gap, kind = subject.findings.methods[label].gap, subject.findings.methods[label].outcome
    if gap.low <= 0:
        return "it may be chance"
    if kind == "unproven":
        return f"{gap.n} repetitions are too few for the test, and the 95 % confidence range excludes 0"
    return "the 95 % confidence range excludes 0, but it is not significant among so many methods"


def _use(subject: Subject, best: str) -> str:
    role, name = subject.findings.roles.of[best], subject.name(best)
    if role == "local":
        return f"Let every client train by itself ({_right(subject, best)}): sharing a model is not shown to be worth it."
    if role == "finetuned":
        return f"Use {name} ({_right(subject, best)}): share one model, and let every client train it a little further on its own data."
    grouped = subject.findings.methods[best].grouping is not None
    who = "each client gets its group's model; a new client is placed by the method from its own data" if grouped else "all get its model"
    others = [label for label in subject.findings.roles.methods if label != best and subject.findings.gap(best, label).low <= 0]
    tied = [label for label in others if subject.findings.methods[label].outcome == "better"]
    not_alone = f" It is not shown to differ from {and_listed([subject.name(label) for label in tied])}; it scores highest." if tied else ""
    return f"Use {name} ({_right(subject, best)}): {who}.{not_alone} For your analyst: coterie export DIR --method '{best}'."


def _spared(subject: Subject, best: str) -> list[str]:
    """For whom the baseline is clearly better."""
    own, records = subject.findings.methods[best].fairness, subject.findings.records
    if own.losers is None or not subject.findings.repetitions.same_clients or not own.losers.clearly.any():
        return []
    names = [records.ids[i] for i, lost in enumerate(own.losers.clearly) if lost]
    few = f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
    return [f"Except for {few}: clearly served better by {subject.baseline.name}; let them keep it."]


def _next(subject: Subject) -> list[str]:
    """What would settle what is open."""
    findings, said = subject.findings, []
    open_ = [label for label in findings.roles.methods if findings.methods[label].outcome in OPEN]
    tested = len(findings.roles.methods)
    if not findings.repetitions.several_draws:
        said.append(
            "Repeat it over other splits of the data: this study has one, and cannot tell what another would show. For your analyst: "
            "coterie resume DIR --draws 10."
        )
    elif len(findings.repetitions.draws) < repetitions_needed(tested) and open_:
        said.append(f"Repeat it over {repetitions_advised(tested)} splits: these are too few for the usual test of so many methods.")
    enough = [count for label in open_ if (count := _samples_needed(subject, label)) is not None]
    if enough:
        tested = int(findings.records.test.sum())
        said.append(
            f"Collect more test data: about {min(enough):,} test samples, not {tested:,}, would settle the smallest of these doubts."
        )
    return said


def _samples_needed(subject: Subject, label: str) -> int | None:
    """Test samples with which a difference of this size would leave out 0, where these are what leaves it open."""
    gap = subject.findings.methods[label].gap
    widest = gap.sources.widest
    if widest is None or widest[0] != "test clients" or not gap.mean or not widest[1].low <= 0 <= widest[1].high:
        return None
    times = (widest[1].width / 2 / abs(gap.mean)) ** 2  # an error falls with the root of the samples
    exact = times * float(subject.findings.records.test.sum())
    return ceil(exact / 100) * 100 if exact < 1e6 else None
