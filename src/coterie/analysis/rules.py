"""The rules of a verdict, each stated once.

A difference is *clear* when the widest of the intervals that decide (over draws, or over seeds of a single draw; over test clients or
samples) leaves out 0 and, for the gain of a method under test, the p-value after Holm's correction is below 5 %: the largest of Wilcoxon's,
one-sided, over draws or seeds, and of the other sources. It is *none to speak of* when it is shown to lie within the margin (two one-sided
tests, every source). A gain *is from similarity* when similar groups are clearly better than the control that lacks nothing else
(random groups of the same sizes; where clients differ in size, among clients of like size) and that part is at least half of the gain.
"""

from math import floor, log2
from typing import Literal

from coterie.analysis.decomposition import Decomposition
from coterie.analysis.gaps import Gap
from coterie.statistics import LEVEL, Equivalence

Outcome = Literal["better", "worse", "same", "unclear", "unproven", "unjudged"]
Origin = Literal["all", "part", "not shown"]  # how much of a gain is from similarity
HALF = 0.5  # the share of a gain from which on it is called similarity's
MARGIN = 0.01  # a point of accuracy: a difference within it is called none where that is shown


def outcome_of(gap: Gap, corrected_p: float, tests: int, same: Equivalence) -> Outcome:
    """What a study says of a method against the baseline, when so many methods are tested."""
    if not gap.testable:
        return "unjudged"
    if gap.low > 0 and corrected_p < LEVEL:
        return "better"
    if gap.high < 0:
        return "worse"
    if same.shown:
        return "same"
    return "unproven" if gap.low > 0 and gap.n < repetitions_needed(tests) else "unclear"


def repetitions_needed(tests: int) -> int:
    """Seeds or draws with which Wilcoxon's least p-value, 2 ** -n, corrected for so many tests, is below the level."""
    return floor(log2(max(tests, 1) / LEVEL)) + 1


def origin_of(parts: Decomposition) -> Origin:
    """Whether a gain is from similarity: all of it as far as words go, a part, or none that is shown."""
    step = parts.step("similarity")
    if step is None or not step.gain.low > 0:
        return "not shown"
    return "all" if step.gain.mean >= HALF * parts.total.mean else "part"
