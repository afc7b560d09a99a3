"""Is a difference too small to matter? Two one-sided tests (Schuirmann, 1987) with a margin that is stated beforehand.

That a difference is not significant says nothing: few runs find none. It is shown to be within a margin when it is shown to be above minus
the margin and below the margin, each at 5 %; that is so when the 90 % interval lies within.
"""

from dataclasses import dataclass

from coterie.statistics.paired import LEVEL
from coterie.statistics.sources import Sources


@dataclass(frozen=True)
class Equivalence:
    """A difference against a margin, over every source of error that decides."""

    margin: float
    p: float  # of the two one-sided tests: the larger, over the sources; nan where no error is known

    @property
    def shown(self) -> bool:
        return self.p < LEVEL  # nan is not shown


def equivalence(sources: Sources, margin: float, centre: float = 0.0) -> Equivalence:
    """Whether the difference is shown to be within the margin of the centre: 0, or a paper's number for a level."""
    if not margin > 0:
        raise ValueError("a margin is above 0")
    above, below = sources.p_above(centre - margin), sources.p_below(centre + margin)
    return Equivalence(margin, max(above, below))


def beyond(sources: Sources, margin: float, centre: float = 0.0) -> float:
    """p that the difference is further from the centre than the margin, on either side: the opposite of equivalence."""
    return min(2 * min(sources.p_above(centre + margin), sources.p_below(centre - margin)), 1.0)
