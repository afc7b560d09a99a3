"""Sensitivity and specificity of tasks with two classes: of those with the second class, and of those without it, how many are told."""

from dataclasses import dataclass

import numpy as np

from coterie.analysis.draws import DrawRecords, StudyDraws
from coterie.analysis.estimates import Estimate, estimate
from coterie.core.arrays import Doubles
from coterie.evidence.reader import method_places


@dataclass(frozen=True)
class TwoClasses:
    """After the last round, over all clients' test samples."""

    sensitivity: Estimate  # of samples of class 1
    specificity: Estimate  # of samples of class 0
    auroc: Estimate  # mean over the clients that have both


def two_classes_of(study: StudyDraws) -> dict[str, TwoClasses]:
    """By method; nothing for tasks with other than two classes, or where clients differ in what counts (hostile ones)."""
    first = study.each[0].records
    if first.evidence.task != "classification" or first.evidence.classes != 2 or first.hostile is not None:
        return {}
    tables = np.stack([_recalls(own) for own in study.each])  # (B, M, S, 2)
    found = {}
    for place, label in enumerate(first.settings.methods):
        ended = np.isfinite(study.scores[label]["final"])[..., None]
        own = study.in_scope(np.where(ended, tables[:, place], np.nan))
        area = study.in_scope(study.scores[label].get("auroc", np.full(ended.shape[:2], np.nan)))
        found[label] = TwoClasses(estimate(own[..., 1]), estimate(own[..., 0]), estimate(area))
    return found


def _recalls(own: DrawRecords) -> Doubles:
    """(M, S, 2) of one draw: right answers of each class by samples of it, in the last round that is compared."""
    records = own.records
    hits = np.zeros((len(records.settings.methods), len(records.settings.seeds), 2))
    seeds = {seed: place for place, seed in enumerate(records.settings.seeds)}
    drifting = "actual_0" in records.evidence.columns("clients")
    actual = np.zeros_like(hits)
    names = ["hits_0", "hits_1", *(["actual_0", "actual_1"] if drifting else [])]
    for batch in records.evidence.batches("clients", names, []):
        last = batch.column("round").to_numpy() == own.scope.last
        method = method_places(batch.column("method"), records.settings.methods)[last]
        seed = np.array([seeds[s] for s in batch.column("seed").to_numpy()[last].tolist()], dtype=np.int64)
        for c in (0, 1):
            np.add.at(hits[..., c], (method, seed), batch.column(f"hits_{c}").to_numpy()[last])
            if drifting:
                np.add.at(actual[..., c], (method, seed), batch.column(f"actual_{c}").to_numpy()[last])
    if not drifting:
        actual[:] = records.evidence.actual.sum(axis=0)
    return np.asarray(np.divide(hits, actual, out=np.full_like(hits, np.nan), where=actual > 0))
