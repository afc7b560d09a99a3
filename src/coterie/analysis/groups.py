"""How good the groups are: agreement with the true ones, between rounds and between seeds; how often they collapse."""

from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from sklearn.metrics import normalized_mutual_info_score

from coterie.analysis import metrics
from coterie.analysis.estimates import Estimate, estimate
from coterie.analysis.records import Cluster, Records
from coterie.analysis.roles import assigned, groups_asked, known
from coterie.core.arrays import Array, Doubles, Ints


@dataclass(frozen=True)
class Grouping:
    """The groups of one method over the seeds. Groups of a single round (FedSim's) are judged in each round, over its cohort."""

    ari: Estimate | None  # adjusted Rand index with the true groups after the last round; None where they are not known
    nmi: Estimate | None  # normalised mutual information, likewise
    silhouette: Estimate | None  # where the method noted it
    used: Estimate  # groups with members
    between_rounds: float  # mean ARI of one round's groups with the next round's; nan for groups of a single round
    between_seeds: float  # mean ARI of the last groups of two seeds
    collapse_rate: float  # share of seeds that end with fewer groups than asked for (all in one, where no number was)


def grouping_of(records: Records, seeds: Ints, last: int, label: str) -> Grouping | None:
    """The quality of a method's groups in these seeds, all of which have reached the last round; None for one that has none."""
    if not len(seeds):
        return None
    lanes = _lanes(records, seeds, last, label)
    if lanes is None or not any(len(lane) for lane in lanes):
        return None
    silhouette = records.silhouette[records.place(label), seeds]
    asked = _asked(label)
    if label in records.clusters:
        collapsed = [_count(cluster) == 1 for lane in lanes for cluster in lane] if asked > 1 else []
        between = float("nan"), float("nan"), float(np.mean(collapsed)) if collapsed else 0.0
    else:
        cube = records.groups[label][seeds, : last + 1]  # (S', T + 1, N)
        between = (
            _mean([agreement(a, b) for lane in cube for a, b in pairwise(lane)]),
            _mean([agreement(a, b) for a, b in combinations(cube[:, -1], 2)]),
            float(np.mean([_count(lane[-1]) < asked for lane in lanes if lane])),  # a lane may have placed nobody
        )
    return Grouping(
        ari=estimate(_against_truth(records, lanes, agreement)) if records.truth is not None else None,
        nmi=estimate(_against_truth(records, lanes, _mutual)) if records.truth is not None else None,
        silhouette=estimate(silhouette) if np.isfinite(silhouette).any() else None,
        used=estimate(np.array([_mean([_count(cluster) for cluster in lane]) for lane in lanes])),
        between_rounds=between[0],
        between_seeds=between[1],
        collapse_rate=between[2],
    )


def agreement_with_truth(records: Records, seeds: Ints, last: int, label: str) -> Doubles:
    """(S',) adjusted Rand index with the true groups: of the last groups, or, for groups of one round, the mean over the rounds."""
    lanes = _lanes(records, seeds, last, label)
    if lanes is None or records.truth is None:
        return np.full(len(seeds), np.nan)
    return _against_truth(records, lanes, agreement)


def _lanes(records: Records, seeds: Ints, last: int, label: str) -> list[list[Cluster]] | None:
    """For each seed the groupings that are judged: the last, or those of every round where groups live for one; None without groups."""
    if label in records.groups:
        final = records.groups[label][seeds, last]
        everybody = np.arange(final.shape[1])
        return [[(everybody, labels)] if (labels >= 0).any() else [] for labels in final]
    if label in records.clusters:
        rounds = records.clusters[label]
        return [[rounds[seed, t] for t in range(1, last + 1) if (seed, t) in rounds] for seed in map(int, seeds)]
    return None


def _against_truth(records: Records, lanes: list[list[Cluster]], score: "metrics.Agreement") -> Doubles:
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


def _mutual(one: Array, two: Array) -> float:
    both = (one >= 0) & (two >= 0)
    return float(normalized_mutual_info_score(one[both], two[both])) if both.any() else float("nan")


def _count(cluster: Cluster) -> int:
    """Groups with members."""
    return len(np.unique(cluster[1][cluster[1] >= 0]))


def _mean(values: list[float] | list[int]) -> float:
    return float(metrics.mean(np.array(values, dtype=np.float64)))


def _asked(label: str) -> int:
    """The number of groups that a method was told to make; 2, the least that is not one group, where it finds the number itself."""
    method = known(label)
    if assigned(method) in ("oracle", "one"):
        return 1  # told who is in which group, not how many there are
    return groups_asked(method) or 2
