"""The verdict for a reader who knows the clients but not the statistics: a headline, a card for each method, and advice."""

from dataclasses import dataclass
from math import ceil

from coterie.analysis.draws import Gap
from coterie.analysis.findings import Finding
from coterie.analysis.metrics import ACCURACY, Measure
from coterie.analysis.roles import MethodRole
from coterie.analysis.verdict import recommend
from coterie.analysis.verdict_rules import UNDECIDED, Outcome, classify_origin, compute_advised_repetitions, compute_needed_repetitions
from coterie.report.federation_view import FederationView
from coterie.report.wording import (
    describe_binary_scores,
    describe_change,
    describe_gains,
    describe_groups,
    describe_method,
    describe_repetitions,
    describe_sources,
    format_interval,
    format_points,
    format_signed,
    join_names,
)

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


def write_cards(subject: FederationView) -> list[Card]:
    """A verdict for each method under test, and beside them what simpler things do."""
    findings = subject.findings
    simpler = [label for role in RIVALS if (label := findings.roles.first(role)) is not None]
    return [_write_card(subject, findings.methods[label]) for label in findings.roles.methods] + [
        _write_simple_card(subject, label) for label in simpler
    ]


def write_headline(subject: FederationView) -> str:
    """The one sentence to take home. A method is only best where it is clearly better than simpler things, too."""
    findings, base = subject.findings, subject.baseline.name
    own = {label: findings.methods[label].outcome for label in findings.roles.methods}
    if not own:
        return "Nothing was compared: the study holds baselines only."
    winners = [label for label, kind in own.items() if kind == "better"]
    if not winners:
        return _headline_without_winner(set(own.values()), base)
    best = max(winners, key=lambda label: findings.methods[label].scores[findings.score].mean)
    rivals = {label: findings.gap(label, best) for role in RIVALS if (label := findings.roles.first(role)) is not None}
    better = [label for label, gap in rivals.items() if gap.low > 0]
    equal = [label for label, gap in rivals.items() if gap.low <= 0 <= gap.high]
    if better or equal:
        than = "something simpler is better still" if better else "not clearly better than something simpler"
        return f"{subject.name(best)} is better than {base}, but {than}: {join_names([subject.name(label) for label in better or equal])}."
    first = [label for label in winners if label == best or findings.gap(best, label).low <= 0]
    gain = findings.methods[best].gap.mean
    if len(first) > 1:
        return f"{join_names([subject.name(label) for label in first])} do best: up to {subject.measure.more(format_points(gain))} than {base}."
    return f"{subject.name(best)} does best: {subject.measure.more(format_points(gain))} than {base}."


def _headline_without_winner(outcomes: set[Outcome], base: str) -> str:
    if outcomes == {"unjudged"}:
        return "This study cannot say which method is better: it takes several repetitions."
    if "unproven" in outcomes:
        return f"Some methods look better than {base}, but the study is too small to prove it."
    if outcomes == {"same"}:
        return f"No method that was compared differs from {base} by more than the margin."
    return f"No method that was compared is shown to be better than {base}."


def _write_card(subject: FederationView, finding: Finding) -> Card:
    gap, name, kind = finding.gap, subject.name(finding.label), finding.outcome
    does = [told] if (told := describe_method(finding.label)) else []
    if kind == "unjudged":
        why = (
            "No repetition of it was completed."
            if not gap.n
            else f"It differs by {format_signed(gap.mean)} points in a single repetition, which may be chance."
        )
        return Card(
            name,
            kind,
            TAGS[kind],
            (why, *_divergence_sentences(finding), "Run at least 5 repetitions, better 10 draws of the data.", *does),
        )
    said = [
        *_level_sentences(subject, finding),
        *_divergence_sentences(finding),
        *_certainty_sentences(subject, kind, gap),
        *describe_gains(subject, finding),
    ]
    said += _rival_sentences(subject, finding)
    said += [
        *describe_binary_scores(subject, finding),
        *_origin_sentences(finding, kind),
        *describe_groups(subject, finding),
        *_oracle_sentences(subject, finding),
    ]
    return Card(name, kind, _choose_tag(subject, kind, gap), (*said, *_early_stop_sentences(subject, finding), *does))


def _write_simple_card(subject: FederationView, label: str) -> Card:
    """Something simpler: no candidate, but what a candidate has to beat."""
    finding = subject.findings.methods[label]
    gap, name, does = finding.gap, subject.name(label), [describe_method(label)]
    if not gap.testable:
        return Card(name, "unjudged", "Simpler, for comparison", (*_divergence_sentences(finding), *does))
    kind: Outcome = "better" if gap.low > 0 else "worse" if gap.high < 0 else "same" if finding.same.shown else "unclear"
    said = [
        *_level_sentences(subject, finding),
        *_divergence_sentences(finding),
        *_certainty_sentences(subject, kind, gap),
        *describe_gains(subject, finding),
    ]
    said += describe_binary_scores(subject, finding)
    return Card(name, kind, f"Simpler, for comparison. {_choose_tag(subject, kind, gap)}", (*said, *does))


def _choose_tag(subject: FederationView, kind: Outcome, gap: Gap) -> str:
    base = subject.baseline.name
    if kind == "unclear":
        return f"Undecided: between {format_points(gap.low)} worse and {format_points(gap.high)} better than {base}"
    return TAGS[kind].format(base=base, margin=format_points(subject.findings.margin))


def _level_sentences(subject: FederationView, finding: Finding) -> list[str]:
    """Where it stands, and where the baseline does; where that is a mean over rounds, also what the last model does."""
    findings, base = subject.findings, subject.baseline.name
    own, final = finding.scores[findings.score].mean, finding.scores["final"].mean
    measure = subject.measure
    said = f"{measure.compare_levels(own, own - finding.gap.mean, base)}: {format_signed(finding.gap.mean)} points."
    tail = findings.records.rounds[findings.scope.tail]
    if findings.score != "last10" or len(tail) < 2:
        return [said]
    gain = finding.over_baseline["final"].mean
    now, then = (_format_level(measure, value) for value in (final, final - gain))
    return [f"{said} That is the mean of rounds {tail[0]} to {tail[-1]}; after the last, {now} and {then}."]


def _divergence_sentences(finding: Finding) -> list[str]:
    return [] if finding.divergence is None else [f"Do not rely on that, since {finding.divergence}."]


def _format_level(measure: Measure, value: float) -> str:
    return f"{100 * value:.1f}" if measure is ACCURACY else measure.level(value)


def _certainty_sentences(subject: FederationView, kind: Outcome, gap: Gap) -> list[str]:
    """How sure it is, by everything that could have come out otherwise."""
    tested = len(subject.findings.roles.methods)
    if kind == "unproven":
        return [
            f"It did better in {gap.units.wins} of {gap.n} repetitions, by {format_points(gap.mean)} points on average; with 95 % confidence the "
            f"difference lies between {format_signed(gap.low)} and {format_signed(gap.high)}, which excludes 0.",
            f"{gap.n} repetitions are too few for the test of {_count_methods(tested)}: run {compute_advised_repetitions(tested)}.",
        ]
    if max(abs(gap.low), abs(gap.high)) < 0.0005:
        return ["The difference is less than 0.1 points."]
    wide = f"With 95 % confidence the difference lies between {format_signed(gap.low)} and {format_signed(gap.high)} points ({describe_repetitions(subject)})"
    said = f"{wide}: the widest of what may come of {describe_sources(subject, gap)}."
    if kind in ("better", "worse"):
        return [said, "Chance alone would rarely give this."]
    if kind == "unclear":
        return [said, "The difference may be chance." if gap.units.low <= 0 <= gap.units.high else _undecided_sentence(subject, gap)]
    return [said]


def _undecided_sentence(subject: FederationView, gap: Gap) -> str:
    """Where repetitions agree and the verdict is open all the same, why."""
    if any(own.low <= 0 <= own.high for name, own in gap.sources.deciding.items() if name == "test clients"):
        tested = int(subject.findings.records.test.sum())
        return (
            f"With {tested:,} test samples of {len(subject.findings.records.ids):,} clients a difference of this size can still be chance."
        )
    if gap.low <= 0 <= gap.high:
        return "The difference may be chance."
    return "All of that excludes 0, but it is not significant once it is counted how many methods were compared."


def _origin_sentences(finding: Finding, kind: Outcome) -> list[str]:
    """Whether it is similarity that helps, from the control with random groups."""
    parts = finding.decomposition
    similarity = parts.step("similarity") if parts is not None else None
    if parts is None or similarity is None or not similarity.gain.testable:
        return []
    own, like = similarity.gain, " among clients of like size" if parts.step("balance") is not None else ""
    random = f"Groups of the same sizes drawn by lot{like} {describe_change(parts.without_similarity)}"
    if kind not in ("better", "unproven"):
        if own.low > 0:
            return [f"{random}: choosing similar clients helps, but not enough."]
        return [f"{random}: choosing similar clients {'does harm' if own.high < 0 else 'is not shown to make a difference'}."]
    match classify_origin(parts):
        case "all" if format_points(own.mean) == format_points(parts.total.mean):
            return [f"{random}: putting similar clients together makes all of the gain."]
        case "all" if own.mean > parts.total.mean:
            more = f"all of the gain and more, {format_signed(own.mean)} points over such groups"
            return [f"{random}: putting similar clients together makes {more}."]
        case "all":
            return [
                f"{random}: putting similar clients together makes {format_points(own.mean)} of the {format_points(parts.total.mean)} points."
            ]
        case "part":
            return [
                f"{random}: putting similar clients together makes only {format_points(own.mean)} of the {format_points(parts.total.mean)} points."
            ]
    if own.high < 0:
        cost = f"the gain comes from having groups, and choosing similar clients costs {format_points(own.mean)}"
        return [f"{random}, more than similar ones: {cost}."]
    return [f"{random}: the gain is not shown to come from putting similar clients together."]


def _rival_sentences(subject: FederationView, finding: Finding) -> list[str]:
    """The method against simpler things, always: a method that they equal is not worth its trouble."""
    findings, said = subject.findings, []
    for role, who in RIVALS.items():
        label = findings.roles.first(role)
        gap = findings.gap(finding.label, label) if label is not None else None
        if gap is not None and gap.testable:
            verdict = "better" if gap.low > 0 else "worse" if gap.high < 0 else "not shown to differ"
            lower = _share_below_local(finding) if role == "local" else ""
            said.append(f"Against {who} {format_signed(gap.mean)} points ({format_interval(gap.low, gap.high)}): {verdict}{lower}.")
    return said


def _share_below_local(finding: Finding) -> str:
    share = finding.fairness.worse_than_alone
    return f"; {100 * share:.0f} % of clients score lower than alone" if share > 0 else ""


def _oracle_sentences(subject: FederationView, finding: Finding) -> list[str]:
    """What the true groups would add, where it is more than chance."""
    label = subject.findings.roles.controls.get(finding.label, {}).get("oracle")
    gap = subject.findings.gap(label, finding.label) if label is not None else None
    if gap is None or not gap.testable or gap.low <= 0:
        return []
    return [f"Knowing the true groups would add {format_points(gap.mean)} points."]


def _early_stop_sentences(subject: FederationView, finding: Finding) -> list[str]:
    lost = f"{finding.missing} of {subject.findings.repetitions.runs} repetitions broke off and are not counted."
    return [lost] if finding.missing else []


def _count_methods(number: int) -> str:
    return "one method" if number == 1 else f"{number} methods"


def write_advice(subject: FederationView) -> list[str]:
    """Sentences to act on, from the same rules as the verdict."""
    chosen = recommend(subject.findings)
    if chosen is None or chosen.label == subject.findings.roles.baseline:
        return [_explain_no_winner(subject), *_describe_highest(subject), *_next_steps(subject)]
    if chosen.label != chosen.best:
        return [_suggest_simpler(subject, chosen.best, chosen.label), *_next_steps(subject)]
    return [_explain_use(subject, chosen.label), *_name_exceptions(subject, chosen.label), *_next_steps(subject)]


def _mean_score(subject: FederationView, label: str) -> float:
    return subject.findings.methods[label].scores[subject.findings.score].mean


def _score_words(subject: FederationView, label: str) -> str:
    return subject.measure.short(_mean_score(subject, label))


def _suggest_simpler(subject: FederationView, best: str, first: str) -> str:
    """Where the best method is too little ahead of something simpler: begin with that."""
    gap = subject.findings.gap(best, first)
    chosen = f"Begin with {join_names([subject.name(first)])} ({_score_words(subject, first)}), which is simpler"
    return (
        f"{chosen}: {subject.name(best)} ({_score_words(subject, best)}) is too little ahead of it to matter ({format_signed(gap.mean)} points, "
        f"{format_interval(gap.low, gap.high)})."
    )


def _explain_no_winner(subject: FederationView) -> str:
    """Where nothing is shown: whether the study is too small, or the methods are."""
    base, outcomes = subject.baseline.name, {finding.outcome for finding in subject.methods.values()}
    if "unproven" in outcomes:
        return f"Run more repetitions before you decide: these are too few for the test, and something looks better than {base}."
    return f"Do nothing new yet: nothing is shown to do better than {base}."


def _describe_highest(subject: FederationView) -> list[str]:
    """What scores highest although it is not shown to."""
    findings = subject.findings
    shown = [label for label in subject.shown if label != findings.roles.baseline and findings.methods[label].gap.testable]
    best = max(shown, key=lambda label: _mean_score(subject, label), default=None)
    if best is None or findings.methods[best].gap.mean <= 0:
        return []
    gap = findings.methods[best].gap
    name = join_names([subject.name(best)])
    return [f"Highest is {name} ({format_signed(gap.mean)} points, {format_interval(gap.low, gap.high)}): {_explain_open(subject, best)}."]


def _explain_open(subject: FederationView, label: str) -> str:
    gap, kind = subject.findings.methods[label].gap, subject.findings.methods[label].outcome
    if gap.low <= 0:
        return "it may be chance"
    if kind == "unproven":
        return f"{gap.n} repetitions are too few for the test, and the 95 % confidence range excludes 0"
    return "the 95 % confidence range excludes 0, but it is not significant among so many methods"


def _explain_use(subject: FederationView, best: str) -> str:
    role, name = subject.findings.roles.of[best], subject.name(best)
    if role == "local":
        return f"Let every client train by itself ({_score_words(subject, best)}): sharing a model is not shown to be worth it."
    if role == "finetuned":
        return (
            f"Use {name} ({_score_words(subject, best)}): share one model, and let every client train it a little further on its own data."
        )
    grouped = subject.findings.methods[best].grouping is not None
    who = "each client gets its group's model; a new client is placed by the method from its own data" if grouped else "all get its model"
    others = [label for label in subject.findings.roles.methods if label != best and subject.findings.gap(best, label).low <= 0]
    tied = [label for label in others if subject.findings.methods[label].outcome == "better"]
    not_alone = f" It is not shown to differ from {join_names([subject.name(label) for label in tied])}; it scores highest." if tied else ""
    return f"Use {name} ({_score_words(subject, best)}): {who}.{not_alone} For your analyst: coterie export DIR --method '{best}'."


def _name_exceptions(subject: FederationView, best: str) -> list[str]:
    """For whom the baseline is clearly better."""
    own, records = subject.findings.methods[best].fairness, subject.findings.records
    if own.losers is None or not subject.findings.repetitions.same_clients or not own.losers.significant.any():
        return []
    names = [records.ids[i] for i, lost in enumerate(own.losers.significant) if lost]
    few = f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
    return [f"Except for {few}: clearly served better by {subject.baseline.name}; let them keep it."]


def _next_steps(subject: FederationView) -> list[str]:
    """What would settle what is open."""
    findings, said = subject.findings, []
    open_ = [label for label in findings.roles.methods if findings.methods[label].outcome in UNDECIDED]
    tested = len(findings.roles.methods)
    if not findings.repetitions.several_draws:
        said.append(
            "Repeat it over other splits of the data: this study has one, and cannot tell what another would show. For your analyst: "
            "coterie resume DIR --draws 10."
        )
    elif len(findings.repetitions.draws) < compute_needed_repetitions(tested) and open_:
        said.append(
            f"Repeat it over {compute_advised_repetitions(tested)} splits: these are too few for the usual test of so many methods."
        )
    enough = [count for label in open_ if (count := _estimate_samples(subject, label)) is not None]
    if enough:
        tested = int(findings.records.test.sum())
        said.append(
            f"Collect more test data: about {min(enough):,} test samples, not {tested:,}, would settle the smallest of these doubts."
        )
    return said


def _estimate_samples(subject: FederationView, label: str) -> int | None:
    """Test samples with which a difference of this size would leave out 0, where these are what leaves it open."""
    gap = subject.findings.methods[label].gap
    widest = gap.sources.widest
    if widest is None or widest[0] != "test clients" or not gap.mean or not widest[1].low <= 0 <= widest[1].high:
        return None
    times = (widest[1].width / 2 / abs(gap.mean)) ** 2  # an error falls with the root of the samples
    exact = times * float(subject.findings.records.test.sum())
    return ceil(exact / 100) * 100 if exact < 1e6 else None
