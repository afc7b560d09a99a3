"""The verdict: every claim of a study file judged by the rule that the file states, and all of them together.

One sign convention: a difference is the method's (`one`) minus the baseline's (`two`), and positive means that the method is better. Of
scores of which less is better, it is the baseline's minus the method's.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import isfinite, nan
from typing import Any, Literal, get_args

import numpy as np

from coterie.core.arrays import Doubles
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import DIFFERENCES, MIN_REPETITIONS, Claim, Reproduction, StudyPart
from coterie.reproduce.values import ASSIGNED_SCORE, PartValues, RoundsBetter
from coterie.statistics import (
    ClaimTests,
    Judgement,
    Sources,
    compute_claim_tests,
    compute_draw_interval,
    compute_seed_interval,
    compute_trends,
    correct_claims,
    judge,
)

# of no claim of a paper: nothing replicates
ControlOutcome = Literal["significant", "opposite significant", "inconclusive", "not comparable", "not run"]
CONTROL_OUTCOMES: dict[Judgement, ControlOutcome] = {
    "replicates": "significant",
    "holds in our variant": "significant",
    "contradicted": "opposite significant",
    "opposite sign in our variant": "opposite significant",
    "inconclusive": "inconclusive",
    "not comparable": "not comparable",
    "not run": "not run",
}
AGREES: tuple[Judgement, ...] = ("replicates", "holds in our variant")
OPPOSITE: tuple[Judgement, ...] = ("contradicted", "opposite sign in our variant")
OUTCOME_WORDS = {  # of several
    "replicates": "replicate",
    "holds in our variant": "hold in our variant",
    "opposite sign in our variant": "have the opposite sign in our variant",
}
# what has no sign has no opposite one
OPPOSITE_WORDS = {"tolerance": "outside the tolerance in our variant", "bound": "outside the bound in our variant"}
NUMBERED_KINDS = (*DIFFERENCES, "level")  # of which the paper's number is a number; of the others it is a bound
LESS_IS_BETTER = ("server_ms", "round_ms", "round_ratio", "rounds_to", "discrepancy", "discrepancy_variance", "change", "loss")


@dataclass(frozen=True)
class ClaimResult:
    """One claim, ours beside the paper's."""

    claim: Claim
    outcome: Judgement | ControlOutcome
    ours: float = nan
    low: float = nan  # the widest 95 % interval that decides
    high: float = nan
    over: str = ""  # what that interval is over
    p: float = nan  # one-sided and corrected, of the side on which ours lies; nan where nothing was tested
    opposite: bool = False  # that side is not the claim's: p is of its opposite
    repetitions: int = 0  # seeds or draws
    variant: str = ""  # why this is not the paper's own row
    unknown: tuple[str, ...] = ()  # what these runs do not show
    why_not: str = ""  # why it was not run, or cannot be compared with the paper's row
    controls: tuple[int, int] | None = None  # of a claim: how many of its method's controls it beats, of how many; None without any

    @property
    def covers(self) -> bool | None:
        """Whether the paper's number lies in our interval; None where there is no number, or no interval."""
        if self.claim.paper is None or self.claim.kind not in NUMBERED_KINDS or not isfinite(self.low):
            return None
        return self.low <= self.claim.paper <= self.high

    @property
    def word(self) -> str:
        """The outcome; the opposite by what was claimed: a sign, a tolerance or a bound."""
        return OPPOSITE_WORDS.get(self.claim.claims, self.outcome) if self.outcome == "opposite sign in our variant" else self.outcome

    @property
    def verdict(self) -> str:
        """The outcome in words; of the paper's own row, whether more than the sign, or the tolerance, is as printed."""
        if self.outcome != "replicates" or self.covers is None:
            return self.word
        return f"replicates ({self.claim.claims}; number in CI)" if self.covers else f"replicates ({self.claim.claims} only)"

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not defined is null."""
        numbers = {name: getattr(self, name) for name in ("ours", "low", "high", "p")}
        plain = {name: value if isfinite(value) else None for name, value in numbers.items()}
        claim = self.claim
        known = {"says": claim.says, "control": claim.control, "theirs": claim.paper, "outcome": self.outcome, "why_not": self.why_not}
        more = {"over": self.over, "repetitions": self.repetitions, "variant": self.variant, "unknown": list(self.unknown)}
        beaten = None if self.controls is None else {"beaten": self.controls[0], "of": self.controls[1]}
        judged = {"paper_in_interval": self.covers, "p_of_opposite": self.opposite, "controls": beaten, "exploratory": claim.exploratory}
        return {**known, **plain, **more, **judged}


@dataclass(frozen=True)
class StudyVerdict:
    """All claims, and what they come to; controls explain, they do not count."""

    results: tuple[ClaimResult, ...]

    @property
    def claims(self) -> list[ClaimResult]:
        return [result for result in self.results if not result.claim.control]

    @property
    def controls(self) -> list[ClaimResult]:
        return [result for result in self.results if result.claim.control]

    @property
    def counts(self) -> dict[Judgement, int]:
        """How many of the paper's claims came to what, every judgement named."""
        found = Counter(result.outcome for result in self.claims)
        return {judgement: found[judgement] for judgement in get_args(Judgement)}

    @property
    def tally(self) -> str:
        """The counts in words."""
        found = Counter(result.word for result in self.claims)
        words = dict.fromkeys(result.word for outcome in self.counts for result in self.claims if result.outcome == outcome)
        return ", ".join(f"{n} {OUTCOME_WORDS.get(word, word) if n > 1 else word}" for word in words if (n := found[word]))

    @property
    def sentence(self) -> str:
        """The counts in words; of what agrees, how often more than the sign does; and why some were not run."""
        numbered = [result.covers for result in self.claims if result.outcome in AGREES and result.covers is not None]
        also = [f"printed number in our interval: {sum(numbered)} of {len(numbered)} that agree"] if numbered else []
        why = "; ".join(dict.fromkeys(result.why_not for result in self.claims if result.outcome == "not run"))
        left = [f"not run: {why}"] if why else []
        return "; ".join([self.tally, *also, *left])

    @property
    def control_sentence(self) -> str:
        """The counts of the controls in words; empty where there are none."""
        found = Counter(result.outcome for result in self.controls)
        return ", ".join(f"{found[word]} {word}" for word in get_args(ControlOutcome) if found[word])


NOT_DECLARED = "not declared as the paper's own row"


def explain_variant(study: Reproduction, claim: Claim, runs: Sequence[PartRun], repetitions: int | None) -> str:
    """What makes it another row, in words; nothing where model, data, length and measure are the paper's and all of it was run.

    Repetitions are the seeds or draws that the claim rests on: of several methods the one with fewest decides; None where it was not run.
    """
    names = claim.parts or [claim.part]
    found = [claim.variant]
    for run in (run for run in runs if run.part.name in names):
        found.append(NOT_DECLARED if run.part.variant is None else run.part.variant)
        if repetitions is not None:
            found.append(_describe_shortfall(study, run, repetitions))
    return "; ".join(dict.fromkeys(reason for text in found for reason in text.split("; ") if reason))  # each once


def _describe_shortfall(study: Reproduction, run: PartRun, repetitions: int) -> str:
    """Fewer rounds or seeds than the study file asks for, in words."""
    intended = study.get_settings(run.part).settings
    counts = {"seeds": (repetitions, len(intended.seeds))}
    if run.settings is not None and run.part.measure == "training":
        counts = {"rounds": (run.settings.plan.rounds, intended.plan.rounds), **counts}
    return ", ".join(f"{done} of {asked} {name}" for name, (done, asked) in counts.items() if done < asked)


ACCURACIES = ("final", "last10", "mean", "max", ASSIGNED_SCORE, "median", "macro")  # scores that are some mean of right answers, in percent
MAX_SHORTFALL = 15.0  # points of accuracy: a variant further below the paper's own accuracy is under-trained


def explain_incomparable(study: Reproduction, claim: Claim, values: Mapping[str, PartValues], variant: str) -> str:
    """Why a claim has no verdict, in words; nothing where it has one.

    The study file declares it of the part; or a row that is compared, or FedAvg, does not beat guessing the most frequent class; or, in a
    variant, FedAvg's accuracy is more than `MAX_SHORTFALL` points below what the paper prints of it (of another row, where it prints none).
    """
    for name in claim.parts or [claim.part]:
        part, own = study.part(name), values[name]
        found = [part.not_comparable, _find_guessing(claim, part, own), _find_shortfall(study, claim, name, own) if variant else ""]
        if any(found):
            return next(filter(None, found))
    return ""


def _list_baselines(rows: Sequence[str]) -> list[str]:
    return [row for row in rows if row.partition(" | ")[0] in ("fedavg", "fedavg(weighting=uniform)")]


def _find_guessing(claim: Claim, part: StudyPart, values: PartValues) -> str:
    score = claim.score if claim.score in ACCURACIES else "final"
    for row in dict.fromkeys([claim.two, claim.one, *_list_baselines(values.rows)]) if part.majority is not None else ():
        if values.mean(row, score) <= (part.majority or 0.0):  # nan is not
            return f"{row} has {values.mean(row, score):.1f} % accuracy, the most frequent class {part.majority:g} %"
    return ""


def _find_shortfall(study: Reproduction, claim: Claim, name: str, values: PartValues) -> str:
    """By FedAvg where the paper prints its accuracy, else by the claim's baseline, its method, or any other row."""
    printed = {(row, score): theirs for row, score, theirs in _list_printed(study, name)}
    known = [row for row, _ in printed]
    rows = dict.fromkeys([*_list_baselines(known), claim.two, claim.one, *known])
    for row in rows:
        for score in dict.fromkeys([claim.score, "final", *(score for _, score in printed)]):
            ours, theirs = values.mean(row, score), printed.get((row, score), nan)
            if isfinite(ours) and isfinite(theirs):  # the first that both have decides
                return f"{row} has {ours:.1f} % accuracy, in the paper {theirs:g} %" if ours < theirs - MAX_SHORTFALL else ""
    return ""


def _list_printed(study: Reproduction, name: str) -> Iterator[tuple[str, str, float]]:
    """Row, score and the paper's accuracy: of a part, and of the parts in whose place it was declared."""
    for paper in study.published:
        if paper.score in ACCURACIES and name in (paper.part, study.part(paper.part).instead):
            yield from ((row, paper.score, value) for row, value in paper.values.items())


def compute_claim_numbers(claim: Claim, values: Mapping[str, PartValues], claims: Sequence[Claim] = ()) -> Doubles:
    """(n,) in the order of the seeds that everything it compares has: a difference, a value, or a change or mean over the parts.

    `claims` are the study's, which an average is over.
    """
    if claim.kind == "average":
        known = {other.says: other for other in claims}
        return np.asarray(_pair_seeds([_subtract_rows(known[text], known[text].part, values) for text in claim.of]).mean(axis=0))
    if claim.kind == "trend":
        columns = [_subtract_rows(claim, name, values) if claim.two else values[name].of(claim.one, claim.score) for name in claim.parts]
        return compute_trends(_pair_seeds(columns), claim.at or None)
    one = values[claim.part].of(claim.one, claim.score)
    if claim.kind == "difference":
        one = _subtract_rows(claim, claim.part, values)
    return np.asarray(_pair_seeds([one])[0])


def _subtract_rows(claim: Claim, part: str, values: Mapping[str, PartValues]) -> dict[int, float]:
    """One minus the other in a part, of the seeds that both have, so that positive is better."""
    one, two = (values[part].of(row, claim.score) for row in (claim.one, claim.two))
    better = -1 if claim.score in LESS_IS_BETTER else 1
    return {seed: better * (one[seed] - two[seed]) for seed in one.keys() & two.keys()}


def _pair_seeds(columns: list[dict[int, float]]) -> Doubles:
    """(K, n) the values of the seeds that all have."""
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array([[column[seed] for seed in seeds] for column in columns], dtype=np.float64).reshape(len(columns), len(seeds))


def collect_sources(claim: Claim, numbers: Doubles, values: Mapping[str, PartValues], *, redrawn: bool) -> Sources:
    """Seeds of one split are a row of a table (draws, seeds); where every seed has a draw of its own they are a column."""
    table = numbers[:, None] if redrawn else numbers[None, :]
    clients = values[(claim.parts or [claim.part])[0]].clients.get(claim.says, "")  # no training, no test clients
    return Sources(compute_seed_interval(table, shared=not redrawn), compute_draw_interval(table, shared=not redrawn), clients)


NOT_RUN = ClaimTests(nan, nan, own_row=False, run=False)
NO_SCORES = "there are no scores of it"
OVER_SEEDS = "tests of rounds are over seeds alone: they say nothing about other splits of the data, clients or samples"
UNCOUNTED = RoundsBetter(nan, nan, nan, 0)


@dataclass(frozen=True)
class _ClaimTest:
    """A claim before correction."""

    tests: ClaimTests
    ours: float = nan
    repetitions: int = 0
    sources: Sources | None = None
    variant: str = ""
    why_not: str = ""

    @property
    def is_opposite(self) -> bool:
        """Whether ours lies on the other side than the claim's."""
        return self.tests.p_against < self.tests.p_for


def judge_claims(study: Reproduction, runs: Sequence[PartRun], values: Mapping[str, PartValues]) -> StudyVerdict:
    """Judge every claim; p-values are corrected over the paper's claims and, apart from them, over the controls.

    What was written down after the scores is corrected by itself: it changes no verdict that was declared before.
    """
    tested = [_test_claim(study, claim, runs, values) for claim in study.claims]
    final: dict[int, ClaimResult] = {}
    for family in product((False, True), (False, True)):
        places = [i for i, claim in enumerate(study.claims) if (claim.control, claim.is_late) == family]
        tests = [tested[i].tests for i in places]
        for i, judgement, p in zip(places, judge(tests), correct_claims(tests), strict=True):
            final[i] = _make_result(study.claims[i], tested[i], judgement, p)
    controls = [final[i] for i in range(len(tested)) if study.claims[i].control]
    return StudyVerdict(tuple(replace(final[i], controls=_count_beaten(final[i], controls)) for i in range(len(tested))))


def _count_beaten(result: ClaimResult, controls: Sequence[ClaimResult]) -> tuple[int, int] | None:
    """Of the controls that say that the claim's method is better than something, on the same part: how many are significant."""
    claim = result.claim
    if claim.control or claim.kind != "difference":
        return None
    found = [one.outcome for one in controls if _is_about(one.claim, claim) and one.outcome not in ("not run", "not comparable")]
    return (found.count("significant"), len(found)) if found else None


def _is_about(control: Claim, claim: Claim) -> bool:
    """On the same part and method, and the same thing: a control of stability says nothing about accuracy."""
    same = (control.part, control.one, _name_measured(control)) == (claim.part, claim.one, _name_measured(claim))
    return same and control.kind == "difference" and control.direction > 0


def _name_measured(claim: Claim) -> str:
    return "accuracy" if claim.score in ACCURACIES else claim.score


def _test_claim(study: Reproduction, claim: Claim, runs: Sequence[PartRun], values: Mapping[str, PartValues]) -> _ClaimTest:
    names = claim.parts or [claim.part]
    not_run = partial(_ClaimTest, NOT_RUN, variant=explain_variant(study, claim, runs, None))
    lacking = next((run.why_not for run in runs if run.part.name in names and run.why_not), "")
    if lacking:
        return not_run(why_not=lacking)
    if claim.kind == "rounds":
        rounds = values[claim.part].better.get(claim.says, UNCOUNTED)
        if not rounds.seeds:
            return not_run(why_not=NO_SCORES)
        variant = explain_variant(study, claim, runs, rounds.seeds)
        why_not = explain_incomparable(study, claim, values, variant)
        tests = ClaimTests(rounds.p_for, rounds.p_against, own_row=not variant, comparable=not why_not)
        return _ClaimTest(_void_if_few(tests, rounds.seeds), rounds.share, rounds.seeds, variant=variant, why_not=why_not)
    numbers = compute_claim_numbers(claim, values, study.claims)
    if not len(numbers):
        return not_run(why_not=NO_SCORES)
    variant = explain_variant(study, claim, runs, len(numbers))
    redrawn = all(study.part(name).redrawn for name in names)
    sources = collect_sources(claim, numbers, values, redrawn=redrawn)
    why_not = explain_incomparable(study, claim, values, variant)
    tests = replace(_weigh_evidence(claim, sources, own_row=not variant), comparable=not why_not)
    return _ClaimTest(_void_if_few(tests, len(numbers)), float(numbers.mean()), len(numbers), sources, variant, why_not)


def _weigh_evidence(claim: Claim, sources: Sources, *, own_row: bool) -> ClaimTests:
    """The tests of a claim's kind."""
    bound = 0.0 if claim.kind in DIFFERENCES or claim.paper is None else claim.paper
    direction = {"level": 0, "at_least": 1, "at_most": -1}.get(claim.kind, claim.direction)
    return compute_claim_tests(sources, direction, own_row=own_row, bound=bound, margin=claim.within)


def _void_if_few(tests: ClaimTests, repetitions: int) -> ClaimTests:
    return tests if repetitions >= MIN_REPETITIONS else replace(tests, p_for=nan, p_against=nan)


def _make_result(claim: Claim, tested: _ClaimTest, judgement: Judgement, p: tuple[float, float]) -> ClaimResult:
    outcome = CONTROL_OUTCOMES[judgement] if claim.control else judgement
    if judgement == "not run":
        return ClaimResult(claim, outcome, variant=tested.variant, why_not=tested.why_not)
    shown = nan if judgement == "not comparable" else p[1] if tested.is_opposite else p[0]
    unknown = (OVER_SEEDS,) if tested.sources is None else tuple(tested.sources.unknown)
    found = ClaimResult(
        claim,
        outcome,
        tested.ours,
        p=shown,
        opposite=tested.is_opposite,
        repetitions=tested.repetitions,
        variant=tested.variant,
        unknown=unknown,
        why_not=tested.why_not,
    )
    if tested.sources is None or tested.sources.widest is None:
        return found
    _, widest = tested.sources.widest
    return replace(found, low=widest.low, high=widest.high, over=widest.over)
