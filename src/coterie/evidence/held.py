"""What is fixed of clients' test parts, whatever is trained: samples by class, or of other tasks what `core.tasks.FIXED` names."""

import numpy as np

from coterie.core.arrays import Array
from coterie.core.tasks import Task
from coterie.data.federation import Federation


def held_by_client(federation: Federation) -> dict[str, Array]:
    """Columns of the roster, a row for each client and, last, one for the server's own test set where there is one."""
    task, classes, central = federation.task, len(federation.classes), federation.central
    if task.counts_classes:
        owners = np.repeat(np.arange(len(federation)), federation.test.sizes)
        counts = np.bincount(owners * classes + federation.y[federation.test.indices], minlength=len(federation) * classes)
        table = counts.reshape(-1, classes)
        return _by_class(table if central is None else np.vstack([table, np.bincount(central[1], minlength=classes)]))
    parts = [federation.y[own] for own in federation.test] + ([] if central is None else [np.asarray(central[1])])
    samples = {"samples": np.array([len(part) for part in parts], dtype=np.int32)}
    if task.name == "multilabel":
        return samples | _by_class(np.array([part.sum(axis=0, dtype=np.int64) for part in parts]))
    if task.name == "next-token":
        return samples
    return samples | _targets(parts, task)


def _by_class(counts: Array) -> dict[str, Array]:
    return {f"actual_{c}": counts[:, c].astype(np.int32) for c in range(counts.shape[1])}


def _targets(parts: list[Array], task: Task) -> dict[str, Array]:
    """Of a regression's targets, in their own units: the mean, squares about it, and distances from the mean of all training targets."""
    away = [task.deviation * part.astype(np.float64) for part in parts]
    means = [float(own.mean()) if len(own) else 0.0 for own in away]
    return {
        "target_mean": task.mean + np.array(means),
        "target_squares": np.array([((own - mean) ** 2).sum() for own, mean in zip(away, means, strict=True)]),
        "target_distance": np.array([np.abs(own).sum() for own in away]),
    }
