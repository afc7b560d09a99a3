"""What a comparison rests on: the metric, in words and as a number for each client. A task has its own; another may be chosen.

A metric gives every client a value from what is known of its test part. Its `Measure` says how it is called, what a point of it is, and
whether a federation's value is the mean over samples (so that test samples can be spoken of) or over clients, each counting alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from coterie.analysis import metrics
from coterie.core.arrays import Array, Doubles
from coterie.core.tasks import TaskName, labels_right, squared_credit


@dataclass(frozen=True)
class Measure:
    """A metric in words."""

    name: str  # as it is chosen
    noun: str  # in a sentence: "accuracy", "R2"
    point: str  # what a point is
    share: bool = True  # a share, shown in percent; otherwise its level is shown as a plain number, and differences in hundredths
    alike: bool = False  # the mean over clients of each one's own value, and not over their samples
    whole: bool = False  # a sample is right or wrong: credits are whole numbers of samples
    nats: bool = False  # a mean log-likelihood, of which the perplexity is told, too

    @property
    def axis(self) -> str:
        """Over a column or beside an axis, where values are times 100."""
        return f"{self.noun}, %" if self.share else f"{self.noun}, hundredths"

    @property
    def title(self) -> str:
        """At the beginning of a line."""
        return f"{self.noun[0].upper()}{self.noun[1:]}"

    @property
    def times_100(self) -> str:
        """What numbers in a table are."""
        return f"{self.title} in {'percent' if self.share else 'hundredths'}"

    def level(self, value: float) -> str:
        """A value by itself."""
        told = f"{100 * value:.1f} %" if self.share else f"{value:.3f}"
        return f"{told} (perplexity {np.exp(-value):.4g})" if self.nats else told

    def short(self, value: float) -> str:
        """A value in brackets, for who decides."""
        return f"{100 * value:.1f} right in 100" if self is ACCURACY else f"{self.noun} {self.level(value)}"

    def standing(self, own: float, other: float, base: str) -> str:
        """A value beside another's, in a sentence without its end."""
        if self is ACCURACY:
            return f"{100 * own:.1f} of 100 answers are right, {100 * other:.1f} with {base}"
        return f"{self.title} is {self.level(own)}, {self.level(other)} with {base}"

    def more(self, points: str) -> str:
        """How much better, in words."""
        return f"{points} more right answers in 100" if self is ACCURACY else f"{points} points more of {self.noun}"


ACCURACY = Measure("accuracy", "accuracy", "one right answer in 100", whole=True)


@dataclass(frozen=True)
class Counts:
    """What is known of clients' test parts, a row for each client of a round: what metrics are made of."""

    hits: Array  # (rows, C) right predictions by class; of several labels, those rightly set
    predicted: Array  # (rows, C)
    actual: Array  # (rows, C)
    samples: Array  # (rows,)
    auroc: Doubles  # (rows,) of two classes; nan where there is none
    sums: Mapping[str, Array] = field(default_factory=dict)  # (rows,) each, by name: see `core.tasks.SUMS`
    variance: Array | float = np.nan  # (rows,) of all clients' test targets in that round, about their mean
    distance: Array | float = np.nan  # (rows,) their mean distance from the mean of all training targets


@dataclass(frozen=True)
class Metric:
    """A value for each row of counts, nan where it is not defined, and for which tasks it is."""

    measure: Measure
    tasks: tuple[TaskName, ...]
    of: Callable[[Counts], Doubles]
    two_classes: bool = False


def _per_sample(credit: Array, counts: Counts) -> Doubles:
    return metrics.ratio(credit, counts.samples)


def _accuracy(counts: Counts) -> Doubles:
    return _per_sample(counts.hits.sum(axis=-1), counts)


def _labels(counts: Counts) -> Doubles:
    right = labels_right(counts.hits, counts.predicted, counts.actual, counts.samples)
    return _per_sample(right / max(counts.hits.shape[-1], 1), counts)


def _exact(counts: Counts) -> Doubles:
    return _per_sample(counts.sums["exact"], counts)


def _r2(counts: Counts) -> Doubles:
    return _per_sample(squared_credit(counts.sums["squared_error"], counts.samples, counts.variance), counts)


def _absolute(counts: Counts) -> Doubles:
    return _per_sample(squared_credit(counts.sums["absolute_error"], counts.samples, counts.distance), counts)


def _likelihood(counts: Counts) -> Doubles:
    return _per_sample(counts.sums["log_likelihood"], counts)


def _balanced(counts: Counts) -> Doubles:
    """Recall averaged over the classes that the client has; what is predicted does not change for whom it is defined."""
    return metrics.mean(metrics.ratio(counts.hits, counts.actual))


def _f1(counts: Counts) -> Doubles:
    return metrics.f1(counts.hits, counts.predicted, counts.actual)


CLASSES: tuple[TaskName, ...] = ("classification",)
METRICS: dict[str, Metric] = {
    found.measure.name: found
    for found in (
        Metric(ACCURACY, CLASSES, _accuracy),
        Metric(Measure("labels", "share of right labels", "one right label in 100"), ("multilabel",), _labels),
        Metric(Measure("exact", "exact-match accuracy", "one sample in 100 with all labels right", whole=True), ("multilabel",), _exact),
        Metric(Measure("r2", "R2", "one hundredth of R2", share=False), ("regression",), _r2),
        Metric(
            Measure("mae", "explained absolute error", "one hundredth of the absolute error of always saying the mean", share=False),
            ("regression",),
            _absolute,
        ),
        Metric(
            Measure("likelihood", "log-likelihood", "one hundredth of a nat a token, about 1 % of perplexity", share=False, nats=True),
            ("next-token",),
            _likelihood,
        ),
        Metric(Measure("balanced_accuracy", "balanced accuracy", "one hundredth of balanced accuracy", alike=True), CLASSES, _balanced),
        Metric(Measure("f1", "F1", "one hundredth of F1", alike=True, share=False), ("classification", "multilabel"), _f1),
        Metric(
            Measure("auroc", "AUROC", "one hundredth of AUROC", alike=True, share=False),
            CLASSES,
            lambda counts: counts.auroc,
            two_classes=True,
        ),
    )
}
OWN: dict[TaskName, str] = {
    "classification": "accuracy",
    "multilabel": "labels",
    "regression": "r2",
    "next-token": "likelihood",
}  # each task's, unless another is chosen
