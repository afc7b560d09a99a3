"""How good a method's groups are: agreement with the true ones, between rounds, seeds and draws; how often they collapse."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.draws import DrawRecords, Estimate, StudyDraws, estimate
from coterie.analysis.group_agreement import (
    GroupAgreement,
    adjusted_rand_scores,
    collect_groupings,
    compute_group_agreement,
    normalized_mutual_info_scores,
    score_against_truth,
)
from coterie.analysis.records import Cluster
from coterie.analysis.roles import look_up_facts
from coterie.core.arrays import Array, Doubles, Ints
from coterie.evidence.reader import read_notes
from coterie.evidence.settings import MethodFacts


@dataclass(frozen=True)
class GroupQuality:
    """The groups of one method over the runs. Groups of a single round (FedSim's) are judged in each round, over its cohort."""

    ari: Estimate | None  # adjusted Rand index with the true groups after the last round; None where they are not known
    nmi: Estimate | None  # normalised mutual information, likewise
    silhouette: Estimate | None  # where the method noted it
    used: Estimate  # groups with members
    between_rounds: float  # mean ARI of one round's groups with the next round's; nan for groups of a single round
    again: GroupAgreement  # of the last groups of two seeds, and of two draws
    collapse_rate: float  # share of runs that end with fewer groups than were asked for, or, with `auto`, than it had found
    one_group_rate: float = 0.0  # of a method that was told no number: share of runs that end with one group, which is no collapse

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

    @cached_property
    def found(self) -> dict[int, int]:
        """By the place of a seed, the number of groups that the method found itself in its last choice; none where it was told."""
        records = self.own.records
        notes = read_notes(records.evidence, "choice", [])
        chosen = ((key.seed, choice["k"]) for key, _, choice in notes if key.method == self.label and isinstance(choice, dict))
        return {records.settings.seeds.index(seed): int(k) for seed, k in chosen}

    @property
    def last(self) -> Array:
        """(S', N) the last groups; of groups of a single round there are none."""
        return np.asarray(self.own.records.groups[self.label][self.seeds, self.own.scope.last])


def assess_groups(study: StudyDraws, label: str) -> GroupQuality | None:
    """The quality of a method's groups in the runs that reached the last round; None for one that has none."""
    draws = list(_iter_draws(study, label))
    if not any(len(lane) for draw in draws for lane in draw.lanes):
        return None
    first = study.each[0].records
    truth, lasting = first.truth is not None, label in first.groups
    told = _requested_groups(label, first.settings.facts)

    def over(values: "list[Doubles]") -> Estimate:
        return estimate(study.in_scope(np.stack([draw.column(own) for draw, own in zip(draws, values, strict=True)])))

    silhouette = [draw.own.records.silhouette[draw.own.records.place(label), draw.seeds] for draw in draws]
    noted = any(np.isfinite(values).any() for values in silhouette)
    # a lane may have placed nobody
    ended = [(draw, seed, lane) for draw in draws for seed, lane in zip(draw.seeds, draw.lanes, strict=True) if lane]
    if lasting:
        wanted = [told or draw.found.get(int(seed), 1) for draw, seed, _ in ended]
        collapsed = [_count_groups(lane[-1]) < number for (_, _, lane), number in zip(ended, wanted, strict=True)]
    else:
        collapsed = [_count_groups(cluster) == 1 for _, _, lane in ended for cluster in lane] if told is not None and told > 1 else []
    alone = [all(_count_groups(cluster) == 1 for cluster in lane) for _, _, lane in ended] if told is None else []
    return GroupQuality(
        ari=over([score_against_truth(draw.own.records, draw.lanes, adjusted_rand_scores) for draw in draws]) if truth else None,
        nmi=over([score_against_truth(draw.own.records, draw.lanes, normalized_mutual_info_scores) for draw in draws]) if truth else None,
        silhouette=over(silhouette) if noted else None,
        used=over([np.array([_mean([_count_groups(cluster) for cluster in lane]) for lane in draw.lanes]) for draw in draws]),
        between_rounds=_agreement_between_rounds(draws) if lasting else float("nan"),
        again=compute_group_agreement([draw.last for draw in draws] if lasting else [], same_clients=study.repetitions.same_clients),
        collapse_rate=float(np.mean(collapsed)) if collapsed else 0.0,
        one_group_rate=float(np.mean(alone)) if alone else 0.0,
    )


def _iter_draws(study: StudyDraws, label: str) -> Iterator[_DrawGroups]:
    ended = np.isfinite(study.scores[label]["final"])
    for own, reached in zip(study.each, ended, strict=True):
        seeds = np.flatnonzero(reached)
        yield _DrawGroups(own, label, seeds, collect_groupings(own.records, seeds, own.scope.last, label) or [[] for _ in seeds])


def _agreement_between_rounds(draws: list[_DrawGroups]) -> float:
    cubes = [draw.own.records.groups[draw.label][draw.seeds, : draw.own.scope.last + 1] for draw in draws]  # (S', T + 1, N) each
    return float(metrics.mean(adjusted_rand_scores([pair for cube in cubes for lane in cube for pair in pairwise(lane)])))


def _count_groups(cluster: Cluster) -> int:
    """Groups with members."""
    return len(np.unique(cluster[1][cluster[1] >= 0]))


def _mean(values: list[float] | list[int]) -> float:
    return float(metrics.mean(np.array(values, dtype=np.float64)))


def _requested_groups(label: str, facts: Mapping[str, MethodFacts]) -> int | None:
    """The number of groups that a method was told to make; None where it finds the number itself."""
    own = look_up_facts(label, facts)
    if own is None:
        return None
    return 1 if own.assign in ("oracle", "one") else own.groups  # those are told who is in which group, not how many there are
