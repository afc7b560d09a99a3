"""Who is put together by methods that keep groups: what FedEx's Figures 2 and 3 show, in numbers, after the last round."""

from collections.abc import Iterator

import numpy as np

from coterie.analysis.records import Records
from coterie.analysis.scores import Scope
from coterie.core.arrays import Doubles, Ids

TOGETHER = ("gathered", "overlap")


def who_together(records: Records, scope: Scope) -> Iterator[tuple[str, str, int, float]]:
    """Method, score, seed and value: `gathered` and `overlap`, in percent and points."""
    labels = _label_shares(records)
    for method, groups in records.groups.items():
        for place in scope.seeds:
            seed, found = records.settings.seeds[place], groups[place, scope.last]
            if records.truth is not None:
                yield method, "gathered", seed, gathered(found, records.truth)
            yield method, "overlap", seed, overlap(found, labels)


def gathered(found: Ids, truth: Ids) -> float:
    """Percent of the clients of the smallest true group that are in one and the same group: 100 where all are."""
    sizes = np.bincount(truth[truth >= 0])
    rare = int(np.flatnonzero(sizes == sizes[sizes > 0].min())[0])
    own = found[(truth == rare) & (found >= 0)]
    return float("nan") if not len(own) else 100.0 * float(np.bincount(own).max()) / int((truth == rare).sum())


def overlap(found: Ids, labels: Doubles) -> float:
    """By how many points the labels of two clients of one group overlap more than those of two of different groups."""
    shared = 100.0 * np.minimum(labels[:, None], labels[None]).sum(axis=2)
    known = (found >= 0)[:, None] & (found >= 0) & ~np.eye(len(found), dtype=bool)
    same = (found[:, None] == found) & known
    other = known & ~same
    return float(shared[same].mean() - shared[other].mean()) if same.any() and other.any() else float("nan")


def _label_shares(records: Records) -> Doubles:
    """(N, C) the labels of each client's test part, as shares."""
    counts = records.evidence.actual.astype(np.float64)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0))
