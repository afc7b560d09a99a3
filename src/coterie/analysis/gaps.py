"""One method minus another: over the repetitions of a study, and by every source of error that a reader may doubt."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Literal

from coterie.analysis.repetitions import Repetitions, by_unit
from coterie.core.arrays import Doubles
from coterie.statistics import Hits, Interval, Paired, Sources, Spread, paired, sources_of, spread_of

DecidingTest = Literal["signed-rank", "paired t"]


@dataclass(frozen=True)
class Gap:
    """`units` are the draws of the data where there are several, else the seeds; `sources` say what else could have come out otherwise."""

    units: Paired
    sources: Sources
    spread: Spread

    @property
    def n(self) -> int:
        return self.units.n

    @property
    def mean(self) -> float:
        return self.units.mean

    @property
    def testable(self) -> bool:
        return self.units.testable

    @property
    def low(self) -> float:
        """Of the widest interval that decides: what every one of them leaves out is left out."""
        return min([self.units.low, *(own.low for own in self._others)])

    @property
    def high(self) -> float:
        return max([self.units.high, *(own.high for own in self._others)])

    @property
    def p(self) -> float:
        """One-sided, the first better: the largest over the sources that decide, by the signed-rank test over draws or seeds."""
        return max([self.units.wilcoxon_p, *(own.p_above() for own in self._others)])

    def p_by(self, test: DecidingTest | None) -> float:
        """The same by the test that decides in the design; where differences are equal, so that t is undefined, by the signed-rank test."""
        if test != "paired t" or isnan(self.units.t_p):
            return self.p
        return max([self.units.t_p, *(own.p_above() for own in self._others)])

    @property
    def _others(self) -> list[Interval]:
        return [own for name, own in self.sources.deciding.items() if name != "seeds"]


def gap_of(differences: Doubles, hits: Sequence[Hits] | str, repetitions: Repetitions) -> Gap:
    """From differences (B, S), nan for a pair that is missing, and the right answers of each draw."""
    shared = not repetitions.own_seeds
    found = sources_of(differences, hits, shared=shared, overlap=repetitions.overlap)
    return Gap(paired(by_unit(differences)), found, spread_of(differences, shared=shared))
