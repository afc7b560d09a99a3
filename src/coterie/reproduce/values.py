"""The numbers of a reproduction: one for each part, row, score and seed, accuracies in percent."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, nan

import numpy as np

from coterie.analysis.class_scores import F1_SCORES, iter_f1
from coterie.analysis.costs import find_rounds_to_target
from coterie.analysis.draws import DrawRecords, collect_hits, compute_overlap
from coterie.analysis.groups import RoundWeights, fit_sample_slope, read_client_weights
from coterie.analysis.metrics import SCORES
from coterie.analysis.record_reader import read_records
from coterie.analysis.records import Records, require_complete
from coterie.analysis.scores import Scope, compute_scores, find_scope, read_central_curves, score_curves
from coterie.core.arrays import Doubles, Ids, Ints
from coterie.evidence.reader import Evidence, read_notes
from coterie.reproduce.run import PartRun
from coterie.reproduce.study_files import Claim
from coterie.statistics import Hits, Interval, compare_rounds, compute_partial_conjunction, compute_test_interval


@dataclass(frozen=True)
class RoundsBetter:
    """Of a claim about the share of rounds."""

    share: float  # percent of the rounds with one-sided p below 5 %, uncorrected
    p_for: float  # that it is better in at least so many
    p_against: float  # that it is worse in so many that the claim cannot be
    seeds: int


def count_better_rounds(claim: Claim, curves: dict[str, dict[int, Doubles]], rounds: Ints) -> RoundsBetter:
    """From accuracy curves by method and seed: every round tested over the seeds that both have."""
    one, two = curves.get(claim.one, {}), curves.get(claim.two, {})
    seeds = sorted(one.keys() & two.keys())
    if not seeds or claim.paper is None:
        return RoundsBetter(nan, nan, nan, len(seeds))
    gaps = np.array([one[seed] - two[seed] for seed in seeds])
    needed = max(ceil(claim.paper / 100 * len(rounds) - 1e-9), 1)
    found = compare_rounds(gaps, rounds)
    against = compute_partial_conjunction(compare_rounds(-gaps, rounds).wilcoxon_p, len(rounds) - needed + 1)
    return RoundsBetter(100 * found.share, compute_partial_conjunction(found.wilcoxon_p, needed), against, len(seeds))


GROUP_SCORES = ("gathered", "overlap")


def score_groups(records: Records, scope: Scope) -> Iterator[tuple[str, str, int, float]]:
    """Method, score, seed and value: `compute_gathered` and `compute_label_overlap`, in percent and points."""
    counts = records.evidence.actual.astype(np.float64)
    labels = np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0))  # (N, C) of each client's test part
    for method, groups in records.groups.items():
        for place in scope.seeds:
            seed, found = records.settings.seeds[place], groups[place, scope.last]
            if records.truth is not None:
                yield method, "gathered", seed, compute_gathered(found, records.truth)
            yield method, "overlap", seed, compute_label_overlap(found, labels)


def compute_gathered(found: Ids, truth: Ids) -> float:
    """Percent of the clients of the smallest true group that are in one and the same group: 100 where all are."""
    sizes = np.bincount(truth[truth >= 0])
    rare = int(np.flatnonzero(sizes == sizes[sizes > 0].min())[0])
    own = found[(truth == rare) & (found >= 0)]
    return float("nan") if not len(own) else 100.0 * float(np.bincount(own).max()) / int((truth == rare).sum())


def compute_label_overlap(found: Ids, labels: Doubles) -> float:
    """By how many points the labels of two clients of one group overlap more than those of two of different groups."""
    shared = 100.0 * np.minimum(labels[:, None], labels[None]).sum(axis=2)
    known = (found >= 0)[:, None] & (found >= 0) & ~np.eye(len(found), dtype=bool)
    same = (found[:, None] == found) & known
    other = known & ~same
    return float(shared[same].mean() - shared[other].mean()) if same.any() and other.any() else float("nan")


ASSIGNED_SCORE = "max_assigned"


def score_assigned(records: Records, scope: Scope) -> Iterator[tuple[str, str, int, float]]:
    """Method, score, seed and value: the highest accuracy over the evaluated rounds, in percent, of the clients assigned to a group by then
    (FedGroup, Section IV-A); of a method without lasting groups, of all clients."""
    rounds, tested = records.rounds[scope.rows], records.tested[scope.rows].astype(np.float64)  # (R,), (R, N)
    for place, method in enumerate(records.settings.methods):
        for s in scope.seeds:
            if not np.isfinite(records.accuracy[place, s, scope.rows.stop - 1]):
                continue  # it did not reach the end
            groups = records.groups.get(method)
            assigned = np.ones(tested.shape, bool) if groups is None else groups[s, rounds] >= 0
            right = np.where(assigned, records.credits[place, s, scope.rows], 0).sum(axis=1)
            samples = np.where(assigned, tested, 0.0).sum(axis=1)
            yield method, ASSIGNED_SCORE, records.settings.seeds[s], float(100 * (right / np.maximum(samples, 1.0)).max())


PERCENT = 100


def compute_client_intervals(run: PartRun, claims: Sequence[Claim]) -> dict[str, Interval | str]:
    """By a claim's text: its interval, or a sentence why there is none. Every draw of the part is read once."""
    if not run.studies:
        return {}
    # each draw's study, and that of controls judged after the last round only, where there is one
    pairs = zip(run.studies, run.last, strict=True) if run.last else ((study,) for study in run.studies)
    found = [[require_complete(read_records(evidence)) for evidence in drawn] for drawn in pairs]
    draws = [[DrawRecords(records, find_scope(records)) for records in drawn] for drawn in found]
    overlap = compute_overlap([drawn[0].records for drawn in draws])
    return {claim.says: _claim_interval(claim, draws, overlap) for claim in claims}


def _claim_interval(claim: Claim, draws: Sequence[Sequence[DrawRecords]], overlap: float) -> Interval | str:
    if claim.kind != "difference":
        return "test clients: they are known of differences between two methods only"
    found: list[Hits] = []
    for drawn in draws:
        one, two = _records_with(drawn, claim.one), _records_with(drawn, claim.two)
        if one is None or two is None:
            return "test clients: not known of models on the server's own test set"
        hits = _claim_hits(claim, one, two)
        if isinstance(hits, str):
            return hits
        if len(hits.ours):
            found.append(hits)
    interval = compute_test_interval(found, overlap=overlap)
    return interval if isinstance(interval, str) else replace(interval, mean=PERCENT * interval.mean, error=PERCENT * interval.error)


def _records_with(drawn: Sequence[DrawRecords], label: str) -> DrawRecords | None:
    return next((looked for looked in drawn if label in looked.records.settings.methods), None)


def _claim_hits(claim: Claim, one: DrawRecords, two: DrawRecords) -> Hits | str:
    """Right answers of both rows; a control that was evaluated after the last round only has records of its own, of the same clients."""
    score = next((name for name in SCORES if name == claim.score), None)
    if score is None:
        return f"test clients: not known of {claim.score}, which is no mean of right answers"
    seeds = np.arange(len(one.records.settings.seeds))
    both = np.isin(seeds, one.scope.seeds) & np.isin(seeds, two.scope.seeds)
    places = one.records.place(claim.one), two.records.place(claim.two)
    if one is two:
        return collect_hits(one.records, one.scope, score, *places, both)
    theirs = collect_hits(two.records, two.scope, score, places[1], places[1], both)
    ours = collect_hits(one.records, one.scope, score, places[0], places[0], both)
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours if isinstance(ours, str) else str(theirs)
    if len(ours.ours) != len(theirs.theirs):
        return "test clients: some runs of one of the two methods did not reach the end"
    return replace(ours, theirs=theirs.theirs, differing=None)


WEIGHT_SCORES = ("flatness", "effective_clients", "by_samples")  # scores of which a claim has a method's weights kept and drawn


def list_weight_methods(claims: Iterable[Claim]) -> list[str]:
    """The methods whose weights claims are about."""
    return list(dict.fromkeys(claim.one for claim in claims if claim.score in WEIGHT_SCORES))


Key = tuple[str, str]  # row and score
Line = tuple[Ints, Doubles]  # rounds, and accuracies in percent
# FedSim's principal components, its clusters and how often it uses them; how uneven SimProx's weights are
NOTED_SCORES = ("components", "clusters_found", "used_clusters", "flatness", "effective_clients")
LAST_ROUND_SCORES = ("final", "macro", "worst", "ari")  # of controls that are judged after the last round only


@dataclass
class PartValues:
    """A part's numbers: by row and score, by seed; and accuracy curves in percent."""

    numbers: dict[Key, dict[int, float]] = field(default_factory=dict)
    curves: dict[str, dict[int, Doubles]] = field(default_factory=dict)  # by method, by seed, (R,)
    clients: dict[str, Interval | str] = field(default_factory=dict)  # by a claim's text: over test clients, or why not
    better: dict[str, RoundsBetter] = field(default_factory=dict)  # by a claim's text: the rounds in which a method is better
    rounds: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (R,) evaluated, from 1
    means: dict[str, Line] = field(default_factory=dict)  # by row: mean curves where those of single seeds were not kept
    theirs: dict[str, Line] = field(default_factory=dict)  # by row: the paper's own curves
    weights: dict[str, dict[int, list[RoundWeights]]] = field(default_factory=dict)  # by method, by seed: of those that claims are about

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


def read_values(run: PartRun, target: float | None, claims: Sequence[Claim] = ()) -> PartValues:
    """The numbers of a part's evidence, and of these claims what the scores of single seeds do not hold."""
    values = PartValues(clients=compute_client_intervals(run, claims))
    wanted = {claim.score for claim in claims}
    for evidence in run.studies:
        records = require_complete(read_records(evidence))
        scope = find_scope(records)
        _add_scores(values, records, scope)
        for method, score, seed, value in (
            *(iter_f1(evidence, scope.last) if wanted & set(F1_SCORES) else ()),
            *(score_groups(records, scope) if wanted & set(GROUP_SCORES) else ()),
            *(score_assigned(records, scope) if ASSIGNED_SCORE in wanted else ()),
        ):
            values.add(method, score, seed, value)
        _add_rounds(values, records, scope, target)
        _add_weights(values, evidence, list_weight_methods(claims))
        for row, seed, curve in _read_central(evidence, scope.last):
            for score, value in score_curves(curve[None, :]).items():
                values.add(row, score, seed, float(value[0]))
            if len(curve) == len(values.rounds):
                values.curves.setdefault(row, {})[seed] = curve
    for evidence in run.last:
        records = require_complete(read_records(evidence))
        _add_scores(values, records, find_scope(records), LAST_ROUND_SCORES)
    for measured in run.measured:
        values.add(measured.row, measured.score, measured.seed, measured.value)
    values.better = {claim.says: count_better_rounds(claim, values.curves, values.rounds) for claim in claims if claim.kind == "rounds"}
    return values


def _add_scores(values: PartValues, records: Records, scope: Scope, wanted: tuple[str, ...] = ()) -> None:
    """The analysis' scores, shares in percent."""
    seeds = [records.settings.seeds[place] for place in scope.seeds]
    for place, method in enumerate(records.settings.methods):
        for score, found in compute_scores(records, scope, place).items():
            if not wanted or score in wanted:
                for seed, value in zip(seeds, found, strict=True):
                    values.add(method, score, seed, float(100 * value if SCORES[score].percent else value))


def _add_rounds(values: PartValues, records: Records, scope: Scope, target: float | None) -> None:
    """Curves, and what is read from all rounds."""
    values.rounds, noted = records.rounds[scope.rows], {score: _read_noted(records.evidence, score) for score in NOTED_SCORES}
    for place, method in enumerate(records.settings.methods):
        curves = 100 * records.accuracy[place, scope.seeds, scope.rows]
        first = find_rounds_to_target(curves, values.rounds, target) if target is not None else np.full(len(curves), nan)
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
    for method, seeds in read_client_weights(evidence, methods).items() if methods else ():
        for seed in seeds.keys() & values.curves.get(method, {}).keys():  # that reached the end
            values.weights.setdefault(method, {})[seed] = seeds[seed]
            values.add(method, "by_samples", seed, fit_sample_slope(seeds[seed]))


def _read_noted(evidence: Evidence, name: str) -> dict[tuple[str, int], float]:
    """By method and seed: a number that a method noted in its rounds, the mean over them."""
    kept: dict[tuple[str, int], list[float]] = {}
    for key, _, value in read_notes(evidence, name):
        kept.setdefault((key.method, key.seed), []).append(value)
    return {place: float(np.mean(counts)) for place, counts in kept.items()}


def _read_central(evidence: Evidence, last: int) -> Iterator[tuple[str, int, Doubles]]:
    """Models on the server's own test set: row, seed, accuracies in percent."""
    for (method, model, seed), curve in read_central_curves(evidence, last).items():
        yield f"{method} | {model}", seed, 100 * curve
