"""The verdict for a reader who knows the clients but not the statistics: a headline, a card for each method, and advice."""

from dataclasses import dataclass
from math import ceil

from coterie.analysis.draws import Gap
from coterie.analysis.findings import Finding
from coterie.analysis.roles import MethodRole
from coterie.analysis.verdict import describe_divergence, describe_random_groups, format_points, recommend
from coterie.analysis.verdict_rules import (
    UNDECIDED,
    Outcome,
    classify_origin,
    compute_advised_repetitions,
    compute_needed_repetitions,
    decide_by_interval,
)
from coterie.report.federation_view import FederationView
from coterie.report.wording import (
    describe_binary_scores,
    describe_gains,
    describe_groups,
    describe_method,
    describe_repetitions,
    describe_sources,
    format_interval,
    format_signed,
    join_names,
    name_some,
)

TAGS: dict[Outcome, str] = {
    "better": "Better than {base}",
    "worse": "Worse than {base}",
    "same": "Equivalent to {base}: within {margin} points",
    "unclear": "Inconclusive: between {low} worse and {high} better than {base}",
    "unproven": "Looks better than {base}, not significant",
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


def write_cards(view: FederationView) -> list[Card]:
    """A verdict for each method under test, then one for each simpler method."""
    findings = view.findings
    simpler = [label for role in RIVALS if (label := findings.roles.first(role)) is not None]
    cards = [_write_card(view, findings.methods[label]) for label in findings.roles.methods]
    return cards + [_write_simple_card(view, label) for label in simpler]


def write_headline(view: FederationView) -> str:
    """The main result in one sentence. A method is only best where it is significantly better than simpler ones, too."""
    findings, base = view.findings, view.baseline.name
    own = {label: findings.methods[label].outcome for label in findings.roles.methods}
    if not own:
        return "Nothing was compared: the study holds baselines only."
    winners = [label for label, kind in own.items() if kind == "better"]
    if not winners:
        return _headline_without_winner(set(own.values()), base)
    best = max(winners, key=lambda label: _mean_score(view, label))
    rivals = {label: findings.gap(label, best) for role in RIVALS if (label := findings.roles.first(role)) is not None}
    better = [label for label, gap in rivals.items() if gap.low > 0]
    equal = [label for label, gap in rivals.items() if gap.low <= 0 <= gap.high]
    if better or equal:
        than = "a simpler method is better still" if better else "not significantly better than a simpler method"
        return f"{view.name(best)} is better than {base}, but {than}: {join_names([view.name(label) for label in better or equal])}."
    first = [label for label in winners if label == best or findings.gap(best, label).low <= 0]
    gain = f"{format_points(findings.methods[best].gap.mean)} points more {view.metric.noun} than {base}"
    if len(first) > 1:
        return f"{join_names([view.name(label) for label in first])} do best: up to {gain}."
    return f"{view.name(best)} does best: {gain}."


def _headline_without_winner(outcomes: set[Outcome], base: str) -> str:
    if outcomes == {"unjudged"}:
        return "This study cannot show which method is better: it needs several repetitions."
    if "unproven" in outcomes:
        return f"Some methods look better than {base}, but the study is too small for a significant result."
    if outcomes == {"same"}:
        return f"Every method is equivalent to {base} within the margin."
    return f"No method is significantly better than {base}."


def _write_card(view: FederationView, finding: Finding) -> Card:
    gap, name, kind = finding.gap, view.name(finding.label), finding.outcome
    does = [sentence] if (sentence := describe_method(finding.label)) else []
    if kind == "unjudged":
        single = f"It differs by {format_signed(gap.mean)} points in a single repetition, which may be chance."
        why = single if gap.n else "No repetition of it was completed."
        more = "Run at least 5 repetitions, better 10 draws of the data."
        return Card(name, kind, TAGS[kind], (why, *describe_divergence(finding), more, *does))
    sentences = [
        *_result_sentences(view, finding, kind),
        *_rival_sentences(view, finding),
        *describe_binary_scores(view, finding),
        *_origin_sentences(finding, kind),
        *describe_groups(view, finding),
        *_oracle_sentences(view, finding),
    ]
    if finding.missing:
        sentences.append(f"{finding.missing} of {view.findings.repetitions.runs} repetitions did not finish and are not counted.")
    return Card(name, kind, _choose_tag(view, kind, gap), (*sentences, *does))


def _write_simple_card(view: FederationView, label: str) -> Card:
    """A simpler method: no candidate, but what a candidate has to beat."""
    finding = view.findings.methods[label]
    gap, name, does = finding.gap, view.name(label), describe_method(label)
    if not gap.testable:
        return Card(name, "unjudged", "Simpler, for comparison", (*describe_divergence(finding), does))
    kind = decide_by_interval(gap, finding.equivalence)
    sentences = (*_result_sentences(view, finding, kind), *describe_binary_scores(view, finding), does)
    return Card(name, kind, f"Simpler, for comparison. {_choose_tag(view, kind, gap)}", sentences)


def _choose_tag(view: FederationView, kind: Outcome, gap: Gap) -> str:
    margin, low, high = (format_points(value) for value in (view.findings.margin, gap.low, gap.high))
    return TAGS[kind].format(base=view.baseline.name, margin=margin, low=low, high=high)


def _result_sentences(view: FederationView, finding: Finding, kind: Outcome) -> list[str]:
    return [
        _level_sentence(view, finding),
        *describe_divergence(finding),
        *_certainty_sentences(view, kind, finding.gap),
        *describe_gains(view, finding),
    ]


def _level_sentence(view: FederationView, finding: Finding) -> str:
    """The scores of the method and of the baseline; where these are means over rounds, also those of the last model."""
    findings, metric, gap = view.findings, view.metric, finding.gap.mean

    def levels(score: float, gain: float) -> tuple[str, str]:
        return metric.format_level(score), metric.format_level(score - gain)

    own, base = levels(finding.scores[findings.score].mean, gap)
    sentence = f"{metric.title} is {own}, {base} with {view.baseline.name}: {format_signed(gap)} points."
    tail = findings.records.rounds[findings.scope.tail]
    if findings.score != "last10" or len(tail) < 2:
        return sentence
    own, base = levels(finding.scores["final"].mean, finding.over_baseline["final"].mean)
    return f"{sentence} That is the mean of rounds {tail[0]} to {tail[-1]}; after the last round, {own} and {base}."


def _certainty_sentences(view: FederationView, kind: Outcome, gap: Gap) -> list[str]:
    tested = len(view.findings.roles.methods)
    between = f"the difference lies between {format_signed(gap.low)} and {format_signed(gap.high)}"
    if kind == "unproven":
        methods = "one method" if tested == 1 else f"{tested} methods"
        better = f"It did better in {gap.units.wins} of {gap.n} repetitions, by {format_points(gap.mean)} points on average"
        return [
            f"{better}; with 95 % confidence {between}, which excludes 0.",
            f"{gap.n} repetitions are too few for the test of {methods}: run {compute_advised_repetitions(tested)}.",
        ]
    if max(abs(gap.low), abs(gap.high)) < 0.0005:
        return ["The difference is less than 0.1 points."]
    sentence = f"With 95 % confidence {between} points ({describe_repetitions(view)}), the widest range over {describe_sources(view, gap)}."
    if kind in ("better", "worse"):
        return [sentence, "The difference is significant."]
    return [sentence, _undecided_sentence(view, gap)] if kind == "unclear" else [sentence]


def _undecided_sentence(view: FederationView, gap: Gap) -> str:
    repeated = not gap.units.low <= 0 <= gap.units.high
    if repeated and any(own.low <= 0 <= own.high for name, own in gap.sources.deciding.items() if name == "test clients"):
        records = view.findings.records
        return f"With {int(records.test.sum()):,} test samples of {len(records.ids):,} clients a difference of this size may be chance."
    if gap.low <= 0 <= gap.high:
        return "The difference is not significant."
    return "All of these ranges exclude 0, but the difference is not significant after correction for the number of methods."


def _origin_sentences(finding: Finding, kind: Outcome) -> list[str]:
    """Whether it is similarity that helps, from the control with random groups."""
    parts = finding.decomposition
    similarity = parts.step("similarity") if parts is not None else None
    if parts is None or similarity is None or not similarity.gain.testable:
        return []
    own, total, random = similarity.gain, format_points(parts.total.mean), describe_random_groups(parts)
    if kind not in ("better", "unproven"):
        if own.low > 0:
            return [f"{random}: grouping similar clients helps, but not enough."]
        return [f"{random}: grouping similar clients {'does harm' if own.high < 0 else 'makes no significant difference'}."]
    makes = f"{random}: grouping similar clients makes"
    match classify_origin(parts):
        case "all" if format_points(own.mean) == total:
            return [f"{makes} all of the gain."]
        case "all" if own.mean > parts.total.mean:
            return [f"{makes} all of the gain and more, {format_signed(own.mean)} points over random groups."]
        case "all":
            return [f"{makes} {format_points(own.mean)} of the {total} points."]
        case "part":
            return [f"{makes} only {format_points(own.mean)} of the {total} points."]
    if own.high < 0:
        cost = f"the gain comes from having groups, and grouping similar clients costs {format_points(own.mean)}"
        return [f"{random}, more than similar ones: {cost}."]
    return [f"{random}: the gain is not attributable to similarity."]


def _rival_sentences(view: FederationView, finding: Finding) -> list[str]:
    """The method against simpler ones, always: a method that they equal is not worth its trouble."""
    findings, sentences = view.findings, []
    for role, rival in RIVALS.items():
        label = findings.roles.first(role)
        gap = findings.gap(finding.label, label) if label is not None else None
        if gap is not None and gap.testable:
            verdict = "better" if gap.low > 0 else "worse" if gap.high < 0 else "no significant difference"
            share = finding.fairness.worse_than_alone if role == "local" else 0.0
            lower = f"; {100 * share:.0f} % of clients score lower than alone" if share > 0 else ""
            sentences.append(f"Against {rival} {format_signed(gap.mean)} points ({format_interval(gap.low, gap.high)}): {verdict}{lower}.")
    return sentences


def _oracle_sentences(view: FederationView, finding: Finding) -> list[str]:
    label = view.findings.roles.controls.get(finding.label, {}).get("oracle")
    gap = view.findings.gap(label, finding.label) if label is not None else None
    if gap is None or not gap.testable or gap.low <= 0:
        return []
    return [f"Knowing the true groups would add {format_points(gap.mean)} points."]


def write_advice(view: FederationView) -> list[str]:
    """Sentences to act on, from the same rules as the verdict."""
    chosen = recommend(view.findings)
    if chosen is None or chosen.label == view.findings.roles.baseline:
        return [_explain_no_winner(view), *_describe_highest(view), *_next_steps(view)]
    if chosen.label != chosen.best:
        return [_suggest_simpler(view, chosen.best, chosen.label), *_next_steps(view)]
    return [_explain_use(view, chosen.label), *_name_exceptions(view, chosen.label), *_next_steps(view)]


def _mean_score(view: FederationView, label: str) -> float:
    return view.findings.methods[label].scores[view.findings.score].mean


def _format_score(view: FederationView, label: str) -> str:
    return view.metric.format_score(_mean_score(view, label))


def _suggest_simpler(view: FederationView, best: str, first: str) -> str:
    """Where the best method is too little ahead of a simpler one: start with that."""
    gap = view.findings.gap(best, first)
    chosen = f"Start with {join_names([view.name(first)])} ({_format_score(view, first)}), which is simpler"
    ahead = f"{view.name(best)} ({_format_score(view, best)}) is too little ahead of it to matter"
    return f"{chosen}: {ahead} ({format_signed(gap.mean)} points, {format_interval(gap.low, gap.high)})."


def _explain_no_winner(view: FederationView) -> str:
    """Where no method is significantly better: whether the study is too small, or the gains are."""
    base, outcomes = view.baseline.name, {finding.outcome for finding in view.methods.values()}
    if "unproven" in outcomes:
        return f"Run more repetitions before you decide: these are too few for the test, and a method looks better than {base}."
    return f"Keep {base}: no method is significantly better."


def _describe_highest(view: FederationView) -> list[str]:
    """The method with the highest score, although it is not significantly better."""
    findings = view.findings
    shown = [label for label in view.shown_methods if label != findings.roles.baseline and findings.methods[label].gap.testable]
    best = max(shown, key=lambda label: _mean_score(view, label), default=None)
    if best is None or findings.methods[best].gap.mean <= 0:
        return []
    gap, outcome = findings.methods[best].gap, findings.methods[best].outcome
    why = "the 95 % confidence range excludes 0, but it is not significant among so many methods"
    if gap.low <= 0:
        why = "the difference is not significant"
    elif outcome == "unproven":
        why = f"{gap.n} repetitions are too few for the test, and the 95 % confidence range excludes 0"
    name, points = join_names([view.name(best)]), f"{format_signed(gap.mean)} points, {format_interval(gap.low, gap.high)}"
    return [f"The highest score is that of {name} ({points}): {why}."]


def _explain_use(view: FederationView, best: str) -> str:
    role, name, score = view.findings.roles.of[best], view.name(best), _format_score(view, best)
    if role == "local":
        return f"Let every client train alone ({score}): sharing a model has no significant benefit."
    if role == "finetuned":
        return f"Use {name} ({score}): share one model, and let every client train it a little further on its own data."
    grouped = view.findings.methods[best].group_quality is not None
    use = "each client gets its group's model; a new client is placed by the method from its own data" if grouped else "all get its model"
    others = [label for label in view.findings.roles.methods if label != best and view.findings.gap(best, label).low <= 0]
    tied = [view.name(label) for label in others if view.findings.methods[label].outcome == "better"]
    not_alone = f" It does not differ significantly from {join_names(tied)}; it scores highest." if tied else ""
    return f"Use {name} ({score}): {use}.{not_alone} Command: coterie export DIR --method '{best}'."


def _name_exceptions(view: FederationView, best: str) -> list[str]:
    own, records = view.findings.methods[best].fairness, view.findings.records
    if own.losers is None or not view.findings.repetitions.same_clients or not own.losers.significant.any():
        return []
    names = [records.ids[i] for i, lost in enumerate(own.losers.significant) if lost]
    return [f"Except for {name_some(names)}: {view.baseline.name} serves them significantly better; let them keep it."]


def _next_steps(view: FederationView) -> list[str]:
    findings, steps = view.findings, []
    open_ = [label for label in findings.roles.methods if findings.methods[label].outcome in UNDECIDED]
    tested = len(findings.roles.methods)
    if not findings.repetitions.several_draws:
        one = "this study has one split and does not estimate the results of another"
        steps.append(f"Repeat it over other splits of the data: {one}. Command: coterie resume DIR --draws 10.")
    elif len(findings.repetitions.draws) < compute_needed_repetitions(tested) and open_:
        advised = compute_advised_repetitions(tested)
        steps.append(f"Repeat it over {advised} splits: these are too few for the default test of so many methods.")
    enough = [count for label in open_ if (count := _estimate_samples(view, label)) is not None]
    if enough:
        samples = f"about {min(enough):,} test samples, not {int(findings.records.test.sum()):,}"
        steps.append(f"Collect more test data: {samples}, would settle the smallest of the open differences.")
    return steps


def _estimate_samples(view: FederationView, label: str) -> int | None:
    """Test samples with which a difference of this size would exclude 0, where these are what leaves it open."""
    gap = view.findings.methods[label].gap
    widest = gap.sources.widest
    if widest is None or widest[0] != "test clients" or not gap.mean or not widest[1].low <= 0 <= widest[1].high:
        return None
    times = (widest[1].width / 2 / abs(gap.mean)) ** 2  # an error falls with the root of the samples
    exact = times * float(view.findings.records.test.sum())
    return ceil(exact / 100) * 100 if exact < 1e6 else None
