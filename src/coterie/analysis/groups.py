"""Groups as evidence has them, and how well two groupings agree."""

import numpy as np
from sklearn.metrics import normalized_mutual_info_score

from coterie.analysis import metrics
from coterie.analysis.records import Cluster, Records
from coterie.core.arrays import Array, Doubles, Ints


def agreement_with_truth(records: Records, seeds: Ints, last: int, label: str) -> Doubles:
    """(S',) adjusted Rand index with the true groups: of the last groups, or, for groups of one round, the mean over the rounds."""
    lanes = lanes_of_groups(records, seeds, last, label)
    if lanes is None or records.truth is None:
        return np.full(len(seeds), np.nan)
    return against_truth(records, lanes, agreement)


def lanes_of_groups(records: Records, seeds: Ints, last: int, label: str) -> list[list[Cluster]] | None:
    """For each seed the groupings that are judged: the last, or those of every round where groups live for one; None without groups."""
    if label in records.groups:
        final = records.groups[label][seeds, last]
        everybody = np.arange(final.shape[1])
        return [[(everybody, labels)] if (labels >= 0).any() else [] for labels in final]
    if label in records.clusters:
        rounds = records.clusters[label]
        return [[rounds[seed, t] for t in range(1, last + 1) if (seed, t) in rounds] for seed in map(int, seeds)]
    return None


def against_truth(records: Records, lanes: list[list[Cluster]], score: "metrics.Agreement") -> Doubles:
    """(S',) the mean over a seed's groupings of a score against the true groups of the clients in them."""
    assert records.truth is not None
    return np.array([_mean([score(records.truth[clients], labels) for clients, labels in lane]) for lane in lanes])


def agreement(one: Array, two: Array) -> float:
    """The adjusted Rand index over the clients that both put in a group.

    Hubert and Arabie (1985), from the table of counts. It equals scikit-learn's, which spends a hundred times as long on checking its
    input: too long for all rounds of a large study.
    """
    both = (one >= 0) & (two >= 0)
    if not both.any():
        return float("nan")
    a, b = one[both].astype(np.int64), two[both].astype(np.int64)
    table = np.bincount(a * (int(b.max()) + 1) + b, minlength=(int(a.max()) + 1) * (int(b.max()) + 1)).reshape(int(a.max()) + 1, -1)
    together, in_one, in_two = (float((counts * (counts - 1) // 2).sum()) for counts in (table, table.sum(axis=1), table.sum(axis=0)))
    expected, most = in_one * in_two / max(len(a) * (len(a) - 1) / 2, 1), (in_one + in_two) / 2
    return 1.0 if most == expected else (together - expected) / (most - expected)


def mutual_information(one: Array, two: Array) -> float:
    """Normalised, over the clients that both put in a group."""
    both = (one >= 0) & (two >= 0)
    return float(normalized_mutual_info_score(one[both], two[both])) if both.any() else float("nan")


def _mean(values: list[float]) -> float:
    return float(metrics.mean(np.array(values, dtype=np.float64)))
