"""Groups as evidence has them, and how well two groupings agree."""

from collections.abc import Iterator, Sequence

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.records import Cluster, Records
from coterie.core.arrays import Array, Doubles, Ints

TOGETHER = 1 << 22  # clients, or cells of tables, that are counted at once


def agreement_with_truth(records: Records, seeds: Ints, last: int, label: str) -> Doubles:
    """(S',) adjusted Rand index with the true groups: of the last groups, or, for groups of one round, the mean over the rounds."""
    lanes = lanes_of_groups(records, seeds, last, label)
    if lanes is None or records.truth is None:
        return np.full(len(seeds), np.nan)
    return against_truth(records, lanes, rand_indices)


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
    truth = records.truth
    found = score([(truth[clients], labels) for lane in lanes for clients, labels in lane])
    ends = np.cumsum([len(lane) for lane in lanes], dtype=np.int64)
    return np.array([metrics.mean(found[end - len(lane) : end]) for lane, end in zip(lanes, ends, strict=True)])


def rand_indices(pairs: Sequence[tuple[Array, Array]]) -> Doubles:
    """(P,) the adjusted Rand index of each pair of groupings (Hubert and Arabie, 1985), from tables of counts of many pairs at once.

    It equals scikit-learn's, which spends a hundred times as long on checking its input: too long for all rounds of a large study.
    """
    found = []
    for table in tables_of_pairs(pairs):
        together, in_one, in_two = (_couples(counts) for counts in (table, table.sum(axis=2), table.sum(axis=1)))
        n = table.sum(axis=(1, 2))
        expected, most = in_one * in_two / np.maximum(n * (n - 1) / 2, 1), (in_one + in_two) / 2
        index = np.divide(together - expected, most - expected, out=np.ones(len(n)), where=most != expected)
        found.append(np.where(n > 0, index, np.nan))
    return np.concatenate(found) if found else np.zeros(0)


def informations(pairs: Sequence[tuple[Array, Array]]) -> Doubles:
    """(P,) the mutual information of each pair of groupings as a share of the mean of their entropies, as scikit-learn has it."""
    found = []
    for table in tables_of_pairs(pairs):
        n = table.sum(axis=(1, 2))
        share = table / np.maximum(n, 1)[:, None, None]
        one, two, both = (_entropy(part) for part in (share.sum(axis=2), share.sum(axis=1), share))
        mutual, mean = np.maximum(one + two - both, 0.0), (one + two) / 2
        alone = (np.count_nonzero(share.sum(axis=2), axis=1) == 1) & (np.count_nonzero(share.sum(axis=1), axis=1) == 1)
        scaled = np.divide(mutual, mean, out=np.zeros(len(n)), where=mean > 0)
        found.append(np.where(n > 0, np.where(alone, 1.0, scaled), np.nan))
    return np.concatenate(found) if found else np.zeros(0)


def tables_of_pairs(pairs: Sequence[tuple[Array, Array]]) -> Iterator[Ints]:
    """(P', A, B) how many clients are in each group of the one and each of the other, of those in both; some of the pairs at a time."""
    begin = 0
    while begin < len(pairs):
        end, rows, a, b = begin, 0, 1, 1
        while end < len(pairs):
            one, two = pairs[end]
            rows, a, b = rows + len(one), max(a, int(one.max(initial=0)) + 1), max(b, int(two.max(initial=0)) + 1)
            if end > begin and max(rows, (end + 1 - begin) * a * b) > TOGETHER:
                break
            end += 1
        yield _counted(pairs[begin:end])
        begin = end


def _counted(pairs: Sequence[tuple[Array, Array]]) -> Ints:
    both = [(one >= 0) & (two >= 0) for one, two in pairs]
    a, b = (np.concatenate([pair[which][own] for pair, own in zip(pairs, both, strict=True)]).astype(np.int64) for which in (0, 1))
    place = np.repeat(np.arange(len(pairs)), [int(own.sum()) for own in both])
    shape = len(pairs), int(a.max(initial=0)) + 1, int(b.max(initial=0)) + 1
    return np.bincount((place * shape[1] + a) * shape[2] + b, minlength=int(np.prod(shape))).reshape(shape)


def _couples(counts: Ints) -> Doubles:
    """(P,) in how many pairs of clients both are in one cell."""
    return np.asarray((counts * (counts - 1) // 2).reshape(len(counts), -1).sum(axis=1), dtype=np.float64)


def _entropy(share: Doubles) -> Doubles:
    flat = share.reshape(len(share), -1)
    return -np.asarray((flat * np.log(np.where(flat > 0, flat, 1.0))).sum(axis=1))
