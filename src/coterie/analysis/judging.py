"""What clients' test parts say of each evaluated round: every client's credit (its value times its samples), losses, errors, AUROC."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.measures import METRICS, Counts, Metric
from coterie.core.arrays import Array, Bools, Doubles, Ints
from coterie.core.tasks import SUMS, pooled_variance
from coterie.evidence.reader import Evidence

# (names of columns) -> pieces of the table of clients: places of methods and seeds, and columns, the round among them
ReadColumns = Iterator[tuple[Ints, Ints, dict[str, Array]]]


@dataclass(frozen=True)
class JudgedRounds:
    """Of M methods, S seeds, R rounds and N clients."""

    right: Array  # (M, S, R, N) credits; -1, or nan where they are no counts, of what was not evaluated
    tested: Ints  # (R, N) test samples; none where the metric is not defined
    loss: Doubles  # (M, S, R)
    auroc: Doubles | None  # (M, S, R) mean over clients, of two-class tasks
    mae: Doubles | None = None  # (M, S, R) mean absolute error over all test samples, of a regression
    rmse: Doubles | None = None  # (M, S, R) root mean squared error
    perplexity: Doubles | None = None  # (M, S, R) of all test tokens, where texts are predicted
    unit: Doubles | None = None  # (S,) what a sample's error, or its right labels, are divided by in the last round


@dataclass(frozen=True)
class HeldForTest:
    """What is fixed of test parts in each evaluated round, (R, N) each: samples, and of a regression what its targets sum up to."""

    samples: Ints
    targets: Mapping[str, Doubles]

    def scales(self, honest: Bools) -> tuple[Doubles, Doubles]:
        """(R,) twice: the variance of these clients' targets about their mean, and their mean distance from that of training."""
        if not self.targets:
            nothing = np.full(len(self.samples), np.nan)
            return nothing, nothing
        counts = np.where(honest, self.samples, 0)
        triples = zip(counts, self.targets["target_mean"], self.targets["target_squares"] * honest, strict=True)
        distances = (self.targets["target_distance"] * honest).sum(axis=1)
        return np.array([pooled_variance(*row) for row in triples]), metrics.ratio(distances, counts.sum(axis=1))


class Judging:
    """Fills `JudgedRounds`, a piece of the table of clients at a time."""

    def __init__(
        self, evidence: Evidence, metric: Metric, shape: tuple[int, int], rounds: Ints, hostile: Bools | None, held: HeldForTest
    ) -> None:
        self.evidence, self.metric, self.hostile, self.held = evidence, metric, hostile, held
        self.place = np.zeros(evidence.settings.plan.rounds + 1, dtype=np.int64)
        self.place[rounds] = np.arange(len(rounds))
        most = held.samples.max(initial=0)
        self.whole = metric.measure.whole
        kind = (np.int16 if most < np.iinfo(np.int16).max else np.int32) if self.whole else np.float64
        self.shape = (*shape, len(rounds))
        self.right = np.full((*self.shape, held.samples.shape[1]), -1 if self.whole else np.nan, dtype=kind)
        self.undefined = np.zeros(held.samples.shape, dtype=np.bool_)
        self.totals: dict[str, Doubles] = {name: np.zeros(int(np.prod(self.shape))) for name in ("loss", "weight", "area", "areas")}
        self.errors = {name: np.zeros(int(np.prod(self.shape))) for name in SUMS[evidence.task] if name.endswith(("_error", "_likelihood"))}
        everybody = np.ones((shape[1], held.samples.shape[1]), dtype=np.bool_)
        self.honest = everybody if hostile is None else ~hostile
        self.scales = [held.scales(own) for own in self.honest]  # by seed

    def add(self, method: Ints, seed: Ints, batch: Mapping[str, Array]) -> None:
        """Rows of clients in rounds."""
        row, client = self.place[batch["round"]], batch["client"]
        counts = self._counts(seed, row, client, batch)
        value = self.metric.of(counts)
        credit = np.where(np.isnan(value), 0.0, value * counts.samples)
        self.right[method, seed, row, client] = np.rint(credit) if self.whole else credit
        self.undefined[row[np.isnan(value)], client[np.isnan(value)]] = True
        cell = np.ravel_multi_index((method, seed, row), self.shape)
        self._sum_up(cell, seed, client, counts, batch)

    def _counts(self, seed: Ints, row: Ints, client: Ints, batch: Mapping[str, Array]) -> Counts:
        classes = self.evidence.classes
        if self.metric is METRICS["accuracy"]:  # of ten million rows only the sums of right answers are wanted
            hits = sum((batch[f"hits_{c}"] for c in range(classes)), start=np.zeros(len(row), np.int64))[:, None]
            predicted = actual = np.broadcast_to(np.int64(0), hits.shape)
        else:
            hits, predicted = (_stacked(batch, name, classes, len(row)) for name in ("hits", "predicted"))
            actual = _stacked(batch, "actual", classes, len(row)) if "actual_0" in batch else self.evidence.actual[client]
        variance, distance = (np.array([own[which] for own in self.scales])[seed, row] for which in (0, 1))
        nothing = np.full(len(row), np.nan)
        sums = {name: batch[name] for name in SUMS[self.evidence.task] if name in batch}
        samples = self.held.samples[row, client]
        return Counts(hits, predicted, actual, samples, batch.get("auroc", nothing), sums, variance, distance)

    def _sum_up(self, cell: Ints, seed: Ints, client: Ints, counts: Counts, batch: Mapping[str, Array]) -> None:
        """Losses, errors and areas; those of hostile clients do not count."""
        honest = self.honest[seed, client]
        known = np.where(np.isfinite(batch["loss"]) & honest, counts.samples, 0)
        self._add("loss", cell, np.where(known > 0, batch["loss"], 0.0) * known)
        self._add("weight", cell, known)
        for name, total in self.errors.items():
            total += np.bincount(cell, weights=np.where(known > 0, batch[name], 0.0), minlength=len(total))
        defined = np.isfinite(counts.auroc) & honest
        self._add("area", cell[defined], counts.auroc[defined])
        self._add("areas", cell[defined], np.ones(int(defined.sum())))

    def _add(self, name: str, cell: Ints, weights: Array) -> None:
        self.totals[name] += np.bincount(cell, weights=weights, minlength=len(self.totals[name]))

    def result(self) -> JudgedRounds:
        """A client for whom the metric is undefined in any run of a round counts in none of them: runs are compared on the same clients."""
        totals = self.totals
        loss, area = (metrics.ratio(totals[top], totals[low]).reshape(self.shape) for top, low in (("loss", "weight"), ("area", "areas")))
        errors = {name: metrics.ratio(total, totals["weight"]).reshape(self.shape) for name, total in self.errors.items()}
        root = np.sqrt(errors["squared_error"]) if "squared_error" in errors else None
        return JudgedRounds(
            self.right,
            np.where(self.undefined, 0, self.held.samples),
            loss,
            area if "auroc" in self.evidence.columns("clients") else None,
            errors.get("absolute_error"),
            root,
            np.exp(-errors["log_likelihood"]) if "log_likelihood" in errors else None,  # samples have the same number of tokens
            self._unit(),
        )

    def _unit(self) -> Doubles | None:
        name, seeds = self.metric.measure.name, len(self.honest)
        if self.evidence.task == "multilabel":
            return np.full(seeds, float(self.evidence.classes))
        if self.evidence.task == "next-token":
            return np.ones(seeds)
        which = {"r2": 0, "mae": 1}.get(name)
        return None if which is None else np.array([own[which][-1] for own in self.scales])


def _stacked(batch: Mapping[str, Array], name: str, classes: int, rows: int) -> Array:
    """(rows, C) the columns of counts by class."""
    return np.array([batch[f"{name}_{c}"] for c in range(classes)], dtype=np.int64).reshape(classes, rows).T


def wanted_columns(evidence: Evidence, metric: Metric) -> list[str]:
    """The columns of the table of clients that are read: of accuracy, which needs right answers only, no more than those."""
    there = evidence.columns("clients")
    kinds = ("hits", "actual") if metric.measure.name == "accuracy" else ("hits", "predicted", "actual")
    by_class = [f"{kind}_{c}" for kind in kinds for c in range(evidence.classes)]
    return [name for name in ["client", "loss", *by_class, "auroc", *SUMS[evidence.task]] if name in there]


def held_in(evidence: Evidence, rounds: Ints, test: Ints, pieces: ReadColumns) -> HeldForTest:
    """What is fixed of test parts: as the roster says, or, where the world drifts or clients come later, as every round says of itself."""
    names = [name for name in SUMS[evidence.task] if name.startswith("target")]
    samples = np.repeat(test[None, :], len(rounds), axis=0)
    targets = {name: np.repeat(evidence.fixed(name)[None, :], len(rounds), axis=0).astype(np.float64) for name in names}
    there = evidence.columns("clients")
    said = [f"actual_{c}" for c in range(evidence.classes) if f"actual_{c}" in there] if evidence.task == "classification" else ["samples"]
    if not said or said[0] not in there:
        return HeldForTest(samples, targets)
    samples[:] = 0
    place = np.zeros(evidence.settings.plan.rounds + 1, dtype=np.int64)
    place[rounds] = np.arange(len(rounds))
    for _, _, batch in pieces:
        row, client = place[batch["round"]], batch["client"]
        samples[row, client] = np.sum([batch[name] for name in said], axis=0)
        for name, table in targets.items():
            table[row, client] = batch[name]
    return HeldForTest(samples, targets)
