"""Aggregation weights from the evidence: who counted how much, and among how many clients a model's weight is spread."""

from dataclasses import dataclass

import numpy as np

from coterie.analysis.findings import Findings
from coterie.core.arrays import Array, Doubles
from coterie.evidence.reader import method_places


@dataclass(frozen=True)
class Weighing:
    """`shares` are those of one seed; `spread` is over all that are compared."""

    shares: dict[str, Doubles]  # by method that mixes: (T + 1, N), a client's weight in the model that it counts most in
    spread: dict[str, Doubles]  # by method that mixes: (S', T + 1), effective number of clients a model, mean over its models; nan without
    faults: tuple[str, ...]


def weighing_of(findings: Findings, seed: int) -> Weighing:
    """Read the aggregation matrices piece by piece; `seed` is the place of the seed whose single weights are kept."""
    records, last = findings.records, findings.scope.last
    methods = records.settings.methods
    shares = np.zeros((len(methods), last + 1, len(records.ids)))
    pieces: list[tuple[Array, ...]] = []
    faults: list[str] = []
    seeds = {seed: place for place, seed in enumerate(records.settings.seeds)}
    for batch in records.evidence.batches("mixing", ["model", "source", "kept", "weight"], faults):
        method = method_places(batch.column("method"), methods)
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
    spread = _spread(pieces, len(methods) * len(seeds), last).reshape(len(seeds), len(methods), last + 1)[findings.scope.seeds]
    mixed = [i for i in range(len(methods)) if np.isfinite(spread[:, i]).any()]
    return Weighing({methods[i]: shares[i] for i in mixed}, {methods[i]: spread[:, i] for i in mixed}, tuple(faults))


def _spread(pieces: list[tuple[Array, ...]], lanes: int, last: int) -> Doubles:
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
