"""How well two groupings agree: adjusted Rand index, mutual information, and how often two clients share a group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import squareform

from coterie.analysis import metrics
from coterie.analysis.records import Cluster, Records
from coterie.core.arrays import Array, Doubles, Ints

BATCH_CELLS = 1 << 22  # clients, or cells of tables, that are counted at once


def compute_truth_agreement(records: Records, seeds: Ints, last: int, label: str) -> Doubles:
    """(S',) adjusted Rand index with the true groups: of the last groups, or, for groups of one round, the mean over the rounds."""
    lanes = collect_groupings(records, seeds, last, label)
    if lanes is None or records.truth is None:
        return np.full(len(seeds), np.nan)
    return score_against_truth(records, lanes, adjusted_rand_scores)


def collect_groupings(records: Records, seeds: Ints, last: int, label: str) -> list[list[Cluster]] | None:
    """For each seed the groupings that are judged: the last, or those of every round where groups live for one; None without groups."""
    if label in records.groups:
        final = records.groups[label][seeds, last]
        everybody = np.arange(final.shape[1])
        return [[(everybody, labels)] if (labels >= 0).any() else [] for labels in final]
    if label in records.clusters:
        rounds = records.clusters[label]
        return [[rounds[seed, t] for t in range(1, last + 1) if (seed, t) in rounds] for seed in map(int, seeds)]
    return None


def score_against_truth(records: Records, lanes: list[list[Cluster]], score: "metrics.AgreementScore") -> Doubles:
    """(S',) the mean over a seed's groupings of a score against the true groups of the clients in them."""
    assert records.truth is not None
    truth = records.truth
    found = score([(truth[clients], labels) for lane in lanes for clients, labels in lane])
    ends = np.cumsum([len(lane) for lane in lanes], dtype=np.int64)
    return np.array([metrics.mean(found[end - len(lane) : end]) for lane, end in zip(lanes, ends, strict=True)])


def adjusted_rand_scores(pairs: Sequence[tuple[Array, Array]]) -> Doubles:
    """(P,) the adjusted Rand index of each pair of groupings (Hubert and Arabie, 1985), from tables of counts of many pairs at once.

    It equals scikit-learn's, which spends a hundred times as long on checking its input: too long for all rounds of a large study.
    """
    found = []
    for table in iter_contingency_tables(pairs):
        together, in_one, in_two = (_count_pairs(counts) for counts in (table, table.sum(axis=2), table.sum(axis=1)))
        n = table.sum(axis=(1, 2))
        expected, most = in_one * in_two / np.maximum(n * (n - 1) / 2, 1), (in_one + in_two) / 2
        index = np.divide(together - expected, most - expected, out=np.ones(len(n)), where=most != expected)
        found.append(np.where(n > 0, index, np.nan))
    return np.concatenate(found) if found else np.zeros(0)


def normalized_mutual_info_scores(pairs: Sequence[tuple[Array, Array]]) -> Doubles:
    """(P,) the mutual information of each pair of groupings as a share of the mean of their entropies, as scikit-learn has it."""
    found = []
    for table in iter_contingency_tables(pairs):
        n = table.sum(axis=(1, 2))
        share = table / np.maximum(n, 1)[:, None, None]
        one, two, both = (_entropy(part) for part in (share.sum(axis=2), share.sum(axis=1), share))
        mutual, mean = np.maximum(one + two - both, 0.0), (one + two) / 2
        alone = (np.count_nonzero(share.sum(axis=2), axis=1) == 1) & (np.count_nonzero(share.sum(axis=1), axis=1) == 1)
        scaled = np.divide(mutual, mean, out=np.zeros(len(n)), where=mean > 0)
        found.append(np.where(n > 0, np.where(alone, 1.0, scaled), np.nan))
    return np.concatenate(found) if found else np.zeros(0)


def iter_contingency_tables(pairs: Sequence[tuple[Array, Array]]) -> Iterator[Ints]:
    """(P', A, B) how many clients are in each group of the one and each of the other, of those in both; some of the pairs at a time."""
    begin = 0
    while begin < len(pairs):
        end, rows, a, b = begin, 0, 1, 1
        while end < len(pairs):
            one, two = pairs[end]
            rows, a, b = rows + len(one), max(a, int(one.max(initial=0)) + 1), max(b, int(two.max(initial=0)) + 1)
            if end > begin and max(rows, (end + 1 - begin) * a * b) > BATCH_CELLS:
                break
            end += 1
        yield _contingency_table(pairs[begin:end])
        begin = end


def _contingency_table(pairs: Sequence[tuple[Array, Array]]) -> Ints:
    both = [(one >= 0) & (two >= 0) for one, two in pairs]
    a, b = (np.concatenate([pair[which][own] for pair, own in zip(pairs, both, strict=True)]).astype(np.int64) for which in (0, 1))
    place = np.repeat(np.arange(len(pairs)), [int(own.sum()) for own in both])
    shape = len(pairs), int(a.max(initial=0)) + 1, int(b.max(initial=0)) + 1
    return np.bincount((place * shape[1] + a) * shape[2] + b, minlength=int(np.prod(shape))).reshape(shape)


def _count_pairs(counts: Ints) -> Doubles:
    """(P,) in how many pairs of clients both are in one cell."""
    return np.asarray((counts * (counts - 1) // 2).reshape(len(counts), -1).sum(axis=1), dtype=np.float64)


def _entropy(share: Doubles) -> Doubles:
    flat = share.reshape(len(share), -1)
    return -np.asarray((flat * np.log(np.where(flat > 0, flat, 1.0))).sum(axis=1))


@dataclass(frozen=True)
class GroupAgreement:
    """Mean adjusted Rand index of pairs of runs: 1 is the same groups, 0 what chance gives; nan where there is no such pair."""

    between_seeds: float  # two seeds of one draw
    between_draws: float  # two draws, whatever their seeds; nan unless clients are the same holders of data in all of them


def compute_group_agreement(labels: Array | Sequence[Array], *, same_clients: bool) -> GroupAgreement:
    """From the last groups of every draw (seeds, clients), -1 for a client in none.

    Where the partition is redrawn, client 3 of one draw is not client 3 of the next: nothing can be said between draws.
    """
    seeds = [pair for draw in labels for pair in combinations(draw, 2)]
    draws = [(one, two) for first, second in combinations(labels, 2) for one in first for two in second] if same_clients else []
    return GroupAgreement(float(metrics.mean(adjusted_rand_scores(seeds))), float(metrics.mean(adjusted_rand_scores(draws))))


def co_membership_from_labels(pieces: list[tuple[Array, Array]], clients: int) -> Doubles:
    """The share of the pieces (clients, labels) with both of two clients in which their labels are equal; a label of -1 is none."""
    placed = [(members[labels >= 0], labels[labels >= 0]) for members, labels in pieces]
    width = 1 + max((int(labels.max()) for _, labels in placed if len(labels)), default=0)
    same = _count_meetings([(members, i * width + labels) for i, (members, labels) in enumerate(placed)], clients)
    met = _count_meetings([(members, np.full(len(members), i)) for i, (members, _) in enumerate(placed)], clients)
    return np.divide(same, met, out=np.zeros_like(same), where=met > 0)


def _count_meetings(placed: list[tuple[Array, Array]], clients: int) -> Doubles:
    """(N, N) in how many places two clients are together."""
    rows, columns = (np.concatenate([piece[part] for piece in placed] or [np.zeros(0, int)]) for part in (0, 1))
    where = csr_array((np.ones(len(rows)), (rows, columns)), shape=(clients, int(columns.max(initial=0)) + 1))
    return np.asarray((where @ where.T).toarray())


def order_by_similarity(table: Doubles, truth: Array | None) -> Ints:
    """Clients in an order that puts those grouped together side by side: by true group where known, then as a dendrogram's leaves."""
    if len(table) < 2:
        return np.arange(len(table))
    apart = squareform(np.clip(1 - (table + table.T) / 2, 0, 1) * (1 - np.eye(len(table))), checks=False)
    leaves = leaves_list(linkage(apart, "average")).astype(np.int64)
    return np.asarray(leaves if truth is None else leaves[np.argsort(truth[leaves], kind="stable")])
