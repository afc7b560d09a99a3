"""The five things that can be said of a paper's claim, and the rule that says which.

| judgement | when |
| --- | --- |
| replicates | shown, with the paper's own row: its model, data and length |
| holds in our variant | shown, with another model, data or length |
| contradicted | the opposite is shown, corrected for both directions |
| inconclusive | neither |
| not run | nothing was run |

*Shown*: the one-sided p is below 5 % after Holm's correction over the claims of a study in both directions, two tests a claim; and each
p is the largest over the sources of error that decide. So in a study of true nothings anything is shown, for or against, at most 5 times
in 100.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal

from coterie.statistics.equivalence import beyond, equivalence
from coterie.statistics.paired import LEVEL, holm
from coterie.statistics.sources import Sources

Judgement = Literal["replicates", "holds in our variant", "contradicted", "inconclusive", "not run"]


@dataclass(frozen=True)
class Weighed:
    """One claim's tests before correction: one-sided p for it and against it, nan where no error is known."""

    p_for: float
    p_against: float
    own_row: bool  # the paper's own row and protocol
    run: bool = True


def weighed(sources: Sources, direction: int, *, own_row: bool, bound: float = 0.0, margin: float | None = None) -> Weighed:
    """A claim that the difference lies above the bound (direction 1), below it (-1), or within the margin of it (0)."""
    if direction == 0:
        if margin is None:
            raise ValueError("'no difference' needs a margin")
        return Weighed(equivalence(sources, margin, bound).p, beyond(sources, margin, bound), own_row)
    above, below = sources.p_above(bound), sources.p_below(bound)
    return Weighed(*((above, below) if direction > 0 else (below, above)), own_row)


def corrected(claims: Sequence[Weighed]) -> list[tuple[float, float]]:
    """Each claim's p for it and against it after Holm's correction over all of both; nan for what was not run or not tested."""
    run = [claim for claim in claims if claim.run]
    found = holm([claim.p_for for claim in run] + [claim.p_against for claim in run])
    pairs = iter(zip(found[: len(run)], found[len(run) :], strict=True))
    return [next(pairs) if claim.run else (nan, nan) for claim in claims]


def judge(claims: Sequence[Weighed], level: float = LEVEL) -> list[Judgement]:
    """Judge the claims of one study together."""
    decided = zip(claims, corrected(claims), strict=True)
    return [_judgement(claim, *pair, level) if claim.run else "not run" for claim, pair in decided]


def _judgement(claim: Weighed, p_for: float, p_against: float, level: float) -> Judgement:
    if p_for < level:
        return "replicates" if claim.own_row else "holds in our variant"
    return "contradicted" if p_against < level else "inconclusive"
