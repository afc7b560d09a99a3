"""Which number of groups is told: one that stands out against one population, and holds on other samples and among other clients."""

from dataclasses import dataclass

import numpy as np

from coterie.grouping.choice.structure.reference_test import ReferenceTest
from coterie.grouping.choice.structure.steadiness import Steadiness

LEVEL = 0.05
# Shares of the highest excess: what stands out at least so far is as plain, and nearly as plain. Chosen on other seeds than docs/inspect.md
# reports.
COMPARABLE = 0.5
NEARLY = 0.7


@dataclass(frozen=True)
class Cut:
    """A view, and the place in its curves: 0 is two groups."""

    view: int
    at: int


def told_cut(compared: ReferenceTest, held: list[Steadiness]) -> Cut | None:
    """The groups that are distinct, if any are; where views tell different numbers, and tell them as plainly, the finer one."""
    best = [_of_view(view, compared, stable) for view, stable in enumerate(held)]
    found = [(cut, compared.excess[cut.view, highest]) for cut, highest in filter(None, best)]
    if not found:
        return None
    plain = [(held[cut.view].groups[cut.at], excess, cut) for cut, excess in found if excess >= COMPARABLE * max(e for _, e in found)]
    return max(plain, key=lambda told_cut: told_cut[:2])[2]


def _of_view(view: int, compared: ReferenceTest, stable: Steadiness) -> tuple[Cut, int] | None:
    """The cut of one view, and the place of its highest excess.

    More groups than where the excess is highest are told if they stand out at least half as far and are about as large: where one group
    is far from two that are near each other, two groups stand out most and three are plain all the same. Part of a group is smaller. And
    where the excess is highest by such a part, which can be when there is hardly anything left to explain, the groups before it are told.
    """
    excess, can = compared.excess[view], stable.holds & (compared.p[view] <= LEVEL)
    if not can.any():
        return None
    highest = int(np.argmax(np.where(can, excess, -np.inf)))
    finer = can & (excess >= COMPARABLE * excess[highest]) & (stable.smallest >= stable.middling[highest] / 2)
    finer[: highest + 1] = False
    if finer.any():
        return Cut(view, int(np.flatnonzero(finer)[-1])), highest
    coarser = can & (excess >= NEARLY * excess[highest]) & (stable.smallest >= stable.middling / 2)
    coarser[highest:] = False
    if stable.smallest[highest] < stable.middling[highest] / 2 and coarser.any():
        return Cut(view, int(np.flatnonzero(coarser)[-1])), highest
    return Cut(view, highest), highest


def suggested(view: int, excess: np.ndarray[tuple[int, ...], np.dtype[np.float64]], stable: Steadiness) -> Cut:
    """The groups to look at where none are distinct: those that stand out most among those that hold, or else that agree most."""
    if stable.holds.any():
        return Cut(view, int(np.argmax(np.where(stable.holds, excess, -np.inf))))
    return Cut(view, int(np.argmax(np.where(stable.groups >= 2, stable.halves, -1.0))))


def least_p(compared: ReferenceTest, held: list[Steadiness]) -> float:
    """That of the groups that stand out most among those that hold; 1 where none do, nan where nothing was compared."""
    if np.isnan(compared.p).all():
        return float("nan")
    holding = np.stack([stable.holds for stable in held])
    return float(compared.p[holding].min()) if holding.any() else 1.0
