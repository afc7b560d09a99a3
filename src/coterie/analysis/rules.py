"""The rules of a verdict, each stated once.

A difference is *clear* when its 95 % interval leaves out 0 and, for the gain of a method under test, Wilcoxon's one-sided p after Holm's
correction is below 5 %. A gain *is from similarity* when similar groups are clearly better than random groups of the same sizes and that
part is at least half of the gain.
"""

from math import floor, log2
from typing import Literal

from coterie.analysis.decomposition import Decomposition
from coterie.statistics import LEVEL, Paired

Outcome = Literal["better", "worse", "unclear", "unproven", "unjudged"]
Origin = Literal["all", "part", "not shown"]  # how much of a gain is from similarity
HALF = 0.5  # the share of a gain from which on it is called similarity's


def outcome_of(test: Paired, corrected_p: float, tests: int) -> Outcome:
    """What a study says of a method against the baseline, when so many methods are tested."""
    if not test.testable:
        return "unjudged"
    if test.low > 0 and corrected_p < LEVEL:
        return "better"
    if test.high < 0:
        return "worse"
    return "unproven" if test.low > 0 and test.n < seeds_needed(tests) else "unclear"


def seeds_needed(tests: int) -> int:
    """Seeds with which Wilcoxon's least p-value, 2 ** -n, corrected for so many tests, is below the level."""
    return floor(log2(max(tests, 1) / LEVEL)) + 1


def origin_of(parts: Decomposition) -> Origin:
    """Whether a gain is from similarity: all of it as far as words go, a part, or none that is shown."""
    step = parts.step("similarity")
    if step is None or not step.gain.low > 0:
        return "not shown"
    return "all" if step.gain.mean >= HALF * parts.total.mean else "part"
