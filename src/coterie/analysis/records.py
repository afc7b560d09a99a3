"""Records: a study's evidence as arrays over methods, seeds, rounds and clients. Scores and findings are computed from them.

`record_reader` fills them from the files of a study.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import get_args

import numpy as np

from coterie._util.errors import UserError
from coterie.analysis import metrics
from coterie.analysis.metrics import ACCURACY, ByRound, Metric
from coterie.core.arrays import Array, Bools, Doubles, Ids, Ints
from coterie.evidence.reader import Evidence
from coterie.evidence.records import DECILES, Cost, LaneEnd
from coterie.evidence.settings import Settings

COSTS = tuple(cost.name for cost in fields(Cost))
Cluster = tuple[Ids, Ids]  # clients, and the label of each


@dataclass(frozen=True)
class Records:
    """M methods, S seeds, T + 1 rounds (0 is the start), R of them evaluated, N clients. What was not measured is nan (or -1 in counts)."""

    settings: Settings
    ids: tuple[str, ...]  # (N,)
    train: Ints  # (N,) training samples
    test: Ints  # (N,) test samples at the end
    tested: Ints  # (R, N) test samples in each evaluated round: the same in all of them unless the world drifts
    truth: Ids | None  # (N,) true groups, where they are known
    rounds: Ints  # (R,) the evaluated rounds
    credits: Array  # (M, S, R, N) credits: what each client's test samples are worth together; of accuracy, those that are right
    loss: Doubles  # (M, S, R) over all clients' test samples
    auroc: Doubles | None  # (M, S, R) mean over clients, of two-class tasks
    validation: Doubles  # (M, S, R) the task's own score over all clients' validation samples
    costs: Mapping[str, Doubles]  # each (M, S, T + 1), of the round by itself
    discrepancy: Doubles  # (M, S, T + 1)
    server_seconds: Doubles  # (M, S, T + 1)
    groups: Mapping[str, Array]  # by method that keeps groups: (S, T + 1, N), -1 for a client not yet in a group
    clusters: Mapping[str, Mapping[tuple[int, int], Cluster]]  # by method with groups of a round: by seed's place and round
    silhouette: Doubles  # (M, S) the last that the method noted
    stopped: Mapping[tuple[str, int], LaneEnd]  # by method and seed: where and why it ended early
    faults: tuple[str, ...]
    evidence: Evidence  # where all this was read
    clock: Doubles | None = None  # (M, S, T + 1) simulated time at the end of each round; None where clients have no speeds
    malicious: Bools | None = None  # (S, N) clients that a simulated attack made malicious: no score counts them
    answers: Array | None = None  # (M, S, N, bytes) after the last round, a bit or a float32 for each test sample: see draws.py
    answered: Bools | None = None  # (M, S, N) where those were kept
    early: Mapping[tuple[str, int], int] = field(default_factory=dict)  # by method and seed that stopped by validation: its last round
    population: Mapping[str, Doubles] = field(default_factory=dict)  # (M, S, R) each, of all clients, where rows are of a sample
    unseen: "Records | None" = None  # the same of the clients that took no part: they are in nothing above
    metric: Metric = ACCURACY  # that `credits` are of
    mae: Doubles | None = None  # (M, S, R) mean absolute error over all test samples, of a regression
    rmse: Doubles | None = None  # (M, S, R) root mean squared error
    perplexity: Doubles | None = None  # (M, S, R) of all test tokens, where texts are predicted
    concordance: Doubles | None = None  # (M, S, R) of survival times: Harrell's, of pairs within clients
    brier: Doubles | None = None  # (M, S, R) integrated Brier score
    calibration: Doubles | None = None  # (M, S, R) events for each one that is expected
    unit: Doubles | None = None  # (S,) what a sample's error, or its right labels, are divided by to be a credit: see draws.py

    @cached_property
    def accuracy(self) -> Doubles:
        """(M, S, R) the metric over all clients' test samples, or over clients; nan for a round in which any client is missing."""
        if self.metric.is_macro:
            return self.macro
        if self.population:
            return self.population["score"]
        return self._over_clients(lambda credits, tested: credits.sum(axis=-1) / max(float(tested.sum()), 1.0))

    @cached_property
    def macro(self) -> Doubles:
        """(M, S, R) the plain mean of the clients' values."""
        if self.population:
            return self.population["macro"]
        return self._over_clients(lambda credits, tested: metrics.mean(metrics.ratio(credits, tested)))

    @cached_property
    def worst(self) -> Doubles:
        """(M, S, R) the lowest of the clients' values."""
        if self.population:
            return self.population[DECILES[0]]
        return self._over_clients(lambda credits, tested: metrics.worst(metrics.ratio(credits, tested)))

    @cached_property
    def bottom_decile(self) -> Doubles:
        """(M, S, R) the mean over the tenth of the clients that is served worst."""
        if self.population:
            return self.population["bottom_decile"]
        return self._over_clients(lambda credits, tested: metrics.bottom_decile(metrics.ratio(credits, tested)))

    def by_round(self) -> dict[ByRound, Doubles]:
        """Every score that each round has, (M, S, R); those that were not measured are left out."""
        found = {name: getattr(self, name) for name in get_args(ByRound)}
        return {name: values for name, values in found.items() if values is not None}

    def compute_client_values(self, method: int, rounds: slice) -> Doubles:
        """(S, N) each client's value with one method, averaged over some of the evaluated rounds; nan without test samples, and where
        the client is malicious."""
        values = self.credits[method, :, rounds].astype(np.float64)
        values[~is_evaluated(self.credits[method, :, rounds])] = np.nan
        if self.malicious is not None:
            values[np.broadcast_to(self.malicious[:, None, :], values.shape)] = np.nan
        return np.asarray(
            np.where(self.test > 0, metrics.ratio(values, np.broadcast_to(self.tested[rounds], values.shape)).mean(axis=1), np.nan)
        )

    def place(self, label: str) -> int:
        return self.settings.methods.index(label)

    def get_groups(self, label: str) -> Array:
        """(S, T + 1, N) a method's groups; of one that kept none in this draw, as `auto` may, -1 for every client."""
        return self.groups[label] if label in self.groups else np.full((*self.discrepancy.shape[1:], len(self.ids)), -1, dtype=np.int16)

    def _over_clients(self, score: "metrics.ClientReducer") -> Doubles:
        """A score of each round; one method and round at a time, since the masks are as large as the counts."""
        table = np.full(self.credits.shape[:3], np.nan)
        if self.malicious is not None:  # every seed counts other clients
            for seed, malicious in enumerate(self.malicious):
                honest = replace(self, credits=self.credits[:, [seed]], tested=np.where(malicious, 0, self.tested), malicious=None)
                table[:, seed] = honest._over_clients(score)[:, 0]
            return table
        for method, credits in enumerate(self.credits):
            for row in range(credits.shape[1]):
                counted = self.tested[row] > 0
                own, tested = credits[:, row][:, counted], self.tested[row, counted]
                whole = is_evaluated(own).all(axis=-1)
                if whole.any() and counted.any():
                    table[method, whole, row] = score(own[whole].astype(np.float64), tested)
        return table


def is_evaluated(credits: Array) -> Bools:
    """Which credits are known: counts that were not made are -1, other credits no numbers."""
    return np.asarray(credits >= 0 if credits.dtype.kind == "i" else np.isfinite(credits))


def require_complete(records: Records) -> Records:
    """The records, unless part of the evidence could not be read."""
    if records.faults:
        raise UserError(records.faults[0])
    return records
