"""The numbers of a reproduction: one for each part, row, score and seed, accuracies in percent.

Rows are methods, models on the server's own test set (`METHOD | MODEL`) or what was measured. Scores of a method: final, last10, mean, max
and median over rounds, macro and worst (clients, after the last round), change (between rounds), rounds_to (the target), discrepancy and
its variance over rounds, ari (with the true groups), server_ms a round, and FedSim's components.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import nan

import numpy as np
from sklearn.metrics import adjusted_rand_score

from coterie.analysis.records import Records, records_of
from coterie.core.arrays import Doubles, Ints
from coterie.evidence.reader import Evidence
from coterie.reproduce.run import PartRun

LAST = 10  # evaluated rounds in the "last 10" score
Key = tuple[str, str]  # row and score


@dataclass
class PartValues:
    """A part's numbers: by row and score, by seed; and accuracy curves in percent."""

    numbers: dict[Key, dict[int, float]] = field(default_factory=dict)
    curves: dict[str, dict[int, Doubles]] = field(default_factory=dict)  # by method, by seed, (R,)
    rounds: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (R,) evaluated, from 1

    def add(self, row: str, score: str, seed: int, value: float) -> None:
        if np.isfinite(value):
            self.numbers.setdefault((row, score), {})[seed] = float(value)

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.numbers))

    def of(self, row: str, score: str) -> dict[int, float]:
        return self.numbers.get((row, score), {})

    def mean(self, row: str, score: str) -> float:
        found = self.of(row, score)
        return float(np.mean(list(found.values()))) if found else nan


def values_of(run: PartRun, target: float | None) -> PartValues:
    """Everything that a part's evidence tells."""
    values = PartValues()
    for evidence in run.studies:
        _from_rounds(values, evidence, target)
    for evidence in run.last:
        _after_last(values, records_of(evidence))
    for measured in run.measured:
        values.add(measured.row, measured.score, measured.seed, measured.value)
    return values


def _from_rounds(values: PartValues, evidence: Evidence, target: float | None) -> None:
    records = records_of(evidence)
    settings = records.settings
    counted = records.rounds >= 1
    values.rounds = records.rounds[counted]
    moved = _discrepancy(evidence)
    components = _components(evidence)
    for m, method in enumerate(settings.methods):
        for s, seed in enumerate(settings.seeds):
            curve = 100 * records.accuracy[m, s, counted]
            if not np.isfinite(curve[-1]):
                continue  # it did not reach the end
            values.curves.setdefault(method, {})[seed] = curve
            there = np.flatnonzero(curve >= target) if target is not None else np.zeros(0)
            scores = _scores(curve) | {
                "rounds_to": nan if target is None else float(values.rounds[there[0]]) if len(there) else float(settings.plan.rounds + 1),
                "discrepancy": moved[m, s].mean(),
                "discrepancy_variance": moved[m, s].var(),
                "server_ms": 1000 * records.server_seconds[m, s, 1:].mean(),
                "components": components.get((m, s), nan),
            }
            for score, value in scores.items():
                values.add(method, score, seed, float(value))
    _after_last(values, records)
    for row, score, seed, value in _central(evidence):
        values.add(row, score, seed, value)


def _after_last(values: PartValues, records: Records) -> None:
    """Scores of the last round: over samples, over clients, of the worst client, and how well groups agree with the true ones."""
    settings = records.settings
    known = records.test > 0
    for m, method in enumerate(settings.methods):
        for s, seed in enumerate(settings.seeds):
            if not np.isfinite(records.accuracy[m, s, -1]):
                continue
            own = 100 * (records.right[m, s, -1, known] / records.test[known])  # counts are of 16 bits: divided first
            values.add(method, "final", seed, 100 * float(records.accuracy[m, s, -1]))
            values.add(method, "macro", seed, float(own.mean()))
            values.add(method, "worst", seed, float(own.min()))
            if method in records.groups and records.truth is not None:
                values.add(method, "ari", seed, float(adjusted_rand_score(records.truth, records.groups[method][s, -1])))


def _discrepancy(evidence: Evidence) -> Doubles:
    """(M, S, T) from round 1 on."""
    settings = evidence.settings
    frame = evidence.frame("rounds", ["lane", "round", "discrepancy"])
    table = np.zeros((len(settings.seeds), len(settings.methods), settings.plan.rounds + 1))
    table.reshape(-1, table.shape[2])[frame["lane"], frame["round"]] = frame["discrepancy"]
    return table.swapaxes(0, 1)[:, :, 1:]


def _components(evidence: Evidence) -> dict[tuple[int, int], float]:
    """By places of method and seed: how many principal components FedSim kept, mean over rounds."""
    frame = evidence.frame("notes")
    own = frame[frame["name"] == "components"]
    kept: dict[tuple[int, int], list[float]] = {}
    for lane, value in zip(own["lane"].tolist(), own["value"].tolist(), strict=True):
        seed, method = divmod(lane, len(evidence.settings.methods))
        kept.setdefault((method, seed), []).append(json.loads(value))
    return {place: float(np.mean(counts)) for place, counts in kept.items()}


def _central(evidence: Evidence) -> Iterator[tuple[str, str, int, float]]:
    """Models on the server's own test set; rows of a lane are in the order of rounds. A lane that did not reach the end has none."""
    frame = evidence.frame("central")
    frame = frame[(frame["round"] >= 1) & (frame.groupby("lane")["round"].transform("max") == evidence.settings.plan.rounds)]
    total = sum(evidence.roster[f"actual_{c}"][-1].as_py() for c in range(evidence.classes))  # the last row is the server's
    right = frame[[f"hits_{c}" for c in range(evidence.classes)]].sum(axis=1)
    curves: dict[tuple[str, int], list[float]] = {}
    columns = (frame["method"].astype(str).tolist(), frame["model"].tolist(), frame["seed"].tolist(), right.tolist())
    for method, model, seed, hits in zip(*columns, strict=True):
        curves.setdefault((f"{method} | {model}", seed), []).append(100 * hits / total)
    for (row, seed), curve in curves.items():
        yield from ((row, score, seed, value) for score, value in _scores(np.array(curve)).items())


def _scores(curve: Doubles) -> dict[str, float]:
    """The scores that any curve over rounds has."""
    return {
        "final": float(curve[-1]),
        "last10": float(curve[-LAST:].mean()),
        "mean": float(curve.mean()),
        "max": float(curve.max()),
        "median": float(np.median(curve)),
        "change": float(np.abs(np.diff(curve)).mean()) if len(curve) > 1 else nan,
    }
