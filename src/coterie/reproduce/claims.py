"""The verdict: every claim of a study file judged by the rule that the file states, and all of them together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Literal

import numpy as np
from scipy import stats

from coterie.core.arrays import Doubles
from coterie.reproduce.file import FEWEST, Claim, Reproduction
from coterie.reproduce.run import PartRun
from coterie.reproduce.values import PartValues
from coterie.statistics import LEVEL, holm, interval, paired, round_tests

ClaimOutcome = Literal["holds", "not shown", "the opposite", "too few seeds", "not run"]
Verdict = Literal["holds", "partly", "does not hold", "too few seeds", "cannot be run here"]


@dataclass(frozen=True)
class ClaimResult:
    """One claim, ours beside the paper's."""

    claim: Claim
    outcome: ClaimOutcome
    ours: float = nan
    low: float = nan  # the 95 % interval over seeds
    high: float = nan
    p: float = nan  # one-sided, in the direction of the claim, after Holm's correction; nan where the rule has no test
    seeds: int = 0
    why_not: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not defined is null."""
        numbers = {name: getattr(self, name) for name in ("ours", "low", "high", "p")}
        plain = {name: value if np.isfinite(value) else None for name, value in numbers.items()}
        claim = self.claim
        known = {"says": claim.says, "control": claim.control, "theirs": claim.paper, "outcome": self.outcome, "why_not": self.why_not}
        return {**known, **plain, "seeds": self.seeds}


@dataclass(frozen=True)
class StudyResult:
    """All claims, and what they come to."""

    results: tuple[ClaimResult, ...]

    @property
    def claims(self) -> list[ClaimResult]:
        return [result for result in self.results if not result.claim.control]

    @property
    def controls(self) -> list[ClaimResult]:
        return [result for result in self.results if result.claim.control]

    @property
    def verdict(self) -> Verdict:
        """From the paper's claims that were run; controls explain, they do not decide."""
        run = [result for result in self.claims if result.outcome != "not run"]
        tested = [result for result in run if result.outcome != "too few seeds"]
        if not run:
            return "cannot be run here"
        if not tested:
            return "too few seeds"
        held = sum(result.outcome == "holds" for result in tested)
        return "holds" if held == len(tested) else "partly" if held else "does not hold"

    @property
    def sentence(self) -> str:
        """The verdict with its count, and what could not be run."""
        tested = [result for result in self.claims if result.outcome not in ("not run", "too few seeds")]
        missing = [result for result in self.claims if result.outcome == "not run"]
        why = "; ".join(dict.fromkeys(result.why_not for result in missing))
        if not tested:
            return f"{self.verdict}: {why}" if missing else f"{self.verdict}: at least {FEWEST} are needed"
        held = sum(result.outcome == "holds" for result in tested)
        text = f"{self.verdict}: {held} of {len(tested)} claims hold"
        few = sum(result.outcome == "too few seeds" for result in self.claims)
        text += f"; {few} more with too few seeds" if few else ""
        return f"{text}; {len(missing)} more could not be run here ({why})" if missing else text


def assess(study: Reproduction, runs: Sequence[PartRun], values: Mapping[str, PartValues]) -> StudyResult:
    """Judge every claim; p-values are corrected over the paper's claims and, apart from them, over the controls."""
    why = {run.part.name: run.why_not for run in runs}
    raw = [_assessed(claim, values, why) for claim in study.claims]
    final: list[ClaimResult] = []
    corrected = dict.fromkeys(range(len(raw)), nan)
    tests = dict.fromkeys(range(len(raw)), 0)
    for control in (False, True):
        places = [i for i, result in enumerate(raw) if result.claim.control == control]
        corrected |= dict(zip(places, holm([raw[i].p for i in places]), strict=True))
        tests |= dict.fromkeys(places, sum(np.isfinite(raw[i].p) for i in places))
    for i, result in enumerate(raw):
        final.append(replace(result, p=corrected[i], outcome=_after_correction(result, corrected[i], tests[i])))
    return StudyResult(tuple(final))


def _after_correction(result: ClaimResult, p: float, tests: int) -> ClaimOutcome:
    """With few seeds and many claims even the least p-value, 2 ** -n times the number of tests, is too high to show anything."""
    if not np.isfinite(p):
        return result.outcome
    if tests * 2.0**-result.seeds >= LEVEL:
        return "too few seeds"
    return "not shown" if result.outcome == "holds" and p >= LEVEL else result.outcome


def _assessed(claim: Claim, values: Mapping[str, PartValues], why: Mapping[str, str]) -> ClaimResult:
    """One claim before correction: `holds` where its interval and sign are right, the test being left to the correction."""
    names = claim.parts or [claim.part]
    lacking = next((why[name] for name in names if why[name]), "")
    if lacking:
        return ClaimResult(claim, "not run", why_not=lacking)
    if claim.kind == "rounds":
        return _rounds(claim, values[claim.part])
    if claim.kind == "trend":
        numbers = _correlations(claim, [values[name].of(claim.one, claim.score) for name in names])
    else:
        one = values[claim.part].of(claim.one, claim.score)
        two = values[claim.part].of(claim.two, claim.score) if claim.kind == "difference" else dict.fromkeys(one, 0.0)
        numbers = np.array([one[seed] - two[seed] for seed in sorted(one.keys() & two.keys())])
    if len(numbers) < FEWEST:
        mean = float(numbers.mean()) if len(numbers) else nan
        return ClaimResult(claim, "too few seeds", mean, seeds=len(numbers))
    return _outcome(claim, numbers)


def _outcome(claim: Claim, numbers: Doubles) -> ClaimResult:
    mean, (low, high), n = float(numbers.mean()), interval(numbers), len(numbers)
    if claim.kind == "level":
        assert claim.paper is not None
        close = abs(mean - claim.paper) <= claim.within
        return ClaimResult(claim, "holds" if close else "not shown", mean, low, high, seeds=n)
    if claim.kind in ("at_least", "at_most"):
        assert claim.paper is not None
        above, below = low > claim.paper, high < claim.paper
        right, wrong = (above, below) if claim.kind == "at_least" else (below, above)
        return ClaimResult(claim, "holds" if right else "the opposite" if wrong else "not shown", mean, low, high, seeds=n)
    if claim.direction == 0:
        inside = -claim.within < low and high < claim.within
        return ClaimResult(claim, "holds" if inside else "not shown", mean, low, high, seeds=n)
    right, wrong = (low > 0, high < 0) if claim.direction > 0 else (high < 0, low > 0)
    p = paired(claim.direction * numbers).wilcoxon_p
    return ClaimResult(claim, "holds" if right else "the opposite" if wrong else "not shown", mean, low, high, p, n)


def _rounds(claim: Claim, values: PartValues) -> ClaimResult:
    """The share of rounds, in percent, in which one method is significantly better than the other."""
    one, two = values.curves.get(claim.one, {}), values.curves.get(claim.two, {})
    seeds = sorted(one.keys() & two.keys())
    if len(seeds) < FEWEST:
        return ClaimResult(claim, "too few seeds", seeds=len(seeds))
    share = 100 * round_tests(np.array([one[seed] - two[seed] for seed in seeds]), values.rounds).share
    assert claim.paper is not None
    return ClaimResult(claim, "holds" if share >= claim.paper else "not shown", share, seeds=len(seeds))


def _correlations(claim: Claim, columns: Sequence[Mapping[int, float]]) -> Doubles:
    """Spearman's correlation with the order of the parts, for each seed that all of them have; 0 where all values are equal."""
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    rows = np.array([[column[seed] for column in columns] for seed in seeds])
    flat = [np.ptp(row) == 0 for row in rows]
    return np.array([0.0 if level else stats.spearmanr(range(len(columns)), row).statistic for row, level in zip(rows, flat, strict=True)])
