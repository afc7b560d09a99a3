"""Aggregation weights from the evidence: a client's weight in each round, and over how many clients a model's weight is spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from coterie.analysis.findings import Findings
from coterie.core.arrays import Array, Doubles, Ints
from coterie.evidence.reader import Evidence, encode_methods


@dataclass(frozen=True)
class AggregationWeights:
    """`shares` are those of one seed; `spread` is over all that are compared."""

    shares: dict[str, Doubles]  # by method that mixes: (T + 1, N), a client's weight in the model that it counts most in
    spread: dict[str, Doubles]  # by method that mixes: (S', T + 1), effective number of clients a model, mean over its models; nan without
    faults: tuple[str, ...]


def read_aggregation_weights(findings: Findings, seed: int) -> AggregationWeights:
    """Read the aggregation matrices piece by piece; `seed` is the place of the seed whose single weights are kept."""
    records, last = findings.records, findings.scope.last
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
    spread = _effective_clients(pieces, len(methods) * len(seeds), last).reshape(len(seeds), len(methods), last + 1)[findings.scope.seeds]
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
