"""Sources of error of one difference, equivalence within a margin, and the judgement of a paper's claim.

A claim *replicates* when it is significant with the paper's own row (its model, data and length), and *holds in our variant* when it is
significant with another. Where the opposite is significant, it is *contradicted* by the paper's own row, and has the *opposite sign in our
variant* with another. Else it is *inconclusive*. A row that cannot be compared with the paper's has no verdict (*not comparable*), nor has
one that was *not run*. Significant: the one-sided p, the largest over the sources of error that decide, is below 5 % after Holm's
correction over the claims of a study in both directions, two tests a claim. Rows that are not comparable count in the correction, so that
no verdict gets stronger by what is set aside.

Equivalence: two one-sided tests (Schuirmann, 1987) with a margin that is stated beforehand, each at 5 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal

from coterie.core.arrays import Doubles
from coterie.statistics.clients import Hits, compute_test_interval
from coterie.statistics.intervals import Interval, compute_draw_interval, compute_seed_interval
from coterie.statistics.paired import LEVEL, correct_holm


@dataclass(frozen=True)
class Sources:
    """Intervals of one mean difference over seeds, over draws, and over test clients and samples; or a sentence why there is none.

    The interval over draws is over new seeds, too. Where it is there, that over seeds explains and does not decide: three shared seeds
    have two degrees of freedom, and would widen a verdict by what they do not know rather than by what they vary.
    """

    seeds: Interval | str
    draws: Interval | str
    clients: Interval | str

    @property
    def named(self) -> dict[str, Interval | str]:
        return {"seeds": self.seeds, "draws": self.draws, "test clients": self.clients}

    @property
    def estimated(self) -> dict[str, Interval]:
        """The sources whose error is known, by name."""
        return {name: found for name, found in self.named.items() if isinstance(found, Interval)}

    @property
    def unknown(self) -> list[str]:
        """What this study does not estimate, in sentences: sources without an interval, and what those with one do not cover."""
        texts = [found if isinstance(found, str) else found.caveat for found in self.named.values()]
        return list(dict.fromkeys(text for text in texts if text))

    @property
    def deciding(self) -> dict[str, Interval]:
        """Those that a verdict has to survive, all of them: draws, or seeds where there is one draw, and test clients.

        A bound is not an error: results on the same samples are not known there, and the verdict names that instead.
        """
        found = {name: own for name, own in self.estimated.items() if not own.bound}
        return {name: own for name, own in found.items() if name != "seeds" or "draws" not in found}

    @property
    def widest(self) -> tuple[str, Interval] | None:
        """The widest that decides, by name; None where no error is known."""
        return max(self.deciding.items(), key=lambda item: item[1].width, default=None)

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p that the difference is above a bound whatever the source: the largest of those that decide."""
        return max((own.p_above(bound) for own in self.deciding.values()), default=nan)

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p that the difference is below a bound, likewise."""
        return max((own.p_below(bound) for own in self.deciding.values()), default=nan)


def compute_sources(differences: Doubles, hits: Sequence[Hits] | str = (), *, shared: bool = True, overlap: float = 1.0) -> Sources:
    """All three from one design: differences of accuracies (draws, seeds) as shares, and right answers of each draw's test clients, or a
    sentence why there are none.

    `shared`: every draw has the same seeds (see `compute_draw_interval`); `overlap`: how much of one draw's test part is in another's
    (see `compute_test_interval`).
    """
    clients = hits if isinstance(hits, str) else compute_test_interval(hits, overlap=overlap)
    return Sources(compute_seed_interval(differences, shared=shared), compute_draw_interval(differences, shared=shared), clients)


@dataclass(frozen=True)
class Equivalence:
    """A difference against a margin, over every source of error that decides."""

    margin: float
    p: float  # of the two one-sided tests: the larger, over the sources; nan where no error is known

    @property
    def is_significant(self) -> bool:
        return self.p < LEVEL  # nan is not


def check_equivalence(sources: Sources, margin: float, centre: float = 0.0) -> Equivalence:
    """Whether the difference is within the margin of the centre: 0, or a paper's number for a level."""
    if not margin > 0:
        raise ValueError("a margin is above 0")
    above, below = sources.p_above(centre - margin), sources.p_below(centre + margin)
    return Equivalence(margin, max(above, below))


def compute_p_beyond(sources: Sources, margin: float, centre: float = 0.0) -> float:
    """p that the difference is further from the centre than the margin, on either side: the opposite of equivalence."""
    return min(2 * min(sources.p_above(centre + margin), sources.p_below(centre - margin)), 1.0)


Judgement = Literal[
    "replicates", "holds in our variant", "contradicted", "opposite sign in our variant", "inconclusive", "not comparable", "not run"
]


@dataclass(frozen=True)
class ClaimTests:
    """One claim's tests before correction: one-sided p for it and against it, nan where no error is known."""

    p_for: float
    p_against: float
    own_row: bool  # the paper's own row and protocol
    run: bool = True
    comparable: bool = True  # with the paper's row


def compute_claim_tests(sources: Sources, direction: int, *, own_row: bool, bound: float = 0.0, margin: float | None = None) -> ClaimTests:
    """A claim that the difference lies above the bound (direction 1), below it (-1), or within the margin of it (0)."""
    if direction == 0:
        if margin is None:
            raise ValueError("'no difference' needs a margin")
        return ClaimTests(check_equivalence(sources, margin, bound).p, compute_p_beyond(sources, margin, bound), own_row)
    above, below = sources.p_above(bound), sources.p_below(bound)
    return ClaimTests(*((above, below) if direction > 0 else (below, above)), own_row)


def correct_claims(claims: Sequence[ClaimTests]) -> list[tuple[float, float]]:
    """Each claim's p for it and against it after Holm's correction over all of both; nan for what was not run or not tested."""
    run = [claim for claim in claims if claim.run]
    found = correct_holm([claim.p_for for claim in run] + [claim.p_against for claim in run])
    pairs = iter(zip(found[: len(run)], found[len(run) :], strict=True))
    return [next(pairs) if claim.run else (nan, nan) for claim in claims]


def judge(claims: Sequence[ClaimTests], level: float = LEVEL) -> list[Judgement]:
    """Judge the claims of one study together."""
    decided = zip(claims, correct_claims(claims), strict=True)
    return [_judge_claim(claim, *pair, level) if claim.run else "not run" for claim, pair in decided]


def _judge_claim(claim: ClaimTests, p_for: float, p_against: float, level: float) -> Judgement:
    if not claim.comparable:
        return "not comparable"
    if p_for < level:
        return "replicates" if claim.own_row else "holds in our variant"
    if p_against < level:
        return "contradicted" if claim.own_row else "opposite sign in our variant"
    return "inconclusive"
