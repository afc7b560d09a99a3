"""Groups and weights: how good a method's groups are, how often two clients share one, and aggregation weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple, cast

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import squareform

from coterie.analysis import metrics
from coterie.analysis.draws import DrawRecords, Estimate, StudyDraws, estimate
from coterie.analysis.metrics import adjusted_rand_scores, normalized_mutual_info_scores
from coterie.analysis.records import Cluster
from coterie.analysis.roles import look_up_facts
from coterie.analysis.scores import collect_groupings, score_against_truth
from coterie.core.arrays import Array, Doubles, Ints
from coterie.evidence.reader import Evidence, encode_methods, read_notes
from coterie.evidence.settings import MethodFacts


@dataclass(frozen=True)
class GroupAgreement:
    """Mean adjusted Rand index of pairs of runs: 1 is the same groups, 0 what chance gives; nan where there is no such pair."""

    between_seeds: float  # two seeds of one draw
    between_draws: float  # two draws, whatever their seeds; nan unless clients are the same holders of data in all of them


def compute_group_agreement(labels: Array | Sequence[Array], *, same_clients: bool) -> GroupAgreement:
    """From the last groups of every draw (seeds, clients), -1 for a client in none.

    Where the partition is redrawn, client 3 of one draw is not client 3 of the next, and draws cannot be compared.
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


@dataclass(frozen=True)
class GroupQuality:
    """The groups of one method over the runs. Groups of a single round (FedSim's) are judged in each round, over its cohort."""

    ari: Estimate | None  # adjusted Rand index with the true groups after the last round; None where they are not known
    nmi: Estimate | None  # normalised mutual information, likewise
    silhouette: Estimate | None  # where the method noted it
    used: Estimate  # groups with members
    between_rounds: float  # mean ARI of one round's groups with the next round's; nan for groups of a single round
    between_seeds: float  # of the last groups of two seeds of one draw
    between_draws: float  # of those of two draws
    collapse_rate: float  # share of runs that end with fewer groups than were asked for, or, with `auto`, than it had found
    one_group_rate: float = 0.0  # of a method that was set no number: share of runs that end with one group, which is no collapse


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
        """By the place of a seed, the number of groups that the method found itself in its last choice; none where it was set."""
        records = self.own.records
        notes = read_notes(records.evidence, "choice", [])
        chosen = ((key.seed, choice["k"]) for key, _, choice in notes if key.method == self.label and isinstance(choice, dict))
        return {records.settings.seeds.index(seed): int(k) for seed, k in chosen}

    @property
    def last(self) -> Array:
        """(S', N) the last groups; of groups of a single round there are none."""
        return np.asarray(self.own.records.get_groups(self.label)[self.seeds, self.own.scope.last])


def assess_groups(study: StudyDraws, label: str) -> GroupQuality | None:
    """The quality of a method's groups in the runs that reached the last round; None for one that has none."""
    draws = list(_iter_draws(study, label))
    if not any(len(lane) for draw in draws for lane in draw.lanes):
        return None
    first = study.each[0].records
    truth, lasting = first.truth is not None, any(label in own.records.groups for own in study.each)
    requested = _requested_groups(label, first.settings.facts)

    def over(values: "list[Doubles]") -> Estimate:
        return estimate(study.in_scope(np.stack([draw.column(own) for draw, own in zip(draws, values, strict=True)])))

    silhouette = [draw.own.records.silhouette[draw.own.records.place(label), draw.seeds] for draw in draws]
    noted = any(np.isfinite(values).any() for values in silhouette)
    # a lane may have placed no client
    ended = [(draw, seed, lane) for draw in draws for seed, lane in zip(draw.seeds, draw.lanes, strict=True) if lane]
    if lasting:
        wanted = [requested or draw.found.get(int(seed), 1) for draw, seed, _ in ended]
        collapsed = [_count_groups(lane[-1]) < number for (_, _, lane), number in zip(ended, wanted, strict=True)]
    else:
        several = requested is not None and requested > 1
        collapsed = [_count_groups(cluster) == 1 for _, _, lane in ended for cluster in lane if several]
    alone = [all(_count_groups(cluster) == 1 for cluster in lane) for _, _, lane in ended] if requested is None else []
    return GroupQuality(
        ari=over([score_against_truth(draw.own.records, draw.lanes, adjusted_rand_scores) for draw in draws]) if truth else None,
        nmi=over([score_against_truth(draw.own.records, draw.lanes, normalized_mutual_info_scores) for draw in draws]) if truth else None,
        silhouette=over(silhouette) if noted else None,
        used=over([np.array([_mean([_count_groups(cluster) for cluster in lane]) for lane in draw.lanes]) for draw in draws]),
        between_rounds=_agreement_between_rounds(draws) if lasting else float("nan"),
        **vars(compute_group_agreement([draw.last for draw in draws] if lasting else [], same_clients=study.repetitions.same_clients)),
        collapse_rate=float(np.mean(collapsed)) if collapsed else 0.0,
        one_group_rate=float(np.mean(alone)) if alone else 0.0,
    )


def _iter_draws(study: StudyDraws, label: str) -> Iterator[_DrawGroups]:
    ended = np.isfinite(study.scores[label]["final"])
    for own, reached in zip(study.each, ended, strict=True):
        seeds = np.flatnonzero(reached)
        yield _DrawGroups(own, label, seeds, collect_groupings(own.records, seeds, own.scope.last, label) or [[] for _ in seeds])


def _agreement_between_rounds(draws: list[_DrawGroups]) -> float:
    cubes = [draw.own.records.get_groups(draw.label)[draw.seeds, : draw.own.scope.last + 1] for draw in draws]  # (S', T + 1, N) each
    return float(metrics.mean(adjusted_rand_scores([pair for cube in cubes for lane in cube for pair in pairwise(lane)])))


def _count_groups(cluster: Cluster) -> int:
    return len(np.unique(cluster[1][cluster[1] >= 0]))


def _mean(values: list[float] | list[int]) -> float:
    return float(metrics.mean(np.array(values, dtype=np.float64)))


def _requested_groups(label: str, facts: Mapping[str, MethodFacts]) -> int | None:
    """The number of groups that a method was set to make; None where it finds the number itself."""
    own = look_up_facts(label, facts)
    if own is None:
        return None
    return 1 if own.assign in ("oracle", "one") else own.groups  # those are given the members of groups, not their number


@dataclass(frozen=True)
class AggregationWeights:
    """`shares` are those of one seed; `spread` is over all that are compared."""

    shares: dict[str, Doubles]  # by method that mixes: (T + 1, N), a client's weight in the model that it counts most in
    spread: dict[str, Doubles]  # by method that mixes: (S', T + 1), effective number of clients a model, mean over its models; nan without
    faults: tuple[str, ...]


def read_aggregation_weights(draw: DrawRecords, seed: int) -> AggregationWeights:
    """Read the aggregation matrices piece by piece; `seed` is the place of the seed whose single weights are kept."""
    records, last = draw.records, draw.scope.last
    methods = records.settings.methods
    shares = np.zeros((len(methods), last + 1, len(records.ids)))
    pieces: list[tuple[Array, ...]] = []
    faults: list[str] = []
    seeds = {seed: place for place, seed in enumerate(records.settings.seeds)}
    for batch in records.evidence.batches("mixing", ["model", "source", "kept", "weight"], faults):
        method = encode_methods(batch.column("method"), methods)
        columns = {
            name: batch.column(name).to_numpy(zero_copy_only=False) for name in ("seed", "round", "model", "source", "kept", "weight")
        }
        used = ~columns["kept"] & (columns["round"] <= last) & (method >= 0)
        lane = np.array([seeds[s] for s in columns["seed"][used].tolist()], dtype=np.int64) * len(methods) + method[used]
        round_, model, source, weight = (columns[name][used] for name in ("round", "model", "source", "weight"))
        own = lane // len(methods) == seed
        np.maximum.at(shares, (lane[own] % len(methods), round_[own], source[own]), weight[own])
        row = (lane * (last + 1) + round_) * (1 << 20) + model  # a million models will do
        rows, where = np.unique(row, return_inverse=True)
        pieces.append((rows, np.bincount(where, weight, len(rows)), np.bincount(where, weight**2, len(rows))))
    spread = _effective_clients(pieces, len(methods) * len(seeds), last).reshape(len(seeds), len(methods), last + 1)[draw.scope.seeds]
    mixed = [i for i in range(len(methods)) if np.isfinite(spread[:, i]).any()]
    return AggregationWeights({methods[i]: shares[i] for i in mixed}, {methods[i]: spread[:, i] for i in mixed}, tuple(faults))


def _effective_clients(pieces: list[tuple[Array, ...]], lanes: int, last: int) -> Doubles:
    """(lanes, T + 1) mean over the models of (sum of weights)^2 / sum of squared weights: n for n equal weights, 1 for one alone."""
    table = np.full(lanes * (last + 1), np.nan)
    if pieces:
        row, total, squares = (np.concatenate(column) for column in zip(*pieces, strict=True))
        rows, where = np.unique(row, return_inverse=True)  # a model may be spread over two pieces
        effective = np.bincount(where, total) ** 2 / np.maximum(np.bincount(where, squares), 1e-300)
        cell = rows.astype(np.int64) >> 20
        count = np.bincount(cell, minlength=len(table))
        np.divide(np.bincount(cell, effective, len(table)), count, out=table, where=count > 0)
    return table.reshape(lanes, last + 1)


class RoundWeights(NamedTuple):
    """The clients of one round, m of them."""

    round_: int
    samples: Ints  # (m,) that each trained on
    weights: Doubles  # (m,) that sum to one

    @property
    def relative_samples(self) -> Doubles:
        """(m,) samples over their mean: what FedAvg weighs by, uniform weights being 1."""
        return np.asarray(self.samples / self.samples.mean())

    @property
    def relative_weights(self) -> Doubles:
        """(m,) weights over the uniform one."""
        return self.weights * len(self.weights)


def read_client_weights(evidence: Evidence, methods: Sequence[str]) -> dict[str, dict[int, list[RoundWeights]]]:
    """By method and seed, the rounds of those that make one model of their clients' and nothing else."""
    table = evidence.frame("mixing")
    sizes = {draw: roster["train"].to_numpy() for draw, roster in evidence.rosters.items()}
    found: dict[str, dict[int, list[RoundWeights]]] = {}
    own = table[table["method"].isin(list(methods)) & (table["model"] == 0) & ~table["kept"]]
    for name, rows in own.groupby(["draw", "method", "seed", "round"], observed=True):
        draw, method, seed, round_ = cast("tuple[int, str, int, int]", name)
        one = RoundWeights(round_, sizes[draw][rows["source"].to_numpy()].astype(np.int64), rows["weight"].to_numpy(np.float64))
        found.setdefault(method, {}).setdefault(seed, []).append(one)
    return found


def fit_sample_slope(rounds: Sequence[RoundWeights]) -> float:
    """How a weight grows with the samples, by least squares over all rounds, both relative to their means: FedAvg's is 1, uniform 0."""
    samples = np.concatenate([one.relative_samples for one in rounds]) - 1
    weights = np.concatenate([one.relative_weights for one in rounds]) - 1
    spread = float(samples @ samples)
    return float(samples @ weights) / spread if spread > 0 else np.nan
