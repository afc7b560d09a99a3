"""The numbers of a reproduction: one for each part, row, score and seed, accuracies in percent.

Rows are methods, models on the server's own test set (`METHOD | MODEL`) or what was measured. Scores of a method are the analysis' (final,
last10, mean, max and median over rounds, change; macro and worst over clients after the last round; ari), and rounds_to (the target),
discrepancy and its variance over rounds, server_ms a round, and FedSim's components.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np

from coterie.analysis.central import central_curves
from coterie.analysis.reading import records_of
from coterie.analysis.records import Records, checked
from coterie.analysis.score_names import SCORES
from coterie.analysis.scores import Scope, curve_scores, scope_of, scores_of
from coterie.analysis.stability import rounds_to
from coterie.core.arrays import Doubles, Ints
from coterie.evidence.reader import Evidence, json_notes
from coterie.reproduce.by_class import F1, f1_of
from coterie.reproduce.client_weights import WeighedRound, by_samples, client_weights_of, weighed_methods
from coterie.reproduce.file import Claim
from coterie.reproduce.on_clients import over_test_clients
from coterie.reproduce.rounds_better import RoundsBetter, rounds_better
from coterie.reproduce.run import PartRun
from coterie.reproduce.who_together import TOGETHER, who_together
from coterie.statistics import Interval

Key = tuple[str, str]  # row and score
Line = tuple[Ints, Doubles]  # rounds, and accuracies in percent
NOTED = ("components", "flatness", "effective_clients")  # FedSim's principal components; how uneven SimProx's weights are
AFTER_LAST = ("final", "macro", "worst", "ari")  # of controls that are judged after the last round only


@dataclass
class PartValues:
    """A part's numbers: by row and score, by seed; and accuracy curves in percent."""

    numbers: dict[Key, dict[int, float]] = field(default_factory=dict)
    curves: dict[str, dict[int, Doubles]] = field(default_factory=dict)  # by method, by seed, (R,)
    clients: dict[str, Interval | str] = field(default_factory=dict)  # by what a claim says: over test clients, or why not
    better: dict[str, RoundsBetter] = field(default_factory=dict)  # by what a claim says: the rounds in which a method is better
    rounds: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (R,) evaluated, from 1
    means: dict[str, Line] = field(default_factory=dict)  # by row: mean curves where those of single seeds were not kept
    theirs: dict[str, Line] = field(default_factory=dict)  # by row: the paper's own curves
    weights: dict[str, dict[int, list[WeighedRound]]] = field(default_factory=dict)  # by method, by seed: of those that claims are about

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


def values_of(run: PartRun, target: float | None, claims: Sequence[Claim] = ()) -> PartValues:
    """Everything that a part's evidence tells, of these claims about it what single seeds' scores do not."""
    values = PartValues(clients=over_test_clients(run, claims))
    wanted = {claim.score for claim in claims}
    for evidence in run.studies:
        records = checked(records_of(evidence))
        scope = scope_of(records)
        _add_scores(values, records, scope)
        for method, score, seed, value in (
            *(f1_of(evidence, scope.last) if wanted & set(F1) else ()),
            *(who_together(records, scope) if wanted & set(TOGETHER) else ()),
        ):
            values.add(method, score, seed, value)
        _add_rounds(values, records, scope, target)
        _add_weights(values, evidence, weighed_methods(claims))
        for row, seed, curve in _central(evidence, scope.last):
            for score, value in curve_scores(curve[None, :]).items():
                values.add(row, score, seed, float(value[0]))
            if len(curve) == len(values.rounds):
                values.curves.setdefault(row, {})[seed] = curve
    for evidence in run.last:
        records = checked(records_of(evidence))
        _add_scores(values, records, scope_of(records), AFTER_LAST)
    for measured in run.measured:
        values.add(measured.row, measured.score, measured.seed, measured.value)
    values.better = {claim.says: rounds_better(claim, values.curves, values.rounds) for claim in claims if claim.kind == "rounds"}
    return values


def _add_scores(values: PartValues, records: Records, scope: Scope, wanted: tuple[str, ...] = ()) -> None:
    """The analysis' scores, shares in percent."""
    seeds = [records.settings.seeds[place] for place in scope.seeds]
    for place, method in enumerate(records.settings.methods):
        for score, found in scores_of(records, scope, place).items():
            if not wanted or score in wanted:
                for seed, value in zip(seeds, found, strict=True):
                    values.add(method, score, seed, float(100 * value if SCORES[score].percent else value))


def _add_rounds(values: PartValues, records: Records, scope: Scope, target: float | None) -> None:
    """Curves, and what is read from all rounds."""
    values.rounds, noted = records.rounds[scope.rows], {score: _noted(records.evidence, score) for score in NOTED}
    for place, method in enumerate(records.settings.methods):
        curves = 100 * records.accuracy[place, scope.seeds, scope.rows]
        first = rounds_to(curves, values.rounds, target) if target is not None else np.full(len(curves), nan)
        for row, s in enumerate(scope.seeds):
            if not np.isfinite(curves[row, -1]):
                continue  # it did not reach the end
            seed = records.settings.seeds[s]
            values.curves.setdefault(method, {})[seed] = curves[row]
            moved = records.discrepancy[place, s, 1 : scope.last + 1]
            never = scope.last + 1 if target is not None else nan
            scores = {
                "rounds_to": first[row] if np.isfinite(first[row]) else never,
                "discrepancy": moved.mean(),
                "discrepancy_variance": moved.var(),
                "server_ms": 1000 * records.server_seconds[place, s, 1 : scope.last + 1].mean(),
                **{score: found.get((method, seed), nan) for score, found in noted.items()},
            }
            for score, value in scores.items():
                values.add(method, score, seed, float(value))


def _add_weights(values: PartValues, evidence: Evidence, methods: Sequence[str]) -> None:
    """The weights of these methods' clients, and how they follow samples."""
    for method, seeds in client_weights_of(evidence, methods).items() if methods else ():
        for seed in seeds.keys() & values.curves.get(method, {}).keys():  # that reached the end
            values.weights.setdefault(method, {})[seed] = seeds[seed]
            values.add(method, "by_samples", seed, by_samples(seeds[seed]))


def _noted(evidence: Evidence, name: str) -> dict[tuple[str, int], float]:
    """By method and seed: a number that a method noted in its rounds, the mean over them."""
    kept: dict[tuple[str, int], list[float]] = {}
    for key, _, value in json_notes(evidence, name):
        kept.setdefault((key.method, key.seed), []).append(value)
    return {place: float(np.mean(counts)) for place, counts in kept.items()}


def _central(evidence: Evidence, last: int) -> Iterator[tuple[str, int, Doubles]]:
    """Models on the server's own test set: row, seed, accuracies in percent."""
    for (method, model, seed), curve in central_curves(evidence, last).items():
        yield f"{method} | {model}", seed, 100 * curve
