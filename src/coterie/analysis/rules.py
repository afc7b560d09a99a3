"""The rules of a verdict, each stated once.

A difference is *clear* when the widest of the intervals that decide (over draws, or over seeds of a single draw; over test clients or
samples) leaves out 0 and, for the gain of a method under test, the p-value after Holm's correction is below 5 %: the largest of the
deciding test's, one-sided, over draws or seeds, and of the other sources. Which test decides follows from the design alone
(`deciding_test`): Wilcoxon's signed-rank test wherever so many draws or seeds can reach 5 % for so many methods; the paired t test for
fewer, from five on. A difference is *none to speak of* when it is shown to lie within the margin (two one-sided
tests, every source). A gain *is from similarity* when similar groups are clearly better than the control that lacks nothing else
(random groups of the same sizes; where clients differ in size, among clients of like size) and that part is at least half of the gain.
"""

from math import floor, isnan, log2
from typing import Literal

from coterie.analysis.decomposition import Decomposition
from coterie.analysis.gaps import DecidingTest, Gap
from coterie.core.counted import counted
from coterie.statistics import LEVEL, Equivalence

Outcome = Literal["better", "worse", "same", "unclear", "unproven", "unjudged"]
OPEN: tuple[Outcome, ...] = ("unclear", "unproven", "unjudged")  # what more repetitions may settle
Origin = Literal["all", "part", "not shown"]  # how much of a gain is from similarity
HALF = 0.5  # the share of a gain from which on it is called similarity's
LEAST_FOR_T = 5  # repetitions from which on the paired t test may decide: as few as the signed-rank test needs for one method
MARGIN = 0.01  # a point of accuracy: a difference within it is called none where that is shown


def deciding_test(repetitions: int, tests: int) -> DecidingTest | None:
    """The test that decides in a design of so many draws (or seeds of one draw) and methods under test; None where none can.

    It is fixed before anything is run, and does not depend on the differences.
    """
    if repetitions >= repetitions_needed(tests):
        return "signed-rank"
    return "paired t" if repetitions >= LEAST_FOR_T else None


def too_few(gap: Gap, test: DecidingTest | None, tests: int) -> bool:
    """Whether so few pairs are complete that the deciding test cannot reach the level, whatever their differences."""
    if test is None:
        return True
    undefined = isnan(gap.units.t_p)  # equal differences: the signed-rank test stands in for t
    return gap.n < (LEAST_FOR_T if test == "paired t" and not undefined else repetitions_needed(tests))


def outcome_of(gap: Gap, corrected_p: float, tests: int, same: Equivalence, test: DecidingTest | None = "signed-rank") -> Outcome:
    """What a study says of a method against the baseline, when so many methods are tested and this test decides."""
    if not gap.testable:
        return "unjudged"
    if gap.low > 0 and corrected_p < LEVEL and (test != "paired t" or gap.n >= LEAST_FOR_T):
        return "better"
    if gap.high < 0:
        return "worse"
    if same.shown:
        return "same"
    return "unproven" if gap.low > 0 and too_few(gap, test, tests) else "unclear"


def repetitions_needed(tests: int) -> int:
    """Seeds or draws with which Wilcoxon's least p-value, 2 ** -n, corrected for so many tests, is below the level."""
    return floor(log2(max(tests, 1) / LEVEL)) + 1


def repetitions_advised(tests: int) -> int:
    """One more than needed: with the fewest, a single draw against a method leaves it undecided."""
    return repetitions_needed(tests) + 1


def describe_design(
    repetitions: int, unit: str, tests: int, option: str, test: DecidingTest | Literal["by design"] | None = "by design"
) -> str | None:
    """What so many repetitions cannot show, for before and after they are run; None where the signed-rank test can reach 5 %.

    Args:
        repetitions: Draws, or seeds of one draw.
        unit: "draw" or "seed".
        tests: Methods under test.
        option: How to ask for as many as advised: "--draws 8".
        test: The test that decides, where more repetitions were planned than are complete.
    """
    decides, enough = deciding_test(repetitions, tests) if test == "by design" else test, repetitions_advised(tests)
    if repetitions >= repetitions_needed(tests) or not tests:
        return None
    many = f"{counted(repetitions, unit)} and {counted(tests, 'method')} under test cannot reach significance at 5 %"
    if decides != "paired t" or repetitions < LEAST_FOR_T:
        return f"{many}: {enough} {unit}s can ({option})."
    return (
        f"{many} in the signed-rank test: the paired t test decides, which assumes that differences are about normal. "
        f"{enough} {unit}s need no such assumption ({option})."
    )


def origin_of(parts: Decomposition) -> Origin:
    """Whether a gain is from similarity: all of it as far as words go, a part, or none that is shown."""
    step = parts.step("similarity")
    if step is None or not step.gain.low > 0:
        return "not shown"
    return "all" if step.gain.mean >= HALF * parts.total.mean else "part"
