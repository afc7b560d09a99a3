"""What is predicted: a class, a number, several labels at once, the next token of a text, or the time of an event.

All that depends on it is here; what is computed of times is in `survival`.

| task | a sample's label | a client's score is the mean over its test samples of |
| --- | --- | --- |
| classification | a class number | whether the answer is right |
| multilabel | 0 or 1 for each label | the share of the labels that are right |
| regression | a number | 1 - squared error / variance of all clients' test targets |
| next-token | none: the text itself | the mean log-likelihood of its tokens, in nats |
| survival | a time, and whether the event was seen | 1 - Brier score / that of the Kaplan-Meier curve of all training samples |

A score that is a mean over samples is what every interval, test and verdict is made of. Of a regression the mean over all clients, by their
samples, is R2 exactly: 1 - (sum of squared errors) / (sum of squares of the targets about their mean). A sample of texts is a block of
tokens, the same number in each, so that the mean over all clients is the mean over all tokens: perplexity is exp(-score) exactly. Of
survival times it is the index of prediction accuracy (Kattan and Gerds, 2018), with the integrated Brier score of all clients' samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from coterie.core.arrays import Array, Doubles
from coterie.core.asks import Evaluated
from coterie.core.survival import restore_times

TaskName = Literal["classification", "regression", "multilabel", "next-token", "survival"]
# What a client sums up over the samples that it is judged on, beside counts by class or label: columns of `Evaluated.sums`. Those of a
# regression are in the target's own units; squares are about the client's own mean, distances from the mean of all training targets.
SUMS: dict[TaskName, tuple[str, ...]] = {
    "classification": (),
    "multilabel": ("samples", "exact"),
    "regression": ("samples", "squared_error", "absolute_error", "target_mean", "target_squares", "target_distance"),
    "next-token": ("samples", "log_likelihood"),
    "survival": ("samples", "brier_error", "concordant_pairs", "expected_events", "target_brier", "target_pairs", "target_events"),
}
MIN_LOG_LIKELIHOOD = -80.0  # nats that a token's log-likelihood may be low: a model that has run away keeps a score
MAX_SQUARED_ERROR = 1e12  # variances that an error may be large: a model that has run away keeps a score
# Those that models do not change: they stand in the roster, once, unless the world drifts.
FIXED_SUMS = ("samples", *(name for names in SUMS.values() for name in names if name.startswith("target_")))


@dataclass(frozen=True)
class Task:
    """What is predicted. Of a regression the target is standardised for training; `mean` and `deviation` give it its own units back.

    Survival times are positions on the `grid`. The probability of not being censored before the end of each interval, and the share without
    an event there, are those of all training samples.
    """

    name: TaskName = "classification"
    mean: float = 0.0
    deviation: float = 1.0
    grid: tuple[float, ...] = ()  # (K + 1,) edges of intervals, from 0
    censoring: tuple[float, ...] = ()  # (K,)
    reference: tuple[float, ...] = ()  # (K,)

    def __str__(self) -> str:
        """In a sentence: this is a ..."""
        return f"{self.name} task" if self.name in ("multilabel", "next-token", "survival") else self.name

    @property
    def has_units(self) -> bool:
        """Whether labels are kept in other units than their own, which training data give."""
        return self.name in ("regression", "survival")

    def to_dict(self) -> dict[str, Any]:
        """What is known of it, for a file."""
        made = {"name": self.name, "mean": self.mean, "deviation": self.deviation}
        curves = {name: list(getattr(self, name)) for name in ("grid", "censoring", "reference")}
        return made | (curves if self.name == "survival" else {})

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Task":
        """From what `to_dict` gave.

        Raises:
            ValueError: Edges of intervals that do not rise from 0, or curves that are none of them.
        """
        curves = {name: tuple(stored.get(name, ())) for name in ("grid", "censoring", "reference")}
        made = cls(stored["name"], stored["mean"], stored["deviation"], **curves)
        edges = made.grid
        if made.name == "survival":
            rises = edges[:1] == (0.0,) and all(low < high < np.inf for low, high in pairwise(edges))
            shares = [share for name in ("censoring", "reference") for share in curves[name]]
            if not rises or {len(made.censoring), len(made.reference)} != {len(edges) - 1} or not all(0 <= each <= 1 for each in shares):
                raise ValueError("a grid of intervals that cannot be read")
        return made

    @property
    def counts_classes(self) -> bool:
        """Whether a sample has one class: what is counted by class, or asked class by class, is for such tasks only."""
        return self.name == "classification"

    @property
    def sums(self) -> tuple[str, ...]:
        return SUMS[self.name]

    def labels(self, outputs: int) -> int:
        """How many columns of counts a reply has, where the model has so many outputs."""
        return outputs if self.name in ("classification", "multilabel") else 0

    def in_units(self, values: Array) -> Doubles:
        """Predictions or targets of a regression in the target's own units; rows of times and events with the times in theirs."""
        if self.name == "survival":
            return np.stack([restore_times(values[:, 0], np.array(self.grid)), np.asarray(values[:, 1], dtype=np.float64)], axis=1)
        return np.asarray(values, dtype=np.float64) * self.deviation + self.mean


CLASSIFICATION = Task()


def compute_credits(reply: Evaluated, task: Task) -> Array:
    """(n,) what each client's samples are worth together: divided by their number, its score. Right answers, of a classification."""
    if task.name == "classification" or not len(reply):
        return np.asarray(reply.hits.sum(axis=1))
    if task.name == "multilabel":
        return np.asarray(count_correct_labels(reply.hits, reply.predicted, reply.actual, reply.sizes) / max(reply.hits.shape[1], 1))
    if task.name == "next-token":
        return np.asarray(reply.sums[:, 1])
    if task.name == "survival":
        samples, brier, reference = reply.sums[:, 0], reply.sums[:, 1], reply.sums[:, 4]
        return compute_squared_credit(brier, samples, float(reference.sum()) / max(float(samples.sum()), 1.0))
    samples, squared, _, means, squares, _ = reply.sums.T
    return compute_squared_credit(squared, samples, compute_pooled_variance(samples, means, squares))


def count_correct_labels(hits: Array, predicted: Array, actual: Array, samples: Array) -> Doubles:
    """(...) labels that are right, from counts (..., L): neither predicted in vain (predicted, not hit) nor missed (actual, not hit)."""
    wrong = predicted.sum(axis=-1) + actual.sum(axis=-1) - 2 * hits.sum(axis=-1)
    return np.asarray(samples * hits.shape[-1] - wrong, dtype=np.float64)


def compute_squared_credit(squared: Array, samples: Array, variance: Array | float) -> Doubles:
    """(...) samples less errors in units of what is to be explained. An error where nothing is, or that is no number, is the worst."""
    worst = MAX_SQUARED_ERROR * np.maximum(samples, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(squared == 0, 0.0, squared / variance)
    return np.asarray(samples - np.minimum(np.nan_to_num(scaled, nan=np.inf, posinf=np.inf), worst), dtype=np.float64)


def compute_pooled_variance(samples: Array, means: Array, squares: Array) -> float:
    """The variance of all clients' targets about their common mean, from what each reports of its own."""
    total = float(samples.sum())
    if total <= 0:
        return 0.0
    mean = float((samples * means).sum() / total)
    return float((squares + samples * (means - mean) ** 2).sum() / total)
