"""Would the same groups be found again: on the other half of the data, and among other clients?

Both are asked at every number of groups, of groups that are there already: nothing is drawn from a model. A continuum can be cut anywhere,
so its cuts move when clients are left out; noise moves them when samples are exchanged. Distinct groups do not care for either.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import adjusted_rand_score

from coterie.core.arrays import Doubles, Ids, Ints
from coterie.grouping.choice.structure.placing import Structure
from coterie.grouping.choice.structure.ward import Ward

AGREE = 0.5  # adjusted Rand index of the groups found on either half, below which a number of groups is no verdict
RECUR = 0.75  # Jaccard index of the group that recurs worst among other clients; .75 is usual for a stable group (Hennig, 2007)
DRAWINGS = 50
SHARE = 2 / 3  # of the clients in a drawing
MOST_DRAWN = 300  # clients in a drawing: more would change nothing but the time


@dataclass(frozen=True)
class Steadiness:
    """At 2, 3, ... groups: how well the groups are found again, and of what sizes they are."""

    halves: Doubles  # (most - 1,) agreement of the groups found on either half
    others: Doubles  # (most - 1,) how well the worst group is found again among a part of the clients
    groups: Ints  # (most - 1,) groups of two clients or more; one client is no group
    alone: Ints  # (most - 1,) clients by themselves
    middling: Doubles  # (most - 1,) the median size of groups
    smallest: Ints  # (most - 1,)

    @property
    def holds(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """(most - 1,) whether this many groups can be a verdict.

        Never the last number looked at: who knows what comes after it. Nor where as many clients stand alone as there are groups.
        """
        stable = (self.halves >= AGREE) & (self.others >= RECUR) & (self.groups >= 2) & (self.alone < self.groups)
        stable[-1] = False
        return stable


def steadiness(found: Structure, rng: np.random.Generator) -> Steadiness:
    """How well the groups of a view hold."""
    labels, halves = found.tree.labels(), [tree.labels() for tree in found.half_trees]
    sizes = [np.bincount(row) for row in labels]
    return Steadiness(
        halves=np.array([adjusted_rand_score(a, b) for a, b in zip(*halves, strict=True)]),
        others=recurrence(found.coordinates, labels, rng),
        groups=np.array([int(np.sum(row > 1)) for row in sizes]),
        alone=np.array([int(np.sum(row == 1)) for row in sizes]),
        middling=np.array([float(np.median(row)) for row in sizes]),
        smallest=np.array([int(row.min()) for row in sizes]),
    )


def recurrence(points: Doubles, labels: Ids, rng: np.random.Generator) -> Doubles:
    """(most - 1,) for labels (most - 1, n) at 2, 3, ... groups: the Jaccard index of the group that recurs worst, on average.

    Part of the clients are drawn and grouped anew; each group is compared with the new group that is most like it.
    """
    n, found = len(points), np.zeros((DRAWINGS, len(labels)))
    for drawing in found:
        some = np.sort(rng.permutation(n)[: min(int(np.ceil(SHARE * n)), MOST_DRAWN)])
        again = Ward.of(points[some], min(len(labels) + 1, len(some))).labels()
        for i, (before, after) in enumerate(zip(labels, again, strict=False)):
            drawing[i] = _worst(before[some], after, np.bincount(before))
    return np.asarray(found.mean(axis=0))


def _worst(before: Ids, after: Ids, sizes: Ints) -> float:
    """The Jaccard index of the group found again worst; groups of one client, and those nobody was drawn from, aside."""
    table = np.bincount(before * (after.max() + 1) + after, minlength=len(sizes) * (after.max() + 1)).reshape(len(sizes), -1)
    old, new = table.sum(axis=1), table.sum(axis=0)
    best = (table / np.maximum(old[:, None] + new - table, 1)).max(axis=1)
    counted = (old > 0) & (sizes > 1)
    return float(best[counted].min()) if counted.any() else 0.0
