"""Ward's tree of points, cut at every number of groups at once."""

from dataclasses import dataclass

import numpy as np
from scipy.cluster import hierarchy

from coterie.core.arrays import Doubles, Ids, Ints


@dataclass(frozen=True)
class Ward:
    """The tree laid out as a dendrogram: every node is a span of places, and the last k - 1 merges are what k groups keep apart.

    (SciPy's `fcluster` cuts at one k at a time and checks the tree each time: most of what a reference draw would cost.)
    """

    order: Ints  # (n,) the client at each place
    spans: Ints  # (most - 1, 3): begin, split and end of the last merges, the last of all first

    @classmethod
    def of(cls, points: Doubles, most: int) -> "Ward":
        n, tree = len(points), hierarchy.linkage(points, "ward")
        members = [1] * n + tree[:, 3].astype(int).tolist()
        begin, spans = [0] * (2 * n - 1), []
        for row, (left, right) in reversed(list(enumerate(tree[:, :2].astype(int).tolist()))):
            begin[left] = begin[n + row]
            begin[right] = begin[n + row] + members[left]
            spans.append((begin[left], begin[right], begin[left] + members[n + row]))
        return cls(np.argsort(begin[:n]), np.array(spans[: most - 1]))

    def labels(self) -> Ids:
        """(most - 1, n) groups at 2, 3, ... `most`."""
        places = np.empty(len(self.order), dtype=np.int64)
        places[self.order] = np.arange(len(places))
        splits = self.spans[:, 1]
        return np.stack([np.searchsorted(np.sort(splits[:k]), places, side="right") for k in range(1, len(splits) + 1)]).astype(np.int64)

    def explained(self, here: Doubles, there: Doubles) -> Doubles:
        """(most - 1,) at 2, 3, ... groups: the inner product of the group means `here` with the members' points `there`, summed."""
        sums = [np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows[self.order], axis=0)]) for rows in (here, there)]

        def of(begin: Ints, end: Ints) -> Doubles:
            first, second = (total[end] - total[begin] for total in sums)
            return np.asarray(np.sum(first * second, axis=1) / (end - begin))

        begin, split, end = self.spans.T
        gained = of(begin, split) + of(split, end) - of(begin, end)  # each split replaces one group by two
        return np.asarray(of(np.zeros(1, dtype=np.int64), np.array([len(self.order)])) + np.cumsum(gained))
