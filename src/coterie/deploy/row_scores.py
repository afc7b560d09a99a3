"""How well answers to rows with known labels do: one number a row, and their mean with what chance may make of it."""

from dataclasses import dataclass
from math import nan

import numpy as np

from coterie.core.arrays import Array, Doubles
from coterie.core.tasks import Task

WORDS = {"classification": "accuracy", "multilabel": "share of right labels", "regression": "absolute error"}


@dataclass(frozen=True)
class RowScores:
    """The mean over rows and its 95 % interval: Wilson's of right and wrong answers, Student's of other numbers."""

    mean: float
    low: float
    high: float
    usual: float  # the same of always saying what is usual: the commonest class or labels, the mean target; of texts, before training


NOTHING_JUDGED = RowScores(nan, nan, nan, nan)


def of_rows(said: Array, true: Array, task: Task) -> Doubles:
    """(m,) whether each answer is right, the share of its labels that are, or how far off it is in the target's own units."""
    if task.name == "regression":
        return np.abs(np.asarray(said, dtype=np.float64) - true)
    return np.asarray((said == true).mean(axis=1) if task.name == "multilabel" else said == true, dtype=np.float64)


def usual_of(known: Array, task: Task) -> Array:
    """What is usual among labels: the commonest class, each label's commonest mark, or the mean target."""
    if task.name == "regression":
        return np.asarray(known.mean())
    return np.asarray((known.mean(axis=0) >= 0.5).astype(np.int64) if task.name == "multilabel" else np.bincount(known).argmax())


def scores_of_rows(said: Array, true: Array, known: Array, task: Task) -> RowScores:
    """Answers to rows kept aside, beside what is usual among the labels `known` of others."""
    from scipy import stats

    if not len(true):
        return NOTHING_JUDGED
    values, plain = of_rows(said, true, task), of_rows(np.broadcast_to(usual_of(known, task), true.shape), true, task)
    mean = float(values.mean())
    if task.counts_classes:
        within = stats.binomtest(int(values.sum()), len(values)).proportion_ci(method="wilson")
        return RowScores(mean, within.low, within.high, float(plain.mean()))
    half = _half(values)
    most = 1.0 if task.name == "multilabel" else np.inf
    return RowScores(mean, max(mean - half, 0.0), min(mean + half, most), float(plain.mean()))


def scores_of_blocks(said: Doubles, before: Doubles) -> RowScores:
    """Log-likelihoods of blocks kept aside, beside those of the model before training."""
    mean, half = float(said.mean()), _half(said)
    return RowScores(mean, mean - half, mean + half, float(before.mean()))


def _half(values: Doubles) -> float:
    """Half the width of Student's interval of a mean."""
    from scipy import stats

    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else nan


def told_of_rows(said: Array, true: Array, task: Task) -> tuple[str, dict[str, float | int]]:
    """In words and by name, for rows whose labels were given."""
    values, rows = of_rows(said, true, task), len(true)
    if task.counts_classes:
        hits = int(values.sum())
        return f"{hits} of {rows} right, {100 * hits / rows:.1f} %", {"hits": hits, "accuracy": hits / rows}
    if task.name == "multilabel":
        exact = int((said == true).all(axis=1).sum())
        words = f"{100 * values.mean():.1f} % of the labels right, all of them in {exact} of {rows} rows"
        return words, {"labels": float(values.mean()), "exact": exact / rows}
    mae, squares = float(values.mean()), float((values**2).mean())
    spread = float(np.var(true))
    r2 = 1 - squares / spread if spread > 0 else nan
    words = f"mean absolute error {mae:.4g}, root mean squared error {squares**0.5:.4g}"
    return words + (f", R2 {r2:.3f} against the mean of these rows" if spread > 0 else ""), {"mae": mae, "rmse": squares**0.5, "r2": r2}
