"""How good the groups are: agreement with the true ones, between rounds and between seeds; how often they collapse."""

from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from sklearn.metrics import normalized_mutual_info_score

from coterie.analysis.records import Records
from coterie.analysis.roles import assigned, known
from coterie.analysis.scores import Estimate, Scope, defined_mean, estimate
from coterie.core.arrays import Array, Doubles, Ids


@dataclass(frozen=True)
class Grouping:
    """The groups of one method over the seeds. Groups of a single round (FedSim's) are judged in each round, over its cohort."""

    ari: Estimate | None  # adjusted Rand index with the true groups after the last round; None where they are not known
    nmi: Estimate | None  # normalised mutual information, likewise
    silhouette: Estimate | None  # where the method recorded it
    used: Estimate  # groups with members
    between_rounds: float  # mean ARI of one round's groups with the next round's; nan for groups of a single round
    between_seeds: float  # mean ARI of the last groups of two seeds
    collapse_rate: float  # share of seeds that end with fewer groups than asked for (all in one, where no number was)


def grouping_of(records: Records, scope: Scope, label: str) -> Grouping | None:
    """The quality of a method's groups; None for a method that has none, or whose every run ended early."""
    method = records.place(label)
    ended = np.isfinite(records.accuracy[method, scope.seeds, scope.rows.stop - 1])
    seeds = scope.seeds[ended]
    if not len(seeds):
        return None
    if label in records.groups:
        cube = records.groups[label][seeds, : scope.last + 1]  # (S', T + 1, N)
        if not (cube[:, -1] >= 0).any():
            return None
        return _lasting(records, cube, label, records.silhouette[method, seeds])
    if label in records.clusters:
        return _passing(records, scope, seeds, label, records.silhouette[method, seeds])
    return None


def _lasting(records: Records, cube: Array, label: str, silhouette: Doubles) -> Grouping:
    final = cube[:, -1]
    used = np.array([len(np.unique(labels[labels >= 0])) for labels in final])
    return Grouping(
        *_against(records.truth, [(np.arange(len(labels)), labels) for labels in final]),
        _recorded(silhouette),
        estimate(used),
        float(defined_mean(np.array([agreement(a, b) for lane in cube for a, b in pairwise(lane)]), axis=0)),
        float(defined_mean(np.array([agreement(a, b) for a, b in combinations(final, 2)]), axis=0)),
        float(np.mean(used < _asked(label))),
    )


def _passing(records: Records, scope: Scope, seeds: Array, label: str, silhouette: Doubles) -> Grouping:
    """Clusters of a round: every number is a mean over the rounds of a seed; consecutive cohorts share too few clients to compare."""
    rounds = records.clusters[label]
    lanes = [[rounds[seed, t] for t in range(1, scope.last + 1) if (seed, t) in rounds] for seed in map(int, seeds)]
    used = [defined_mean(np.array([len(np.unique(labels)) for _, labels in lane]), axis=0) for lane in lanes]
    judged = [_against(records.truth, lane) for lane in lanes]
    ari, nmi = (
        estimate(np.array([one.mean for one in column])) if records.truth is not None else None
        for column in ([a for a, _ in judged if a], [b for _, b in judged if b])
    )
    collapsed = [len(np.unique(labels)) == 1 for lane in lanes for _, labels in lane] if _asked(label) > 1 else []
    rate = float(np.mean(collapsed)) if collapsed else 0.0
    return Grouping(ari, nmi, _recorded(silhouette), estimate(np.array(used)), float("nan"), float("nan"), rate)


def _against(truth: Ids | None, groups: list[tuple[Array, Array]]) -> tuple[Estimate | None, Estimate | None]:
    if truth is None:
        return None, None
    pairs = [(truth[clients], labels) for clients, labels in groups]
    mutual = [normalized_mutual_info_score(a[(a >= 0) & (b >= 0)], b[(a >= 0) & (b >= 0)]) for a, b in pairs]
    return estimate(np.array([agreement(a, b) for a, b in pairs])), estimate(np.array(mutual))


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


def _asked(label: str) -> int:
    """The number of groups that a method was told to make; 2, the least that is not one group, where it finds the number itself."""
    method = known(label)
    if assigned(method) in ("oracle", "one"):
        return 1  # told who is in which group, not how many there are
    while (inner := getattr(method, "method", None)) is not None:
        method = inner
    number = getattr(method, "groups", getattr(method, "clusters", None))
    return number if isinstance(number, int) else 2


def _recorded(silhouette: Doubles) -> Estimate | None:
    return estimate(silhouette) if np.isfinite(silhouette).any() else None
