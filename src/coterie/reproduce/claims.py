"""The verdict: every claim of a study file judged by the rule that the file states, and all of them together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import Any, Literal, get_args

import numpy as np

from coterie.core.arrays import Doubles
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import MIN_REPETITIONS, Claim, Reproduction
from coterie.reproduce.values import PartValues, RoundsBetter
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

ControlOutcome = Literal["significant", "opposite significant", "inconclusive", "not run"]  # of no claim of a paper: nothing replicates
CONTROL_OUTCOMES: dict[Judgement, ControlOutcome] = {
    "replicates": "significant",
    "holds in our variant": "significant",
    "contradicted": "opposite significant",
    "inconclusive": "inconclusive",
    "not run": "not run",
}
OPPOSITE = "opposite in our variant"  # in place of 'contradicted' where it is not the paper's own row
OUTCOME_WORDS = {"replicates": "replicate", "holds in our variant": "hold in our variant"}  # of several


@dataclass(frozen=True)
class ClaimResult:
    """One claim, ours beside the paper's."""

    claim: Claim
    outcome: Judgement | ControlOutcome
    ours: float = nan
    low: float = nan  # the widest 95 % interval that decides
    high: float = nan
    over: str = ""  # what that interval is over
    p: float = nan  # one-sided and corrected: for the claim, or, where it is contradicted, against it; nan where nothing was tested
    repetitions: int = 0  # seeds or draws
    variant: str = ""  # why this is not the paper's own row
    unknown: tuple[str, ...] = ()  # what these runs do not show
    why_not: str = ""  # why it was not run

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        return OPPOSITE if self.outcome == "contradicted" and self.variant else self.outcome

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not defined is null."""
        numbers = {name: getattr(self, name) for name in ("ours", "low", "high", "p")}
        plain = {name: value if isfinite(value) else None for name, value in numbers.items()}
        claim = self.claim
        known = {"says": claim.says, "control": claim.control, "theirs": claim.paper, "outcome": self.outcome, "why_not": self.why_not}
        more = {"over": self.over, "repetitions": self.repetitions, "variant": self.variant, "unknown": list(self.unknown)}
        return {**known, **plain, **more}


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
    def sentence(self) -> str:
        """The counts in words, and why some were not run."""
        found = Counter(result.verdict for result in self.claims)
        known = [word for name in self.counts if name != "not run" for word in (name, *([OPPOSITE] if name == "contradicted" else []))]
        parts = [f"{n} {OUTCOME_WORDS.get(word, word) if n > 1 else word}" for word in known if (n := found[word])]
        missing = [result for result in self.claims if result.outcome == "not run"]
        why = "; ".join(dict.fromkeys(result.why_not for result in missing))
        left = [f"{len(missing)} not run ({why})"] if missing else []
        return "; ".join([*([", ".join(parts)] if parts else []), *left])


NOT_DECLARED = "not declared as the paper's own row"


def explain_variant(study: Reproduction, claim: Claim, runs: Sequence[PartRun], repetitions: int) -> str:
    """What makes it another row, in words; nothing where model, data, length and measure are the paper's and all of it was run.

    Repetitions are the seeds or draws that the claim rests on: of several methods the one with fewest decides.
    """
    names = claim.parts or [claim.part]
    found = [claim.variant]
    for run in (run for run in runs if run.part.name in names):
        found += [NOT_DECLARED if run.part.variant is None else run.part.variant, _describe_shortfall(study, run, repetitions)]
    return "; ".join(dict.fromkeys(reason for text in found for reason in text.split("; ") if reason))  # each once


def _describe_shortfall(study: Reproduction, run: PartRun, repetitions: int) -> str:
    """Fewer rounds or seeds than the study file asks for, in words."""
    intended = study.get_settings(run.part).settings
    counts = {"seeds": (repetitions, len(intended.seeds))}
    if run.settings is not None and run.part.measure == "training":
        counts = {"rounds": (run.settings.plan.rounds, intended.plan.rounds), **counts}
    return ", ".join(f"{done} of {asked} {name}" for name, (done, asked) in counts.items() if done < asked)


def compute_claim_numbers(claim: Claim, values: Mapping[str, PartValues]) -> Doubles:
    """(n,) in the order of the seeds that everything it compares has: a difference, a value, or a change over the parts."""
    if claim.kind == "trend":
        columns = [values[name].of(claim.one, claim.score) for name in claim.parts]
        return compute_trends(_pair_seeds(columns), claim.at or None)
    one = values[claim.part].of(claim.one, claim.score)
    if claim.kind == "difference":
        ours, theirs = _pair_seeds([one, values[claim.part].of(claim.two, claim.score)])
        return np.asarray(ours - theirs)
    return np.asarray(_pair_seeds([one])[0])


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


def judge_claims(study: Reproduction, runs: Sequence[PartRun], values: Mapping[str, PartValues]) -> StudyVerdict:
    """Judge every claim; p-values are corrected over the paper's claims and, apart from them, over the controls."""
    tested = [_test_claim(study, claim, runs, values) for claim in study.claims]
    final: dict[int, ClaimResult] = {}
    for control in (False, True):
        places = [i for i, claim in enumerate(study.claims) if claim.control == control]
        tests = [tested[i].tests for i in places]
        for i, judgement, p in zip(places, judge(tests), correct_claims(tests), strict=True):
            final[i] = _make_result(study.claims[i], tested[i], judgement, p)
    return StudyVerdict(tuple(final[i] for i in range(len(tested))))


def _test_claim(study: Reproduction, claim: Claim, runs: Sequence[PartRun], values: Mapping[str, PartValues]) -> _ClaimTest:
    names = claim.parts or [claim.part]
    lacking = next((run.why_not for run in runs if run.part.name in names and run.why_not), "")
    if lacking:
        return _ClaimTest(NOT_RUN, why_not=lacking)
    if claim.kind == "rounds":
        rounds = values[claim.part].better.get(claim.says, UNCOUNTED)
        if not rounds.seeds:
            return _ClaimTest(NOT_RUN, why_not=NO_SCORES)
        variant = explain_variant(study, claim, runs, rounds.seeds)
        tests = ClaimTests(rounds.p_for, rounds.p_against, own_row=not variant)
        return _ClaimTest(_void_if_few(tests, rounds.seeds), rounds.share, rounds.seeds, variant=variant)
    numbers = compute_claim_numbers(claim, values)
    if not len(numbers):
        return _ClaimTest(NOT_RUN, why_not=NO_SCORES)
    variant = explain_variant(study, claim, runs, len(numbers))
    redrawn = all(study.part(name).redrawn for name in names)
    sources = collect_sources(claim, numbers, values, redrawn=redrawn)
    tests = _weigh_evidence(claim, sources, own_row=not variant)
    return _ClaimTest(_void_if_few(tests, len(numbers)), float(numbers.mean()), len(numbers), sources, variant)


def _weigh_evidence(claim: Claim, sources: Sources, *, own_row: bool) -> ClaimTests:
    """The tests of a claim's kind."""
    bound = 0.0 if claim.kind in ("difference", "trend") or claim.paper is None else claim.paper
    direction = {"level": 0, "at_least": 1, "at_most": -1}.get(claim.kind, claim.direction)
    return compute_claim_tests(sources, direction, own_row=own_row, bound=bound, margin=claim.within)


def _void_if_few(tests: ClaimTests, repetitions: int) -> ClaimTests:
    return tests if repetitions >= MIN_REPETITIONS else ClaimTests(nan, nan, tests.own_row)


def _make_result(claim: Claim, tested: _ClaimTest, judgement: Judgement, p: tuple[float, float]) -> ClaimResult:
    outcome = CONTROL_OUTCOMES[judgement] if claim.control else judgement
    if judgement == "not run":
        return ClaimResult(claim, outcome, why_not=tested.why_not)
    shown = p[1] if judgement == "contradicted" else p[0]
    unknown = (OVER_SEEDS,) if tested.sources is None else tuple(tested.sources.unknown)
    found = ClaimResult(claim, outcome, tested.ours, p=shown, repetitions=tested.repetitions, variant=tested.variant, unknown=unknown)
    if tested.sources is None or tested.sources.widest is None:
        return found
    _, widest = tested.sources.widest
    return replace(found, low=widest.low, high=widest.high, over=widest.over)
