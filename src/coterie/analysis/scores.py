"""Scores of runs and which runs count: from curves, against true groups, on the server's test set, and as deciles over all clients.

The names of scores are in `metrics`, what is known of every round in `records`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from coterie._util.errors import UserError
from coterie.analysis import metrics
from coterie.analysis.metrics import Curve, Score, adjusted_rand_scores
from coterie.analysis.records import Cluster, Records, is_evaluated
from coterie.core.arrays import Bools, Doubles, Ints
from coterie.evidence.reader import Evidence
from coterie.evidence.records import DECILES

TAIL_ROUNDS = 10  # rounds in the "last 10" score


@dataclass(frozen=True)
class Scope:
    """The part of the records that is compared: complete seeds, and rounds up to the last that they share."""

    seeds: Ints  # (S',) places of the seeds that count
    rows: slice  # the evaluated rounds from 1 to the last
    tail: slice  # the last ten of them
    last: int  # the last round


def find_scope(records: Records) -> Scope:
    """The seeds that reached the last round that any reached: a wave advances together, so what is missing then has stopped early.

    A seed in which every run stopped early is complete, too: it will have no more rounds. Its runs have no scores.
    """
    measured: Bools = np.asarray(np.isfinite(records.accuracy).any(axis=0))  # (S, R)
    methods, seeds = records.settings.methods, records.settings.seeds
    over: Bools = np.array([all((label, seed) in records.stopped for label in methods) for seed in seeds])
    if not measured[~over][:, records.rounds >= 1].any() and not over.all():
        if not records.test.sum():
            raise UserError(
                f"No client of {records.settings.data!r} has test samples, so there is nothing to score: keep some with test=0.1."
            )
        raise UserError(f"The study of {records.settings.data!r} holds no evaluated round yet: let it run to its first checkpoint.")
    reached = np.where(measured.any(axis=1), measured.shape[1] - 1 - measured[:, ::-1].argmax(axis=1), -1)
    end = int(reached[~over].max(initial=-1)) if not over.all() else measured.shape[1] - 1
    first = int(np.argmax(records.rounds >= 1))
    return Scope(
        np.flatnonzero((reached == end) | over),
        slice(first, end + 1),
        slice(max(first, end + 1 - TAIL_ROUNDS), end + 1),
        int(records.rounds[end]),
    )


def compute_partial_curves(records: Records) -> tuple[Doubles, Ints]:
    """(M, S, R) the metric over those clients that were evaluated in a round, and how many they were: for a look at a study that runs.

    No comparison rests on it: where a client is missing, its rounds are of other clients than the rest.
    """
    if records.population:
        return records.accuracy, np.where(np.isfinite(records.accuracy), len(records.ids), 0)
    known = is_evaluated(records.credits) & (records.tested > 0)
    credits, tested = np.where(known, records.credits, 0).astype(np.float64), np.where(known, records.tested, 0)
    if records.metric.is_macro:
        return metrics.mean(metrics.ratio(credits, tested)), known.sum(axis=-1)
    return metrics.ratio(credits.sum(axis=-1), tested.sum(axis=-1)), known.sum(axis=-1)


def score_curves(curves: Doubles) -> dict[Curve, Doubles]:
    """The scores of curves (runs, R) over the evaluated rounds from 1; nan for a run that did not reach the last of them."""
    ended = np.isfinite(curves[:, -1])
    found: dict[Curve, Doubles] = {
        "final": curves[:, -1],
        "last10": metrics.mean(curves[:, -TAIL_ROUNDS:], axis=1),
        "mean": metrics.mean(curves, axis=1),
        "max": np.where(np.isfinite(curves), curves, -np.inf).max(axis=1),
        "median": np.array([np.median(curve[np.isfinite(curve)]) if np.isfinite(curve).any() else np.nan for curve in curves]),
        "change": metrics.mean(np.abs(np.diff(curves, axis=1)), axis=1),
    }
    return {name: np.where(ended, values, np.nan) for name, values in found.items()}


def compute_scores(records: Records, scope: Scope, method: int) -> dict[Score, Doubles]:
    """Each score of one method, (S',) over the seeds; nan where the run did not reach the last round."""
    curve, end = records.accuracy[method, scope.seeds, scope.rows], scope.rows.stop - 1
    ended = np.isfinite(curve[:, -1])
    found: dict[Score, Doubles] = {name: values for name, values in score_curves(curve).items()}  # noqa: C416  keys of a narrower type
    found["validated"] = _score_at_best_validation(curve, records.validation[method, scope.seeds, scope.rows])
    found |= {name: values[method, scope.seeds, end] for name, values in records.by_round().items()}
    if records.unseen is not None:
        found["unseen"] = records.unseen.accuracy[method, scope.seeds, end]
    found["ari"] = compute_truth_agreement(records, scope.seeds, scope.last, records.settings.methods[method])
    return {name: np.where(ended, values, np.nan) for name, values in found.items()}


def _score_at_best_validation(curve: Doubles, validation: Doubles) -> Doubles:
    """The accuracy of the round in which validation accuracy is highest, the first of equals."""
    chosen = np.argmax(np.where(np.isfinite(validation), validation, -np.inf), axis=1)
    return np.where(np.isfinite(validation).any(axis=1), curve[np.arange(len(curve)), chosen], np.nan)


DECILE_TITLES = ("lowest", *(f"{10 * i} %" for i in range(1, 5)), "median", *(f"{10 * i} %" for i in range(6, 10)), "highest")


def compute_deciles(draws: Iterable[tuple[Records, Scope]], method: int) -> Doubles | None:
    """(11,) the quantiles of one method after the last round, the mean over runs that reached it; None where rows of all are kept."""
    runs = []
    for records, scope in draws:
        if not records.population:
            return None
        runs.append(np.stack([records.population[name][method, scope.seeds, scope.rows.stop - 1] for name in DECILES], axis=1))
    return metrics.mean(np.concatenate(runs), axis=0)


def read_central_curves(evidence: Evidence, last: int) -> dict[tuple[str, str, int], Doubles]:
    """By method, named model and seed: accuracy after each evaluated round from 1 to the last in which the model was there.

    Only of lanes that reached the last round: a curve of the others would end with a number that is not final.
    """
    actual = evidence.actual_central
    if actual is None or evidence.task != "classification":
        return {}
    hits = [f"hits_{c}" for c in range(evidence.classes)]
    frame = evidence.frame("central", ["model", *hits])
    frame = frame[(frame["round"] >= 1) & (frame["round"] <= last)]
    ended = frame.groupby(["method", "seed"], observed=True)["round"].transform("max") == last
    frame = frame[ended].sort_values("round", kind="stable")
    right = frame[hits].sum(axis=1) / int(actual.sum())
    curves: dict[tuple[str, str, int], list[float]] = {}
    for method, model, seed, share in zip(frame["method"].astype(str), frame["model"], frame["seed"], right, strict=True):
        curves.setdefault((method, model, int(seed)), []).append(float(share))
    return {key: np.array(curve) for key, curve in curves.items()}


def compute_truth_agreement(records: Records, seeds: Ints, last: int, label: str) -> Doubles:
    """(S',) adjusted Rand index with the true groups: of the last groups, or, for groups of one round, the mean over the rounds."""
    lanes = collect_groupings(records, seeds, last, label)
    if lanes is None or records.truth is None:
        return np.full(len(seeds), np.nan)
    return score_against_truth(records, lanes, adjusted_rand_scores)


def collect_groupings(records: Records, seeds: Ints, last: int, label: str) -> list[list[Cluster]] | None:
    """For each seed the groupings that are judged: the last, or those of every round where groups live for one; None without groups."""
    if label in records.groups:
        final = records.groups[label][seeds, last]
        clients = np.arange(final.shape[1])
        return [[(clients, labels)] if (labels >= 0).any() else [] for labels in final]
    if label in records.clusters:
        rounds = records.clusters[label]
        return [[rounds[seed, t] for t in range(1, last + 1) if (seed, t) in rounds] for seed in map(int, seeds)]
    return None


def score_against_truth(records: Records, lanes: list[list[Cluster]], score: metrics.AgreementScore) -> Doubles:
    """(S',) the mean over a seed's groupings of a score against the true groups of the clients in them."""
    assert records.truth is not None
    truth = records.truth
    found = score([(truth[clients], labels) for lane in lanes for clients, labels in lane])
    ends = np.cumsum([len(lane) for lane in lanes], dtype=np.int64)
    return np.array([metrics.mean(found[end - len(lane) : end]) for lane, end in zip(lanes, ends, strict=True)])
