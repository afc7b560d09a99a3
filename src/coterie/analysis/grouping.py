"""How good a method's groups are: agreement with the true ones, between rounds, seeds and draws; how often they collapse."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.draws import DrawRecords, StudyDraws
from coterie.analysis.estimates import Estimate, estimate
from coterie.analysis.group_agreement import GroupAgreement, group_agreement
from coterie.analysis.groups import against_truth, informations, lanes_of_groups, rand_indices
from coterie.analysis.records import Cluster
from coterie.analysis.roles import assigned, groups_asked, known
from coterie.core.arrays import Array, Doubles, Ints


@dataclass(frozen=True)
class Grouping:
    """The groups of one method over the runs. Groups of a single round (FedSim's) are judged in each round, over its cohort."""

    ari: Estimate | None  # adjusted Rand index with the true groups after the last round; None where they are not known
    nmi: Estimate | None  # normalised mutual information, likewise
    silhouette: Estimate | None  # where the method noted it
    used: Estimate  # groups with members
    between_rounds: float  # mean ARI of one round's groups with the next round's; nan for groups of a single round
    again: GroupAgreement  # of the last groups of two seeds, and of two draws
    collapse_rate: float  # share of runs that end with fewer groups than asked for (all in one, where no number was)

    @property
    def between_seeds(self) -> float:
        return self.again.between_seeds

    @property
    def between_draws(self) -> float:
        return self.again.between_draws


@dataclass(frozen=True)
class _DrawGroups:
    """The groups of one draw's runs that have reached the end."""

    own: DrawRecords
    label: str
    seeds: Ints
    lanes: list[list[Cluster]]

    def column(self, values: Doubles) -> Doubles:
        """(S,) numbers of these seeds in the place of each."""
        column = np.full(len(self.own.records.settings.seeds), np.nan)
        column[self.seeds] = values
        return column

    @property
    def last(self) -> Array:
        """(S', N) the last groups; of groups of a single round there are none."""
        return np.asarray(self.own.records.groups[self.label][self.seeds, self.own.scope.last])


def grouping_of(study: StudyDraws, label: str) -> Grouping | None:
    """The quality of a method's groups in the runs that reached the last round; None for one that has none."""
    draws = list(_draws(study, label))
    if not any(len(lane) for draw in draws for lane in draw.lanes):
        return None
    first = study.each[0].records
    truth, lasting, asked = first.truth is not None, label in first.groups, _asked(label)

    def over(values: "list[Doubles]") -> Estimate:
        return estimate(study.in_scope(np.stack([draw.column(own) for draw, own in zip(draws, values, strict=True)])))

    silhouette = [draw.own.records.silhouette[draw.own.records.place(label), draw.seeds] for draw in draws]
    noted = any(np.isfinite(values).any() for values in silhouette)
    if lasting:
        collapsed = [_count(lane[-1]) < asked for draw in draws for lane in draw.lanes if lane]  # a lane may have placed nobody
    else:
        collapsed = [_count(cluster) == 1 for draw in draws for lane in draw.lanes for cluster in lane] if asked > 1 else []
    return Grouping(
        ari=over([against_truth(draw.own.records, draw.lanes, rand_indices) for draw in draws]) if truth else None,
        nmi=over([against_truth(draw.own.records, draw.lanes, informations) for draw in draws]) if truth else None,
        silhouette=over(silhouette) if noted else None,
        used=over([np.array([_mean([_count(cluster) for cluster in lane]) for lane in draw.lanes]) for draw in draws]),
        between_rounds=_between_rounds(draws) if lasting else float("nan"),
        again=group_agreement([draw.last for draw in draws] if lasting else [], same_clients=study.repetitions.same_clients),
        collapse_rate=float(np.mean(collapsed)) if collapsed else 0.0,
    )


def _draws(study: StudyDraws, label: str) -> Iterator[_DrawGroups]:
    ended = np.isfinite(study.scores[label]["final"])
    for own, reached in zip(study.each, ended, strict=True):
        seeds = np.flatnonzero(reached)
        yield _DrawGroups(own, label, seeds, lanes_of_groups(own.records, seeds, own.scope.last, label) or [[] for _ in seeds])


def _between_rounds(draws: list[_DrawGroups]) -> float:
    cubes = [draw.own.records.groups[draw.label][draw.seeds, : draw.own.scope.last + 1] for draw in draws]  # (S', T + 1, N) each
    return float(metrics.mean(rand_indices([pair for cube in cubes for lane in cube for pair in pairwise(lane)])))


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
