"""Scores by class and by site: precision, recall and F1 of every round, recall of each class with its interval, and each site's score."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.draws import DrawRecords, Estimate, StudyDraws, estimate
from coterie.analysis.records import Records, is_evaluated
from coterie.core.arrays import Array, Doubles
from coterie.evidence.reader import Evidence, encode_methods

if TYPE_CHECKING:
    import pandas as pd


LANE_KEYS = ["method", "seed", "round"]
BY_CLASS = ("precision", "recall", "f1")


def make_round_table(records: Records) -> "pd.DataFrame":
    """A row for each evaluated round of each lane."""
    import pandas as pd

    settings, measure = records.settings, records.metric.name
    ran = np.isfinite(records.accuracy)
    for (label, seed), last in records.early.items():  # rounds that a run did not run are in no table
        ran[records.place(label), settings.seeds.index(seed), records.rounds > last] = False
    m, s, r = np.nonzero(ran)
    table = pd.DataFrame(
        {
            "draw": settings.draws[0],
            "method": pd.Categorical.from_codes(m, categories=pd.Index(settings.methods)),
            "seed": np.asarray(settings.seeds)[s],
            "round": records.rounds[r],
            measure: records.accuracy[m, s, r],
            **{f"{measure}_macro" if name == "macro" else name: values[m, s, r] for name, values in records.by_round().items()},
        }
    )
    costs = {name: values[m, s, records.rounds[r]] for name, values in records.costs.items()}
    table = table.assign(**costs, discrepancy=records.discrepancy[m, s, records.rounds[r]], validation=records.validation[m, s, r])
    if records.clock is not None:
        table["clock"] = records.clock[m, s, records.rounds[r]]
    if not records.evidence.classes:
        return table
    return table.merge(_class_score_table(records.evidence), on=LANE_KEYS, how="left", validate="one_to_one")


def _class_score_table(evidence: Evidence) -> "pd.DataFrame":
    """Precision, recall and F1 of each round, from the clients' counts by class: weighted by test samples, and plain over clients."""
    import pandas as pd

    frame = evidence.frame("clients")
    hits, predicted = (_stack_columns(frame, name, evidence.classes) for name in ("hits", "predicted"))
    truth = _stack_columns(frame, "actual", evidence.classes) if "actual_0" in frame else evidence.actual[frame["client"].to_numpy()]
    rows = frame[LANE_KEYS].copy()
    rows["size"] = truth.sum(1) if evidence.task == "classification" else evidence.tested[frame["client"].to_numpy()]
    for name in BY_CLASS:
        rows[name] = getattr(metrics, name)(hits, predicted, truth)
        rows[f"weighted_{name}"] = rows[name] * rows["size"]
    lanes = rows.groupby(LANE_KEYS, observed=True, sort=False)
    sums = lanes[["size", *(f"weighted_{name}" for name in BY_CLASS)]].sum()
    columns = {name: sums[f"weighted_{name}"] / sums["size"] for name in BY_CLASS} | {
        f"{name}_macro": lanes[name].mean() for name in BY_CLASS
    }
    found: pd.DataFrame = pd.DataFrame(columns).reset_index()
    return found


def _stack_columns(frame: "pd.DataFrame", name: str, classes: int) -> Array:
    return np.stack([frame[f"{name}_{c}"].to_numpy() for c in range(classes)], axis=1)


@dataclass(frozen=True)
class BinaryScores:
    """After the last round, over all clients' test samples."""

    sensitivity: Estimate  # of samples of class 1
    specificity: Estimate  # of samples of class 0
    auroc: Estimate  # mean over the clients that have both


def compute_binary_scores(study: StudyDraws) -> dict[str, BinaryScores]:
    """By method; nothing for tasks with other than two classes, or where clients differ in what counts (malicious ones)."""
    if study.each[0].records.evidence.classes != 2:
        return {}
    found = {}
    for label, (negative, positive) in compute_class_recalls(study).items():
        unknown = np.full(study.repetitions.compared.shape, np.nan)
        found[label] = BinaryScores(positive, negative, estimate(study.in_scope(study.scores[label].get("auroc", unknown))))
    return found


def compute_class_recalls(study: StudyDraws) -> dict[str, tuple[Estimate, ...]]:
    """By method, for each class the share of its samples that are recognised, in the last round that is compared; nothing for tasks
    without classes, or where clients differ in what counts (malicious ones)."""
    first = study.each[0].records
    if first.evidence.task != "classification" or first.malicious is not None:
        return {}
    tables = np.stack([_recall_by_class(own) for own in study.each])  # (B, M, S, C)
    found = {}
    for place, label in enumerate(first.settings.methods):
        ended = np.isfinite(study.scores[label]["final"])[..., None]
        own = study.in_scope(np.where(ended, tables[:, place], np.nan))
        found[label] = tuple(estimate(own[..., c]) for c in range(own.shape[-1]))
    return found


def _recall_by_class(own: DrawRecords) -> Doubles:
    """(M, S, C) of one draw: right answers of each class by samples of it, in the last round that is compared."""
    records = own.records
    classes = range(records.evidence.classes)
    hits = np.zeros((len(records.settings.methods), len(records.settings.seeds), len(classes)))
    seeds = {seed: place for place, seed in enumerate(records.settings.seeds)}
    drifting = "actual_0" in records.evidence.columns("clients")
    actual = np.zeros_like(hits)
    names = [f"{name}_{c}" for name in ("hits", *(["actual"] if drifting else [])) for c in classes]
    for batch in records.evidence.batches("clients", names, []):
        last = batch.column("round").to_numpy() == own.scope.last
        method = encode_methods(batch.column("method"), records.settings.methods)[last]
        seed = np.array([seeds[s] for s in batch.column("seed").to_numpy()[last].tolist()], dtype=np.int64)
        for c in classes:
            np.add.at(hits[..., c], (method, seed), batch.column(f"hits_{c}").to_numpy()[last])
            if drifting:
                np.add.at(actual[..., c], (method, seed), batch.column(f"actual_{c}").to_numpy()[last])
    if not drifting:
        actual[:] = records.evidence.actual.sum(axis=0)
    return np.asarray(np.divide(hits, actual, out=np.full_like(hits, np.nan), where=actual > 0))


@dataclass(frozen=True)
class SiteScore:
    """One site, or one client, with one method."""

    clients: int
    train: int  # samples, of the first draw
    test: int
    score: Estimate  # the metric over its clients' test samples, mean of the last ten rounds in which they were evaluated


def compute_site_scores(study: StudyDraws, label: str, sites: Mapping[str, Sequence[str]]) -> dict[str, SiteScore]:
    """By site, its score with a method. The clients must be the same in all draws.

    Args:
        study: The draws.
        label: The method.
        sites: By site, its clients.
    """
    first, found = study.each[0].records, {}
    number = {name: place for place, name in enumerate(first.ids)}
    for site, clients in sites.items():
        rows = [number[name] for name in clients if name in number]
        if not rows:
            continue
        values = np.full(study.repetitions.compared.shape, np.nan)
        for row, own in zip(values, study.each, strict=True):
            credits = own.records.credits[own.records.place(label), :, own.scope.tail][:, :, rows]
            tested = np.broadcast_to(own.records.tested[own.scope.tail][:, rows], credits.shape)
            known = is_evaluated(credits) & (tested > 0)
            right, samples = np.where(known, credits, 0).astype(np.float64), np.where(known, tested, 0)
            whole = metrics.ratio(right.sum(axis=-1), samples.sum(axis=-1))  # (S, rounds)
            by_round = metrics.mean(metrics.ratio(right, samples)) if first.metric.is_macro else whole
            row[own.scope.seeds] = metrics.mean(by_round)[own.scope.seeds]
        found[site] = SiteScore(len(rows), int(first.train[rows].sum()), int(first.test[rows].sum()), estimate(study.in_scope(values)))
    return found


F1_SCORES = ("f1", "f1_macro")  # weighted by test samples ("micro" in the paper), and the plain mean over clients


def iter_f1(evidence: Evidence, last: int) -> Iterator[tuple[str, str, int, float]]:
    """Method, score, seed and percent of every run that reached the last round."""
    frame = evidence.frame("clients")
    frame = frame[frame["round"] == last]
    for method, seed in frame[["method", "seed"]].drop_duplicates().itertuples(index=False, name=None):
        own = frame[(frame["method"] == method) & (frame["seed"] == seed)]
        hits, predicted = (_stack_columns(own, name, evidence.classes) for name in ("hits", "predicted"))
        actual = evidence.actual[own["client"].to_numpy()]
        found = metrics.f1(hits, predicted, actual)
        defined = np.isfinite(found)
        yield str(method), "f1", int(seed), float(100 * np.average(found[defined], weights=actual.sum(1)[defined]))
        yield str(method), "f1_macro", int(seed), float(100 * found[defined].mean())
