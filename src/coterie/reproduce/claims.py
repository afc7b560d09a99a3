"""The verdict: every claim of a study file judged by the rule that the file states, and all of them together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

from coterie.reproduce.file import Claim, Reproduction
from coterie.reproduce.outcomes import OF_CONTROLS, ClaimResult, StudyResult
from coterie.reproduce.own_row import why_variant
from coterie.reproduce.rounds_better import RoundsBetter
from coterie.reproduce.rules import FEWEST
from coterie.reproduce.run import PartRun
from coterie.reproduce.sources import numbers_of, sources_of_claim
from coterie.reproduce.values import PartValues
from coterie.statistics import Judgement, Sources, Weighed, corrected, judge, weighed

NOT_RUN = Weighed(nan, nan, own_row=False, run=False)
NO_SCORES = "there are no scores of it"
OVER_SEEDS = "tests of rounds are over seeds alone: they say nothing about other splits of the data, clients or samples"
UNCOUNTED = RoundsBetter(nan, nan, nan, 0)


@dataclass(frozen=True)
class _Tested:
    """A claim before correction."""

    tests: Weighed
    ours: float = nan
    repetitions: int = 0
    sources: Sources | None = None
    variant: str = ""
    why_not: str = ""


def assess(study: Reproduction, runs: Sequence[PartRun], values: Mapping[str, PartValues]) -> StudyResult:
    """Judge every claim; p-values are corrected over the paper's claims and, apart from them, over the controls."""
    tested = [_tested(study, claim, runs, values) for claim in study.claims]
    final: dict[int, ClaimResult] = {}
    for control in (False, True):
        places = [i for i, claim in enumerate(study.claims) if claim.control == control]
        tests = [tested[i].tests for i in places]
        for i, judgement, p in zip(places, judge(tests), corrected(tests), strict=True):
            final[i] = _result(study.claims[i], tested[i], judgement, p)
    return StudyResult(tuple(final[i] for i in range(len(tested))))


def _tested(study: Reproduction, claim: Claim, runs: Sequence[PartRun], values: Mapping[str, PartValues]) -> _Tested:
    names = claim.parts or [claim.part]
    lacking = next((run.why_not for run in runs if run.part.name in names and run.why_not), "")
    if lacking:
        return _Tested(NOT_RUN, why_not=lacking)
    if claim.kind == "rounds":
        rounds = values[claim.part].better.get(claim.says, UNCOUNTED)
        if not rounds.seeds:
            return _Tested(NOT_RUN, why_not=NO_SCORES)
        variant = why_variant(study, claim, runs, rounds.seeds)
        tests = Weighed(rounds.p_for, rounds.p_against, own_row=not variant)
        return _Tested(_if_enough(tests, rounds.seeds), rounds.share, rounds.seeds, variant=variant)
    numbers = numbers_of(claim, values)
    if not len(numbers):
        return _Tested(NOT_RUN, why_not=NO_SCORES)
    variant = why_variant(study, claim, runs, len(numbers))
    redrawn = all(study.part(name).redrawn for name in names)
    sources = sources_of_claim(claim, numbers, values, redrawn=redrawn)
    tests = _weighed(claim, sources, own_row=not variant)
    return _Tested(_if_enough(tests, len(numbers)), float(numbers.mean()), len(numbers), sources, variant)


def _weighed(claim: Claim, sources: Sources, *, own_row: bool) -> Weighed:
    """The tests of a claim's kind."""
    bound = 0.0 if claim.kind in ("difference", "trend") or claim.paper is None else claim.paper
    direction = {"level": 0, "at_least": 1, "at_most": -1}.get(claim.kind, claim.direction)
    return weighed(sources, direction, own_row=own_row, bound=bound, margin=claim.within)


def _if_enough(tests: Weighed, repetitions: int) -> Weighed:
    return tests if repetitions >= FEWEST else Weighed(nan, nan, tests.own_row)


def _result(claim: Claim, tested: _Tested, judgement: Judgement, p: tuple[float, float]) -> ClaimResult:
    outcome = OF_CONTROLS[judgement] if claim.control else judgement
    if judgement == "not run":
        return ClaimResult(claim, outcome, why_not=tested.why_not)
    shown = p[1] if judgement == "contradicted" else p[0]
    unknown = (OVER_SEEDS,) if tested.sources is None else tuple(tested.sources.unknown)
    found = ClaimResult(claim, outcome, tested.ours, p=shown, repetitions=tested.repetitions, variant=tested.variant, unknown=unknown)
    if tested.sources is None or tested.sources.widest is None:
        return found
    _, widest = tested.sources.widest
    return replace(found, low=widest.low, high=widest.high, over=widest.over)
