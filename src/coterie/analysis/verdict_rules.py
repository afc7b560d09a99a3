"""The rules of a verdict, each stated once, and the decomposition of a gain that they use.

A difference is *significant* when the widest of the intervals that decide (over draws, or over seeds of a single draw; over test clients or
samples) excludes 0 and, for a method under test, the largest of the sources' one-sided p-values is below 5 % after Holm's correction. The
test over draws or seeds follows from the design alone (`choose_test`). A difference is *equivalent* when it is significantly within the
margin (two one-sided tests, every source). A gain *is from similarity* when similar groups are significantly better than the control that
lacks nothing else (random groups of the same sizes; where clients differ in size, among clients of similar size) and that part is at least
half of the gain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import floor, isnan, log2
from typing import Literal

import numpy as np

from coterie._util.formatting import format_count
from coterie.analysis.draws import DecidingTest, Gap
from coterie.analysis.roles import Roles
from coterie.core.arrays import Bools, Doubles
from coterie.statistics import LEVEL, Equivalence

StepName = Literal["weights", "groups", "balance", "similarity"]
GapFunction = Callable[[str, str, Bools], Gap]  # of two methods, over some runs


@dataclass(frozen=True)
class GainPart:
    """One part of a gain: what changes from one method to the next, and what that brings."""

    name: StepName
    before: str
    after: str
    gain: Gap


@dataclass(frozen=True)
class Decomposition:
    """The gain over FedAvg in steps from control to control, over the runs that all of them have; the steps' means sum to the gain's."""

    total: Gap
    steps: tuple[GainPart, ...]

    def step(self, name: StepName) -> GainPart | None:
        return next((step for step in self.steps if step.name == name), None)

    @property
    def without_similarity(self) -> float:
        """The gain of the last control: all of the method but similarity."""
        step = self.step("similarity")
        return self.total.mean - (step.gain.mean if step is not None else 0.0)


def decompose_gain(scores: dict[str, Doubles], roles: Roles, label: str, gap: GapFunction) -> Decomposition | None:
    """Gain over FedAvg = change of weights + having groups + balance + similarity; None where the study lacks the controls.

    The way leads from FedAvg to uniform FedAvg (only for a method that weighs clients or clusters alike: for one that weighs by samples
    nothing changes there), on to random groups of the same sizes, on, where there is that control, to random groups among clients of
    similar size, in which large clients count as much as in the method's own, and on to similar ones.
    """
    controls = roles.controls.get(label, {})
    random, matched, uniform = controls.get("random"), controls.get("matched"), roles.first("uniform")
    alike = label in roles.uniform_weights
    if random is None or (alike and uniform is None):
        return None
    way: list[tuple[StepName, str]] = [("weights", roles.baseline)]  # the name of the first is not used
    if alike and uniform is not None:
        way.append(("weights", uniform))
    way.append(("groups", random))
    if matched is not None:
        way.append(("balance", matched))
    way.append(("similarity", label))
    shared = np.asarray(np.isfinite(np.stack([scores[name] for _, name in way])).all(axis=0))
    steps = [GainPart(name, before, after, gap(after, before, shared)) for (_, before), (name, after) in pairwise(way)]
    return Decomposition(gap(label, roles.baseline, shared), tuple(steps))


Outcome = Literal["better", "worse", "same", "unclear", "unproven", "unjudged"]
UNDECIDED: tuple[Outcome, ...] = ("unclear", "unproven", "unjudged")  # more repetitions may settle these
Origin = Literal["all", "part", "none"]  # how much of a gain is significantly from similarity
MAIN_SHARE = 0.5  # the share of a gain from which on it is called similarity's
MIN_FOR_T_TEST = 5  # repetitions from which on the paired t test may decide: as few as the signed-rank test needs for one method
MARGIN = 0.01  # a point of accuracy: a difference that is significantly within it is called equivalent


def choose_test(repetitions: int, tests: int) -> DecidingTest | None:
    """The test that decides in a design of so many draws (or seeds of one draw) and methods under test; None where none can.

    It is fixed before anything is run, and does not depend on the differences.
    """
    if repetitions >= compute_needed_repetitions(tests):
        return "signed-rank"
    return "paired t" if repetitions >= MIN_FOR_T_TEST else None


def has_too_few(gap: Gap, test: DecidingTest | None, tests: int) -> bool:
    """Whether so few pairs are complete that the deciding test cannot reach the level, whatever their differences."""
    if test is None:
        return True
    undefined = isnan(gap.units.t_p)  # equal differences: the signed-rank test stands in for t
    return gap.n < (MIN_FOR_T_TEST if test == "paired t" and not undefined else compute_needed_repetitions(tests))


def decide_outcome(
    gap: Gap, corrected_p: float, tests: int, equivalence: Equivalence, test: DecidingTest | None = "signed-rank"
) -> Outcome:
    """The outcome of a method against the baseline, when so many methods are tested and this test decides."""
    if not gap.testable:
        return "unjudged"
    if gap.low > 0 and corrected_p < LEVEL and (test != "paired t" or gap.n >= MIN_FOR_T_TEST):
        return "better"
    if gap.high < 0:
        return "worse"
    if equivalence.is_significant:
        return "same"
    return "unproven" if gap.low > 0 and has_too_few(gap, test, tests) else "unclear"


def decide_by_interval(gap: Gap, equivalence: Equivalence) -> Outcome:
    """The outcome of a simpler method against the baseline: it is no hypothesis, so the interval decides and nothing is corrected for."""
    if not gap.testable:
        return "unjudged"
    return "better" if gap.low > 0 else "worse" if gap.high < 0 else "same" if equivalence.is_significant else "unclear"


def compute_needed_repetitions(tests: int) -> int:
    """Seeds or draws with which Wilcoxon's least p-value, 2 ** -n, corrected for so many tests, is below the level."""
    return floor(log2(max(tests, 1) / LEVEL)) + 1


def compute_advised_repetitions(tests: int) -> int:
    """One more than needed: with the fewest, a single draw against a method leaves it undecided."""
    return compute_needed_repetitions(tests) + 1


def describe_design(
    repetitions: int, unit: str, tests: int, option: str, test: DecidingTest | Literal["by design"] | None = "by design"
) -> str | None:
    """What so many repetitions cannot decide, before and after they are run; None where the signed-rank test can reach 5 %.

    Args:
        repetitions: Draws, or seeds of one draw.
        unit: "draw" or "seed".
        tests: Methods under test.
        option: The option that asks for as many as advised: "--draws 8".
        test: The test that decides, where more repetitions were planned than are complete.
    """
    decides, enough = choose_test(repetitions, tests) if test == "by design" else test, compute_advised_repetitions(tests)
    if repetitions >= compute_needed_repetitions(tests) or not tests:
        return None
    many = f"{format_count(repetitions, unit)} and {format_count(tests, 'method')} under test cannot reach significance at 5 %"
    if decides != "paired t" or repetitions < MIN_FOR_T_TEST:
        return f"{many}: {enough} {unit}s can ({option})."
    return (
        f"{many} in the signed-rank test: the paired t test decides, which assumes that differences are about normal. "
        f"{enough} {unit}s need no such assumption ({option})."
    )


def classify_origin(parts: Decomposition) -> Origin:
    """Whether a gain is from similarity: at least half of it, a smaller part, or no significant part."""
    step = parts.step("similarity")
    if step is None or not step.gain.low > 0:
        return "none"
    return "all" if step.gain.mean >= MAIN_SHARE * parts.total.mean else "part"
