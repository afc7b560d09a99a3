"""Metrics: from counts of right, predicted and actual classes to a number for each client, and the words for it.

The first functions are vectorised over clients and rounds. Counts are arrays (..., C) by class: `hits`, `predicted`, `actual`. What is not
defined is nan, never 0: the F1 of a class that was neither present nor predicted, the accuracy of a client without test samples.
`METRICS` is the table of metrics; `get_metric` finds the one that a user names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Array, Doubles, Ints
from coterie.core.specs import Registry, import_object
from coterie.core.tasks import Task, TaskName, compute_squared_credit, count_correct_labels

AgreementScore = Callable[
    [Sequence[tuple[Array, Array]]], Doubles
]  # (P,) of pairs of groupings of the same clients, -1 for one in no group


ClientReducer = Callable[[Doubles, Ints], Doubles]  # right answers (..., N) and test samples (N,) -> a score (...)


def accuracy(hits: Array, actual: Array) -> Doubles:
    """(...) share of right predictions."""
    return ratio(hits.sum(-1), actual.sum(-1))


def precision(hits: Array, predicted: Array, actual: Array) -> Doubles:
    """(...) precision averaged over the classes that are present or predicted; 0 for a present class never predicted."""
    return _class_mean(np.where(predicted > 0, ratio(hits, predicted), 0.0), predicted, actual)


def recall(hits: Array, predicted: Array, actual: Array) -> Doubles:
    """(...) recall averaged over the classes that are present or predicted; 0 for a predicted class that is absent."""
    return _class_mean(np.where(actual > 0, ratio(hits, actual), 0.0), predicted, actual)


def f1(hits: Array, predicted: Array, actual: Array) -> Doubles:
    """(...) F1 averaged over the classes that are present or predicted (scikit-learn's macro F1)."""
    both = predicted + actual
    return _class_mean(ratio(2 * hits, both), predicted, actual)


def ratio(top: Array, bottom: Array) -> Doubles:
    """top / bottom, nan where the bottom is 0."""
    out = np.full(np.broadcast(top, bottom).shape, np.nan)
    return np.asarray(np.divide(top, bottom, out=out, where=bottom > 0))


def mean(values: Doubles, axis: int = -1) -> Doubles:
    """The plain mean of what is defined (macro over clients); nan when nothing is."""
    defined = np.isfinite(values)
    return ratio(np.where(defined, values, 0.0).sum(axis), defined.sum(axis))


def worst(values: Doubles, axis: int = -1) -> Doubles:
    """The lowest defined value: the worst-served client."""
    lowest = np.where(np.isfinite(values), values, np.inf).min(axis)
    return np.where(np.isfinite(lowest), lowest, np.nan)


def bottom_decile(values: Doubles) -> Doubles:
    """The mean over the worst tenth of the clients (last axis; at least one client)."""
    ordered = np.sort(values, axis=-1)  # nan last
    defined = np.isfinite(values).sum(-1)
    keep = np.arange(values.shape[-1]) < np.maximum(np.ceil(defined / 10), 1)[..., None]
    return mean(np.where(keep, ordered, np.nan))


def _class_mean(values: Doubles, predicted: Array, actual: Array) -> Doubles:
    return mean(np.where(predicted + actual > 0, values, np.nan))


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

    def compare_levels(self, own: float, other: float, base: str) -> str:
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
    return ratio(credit, counts.samples)


def _accuracy(counts: Counts) -> Doubles:
    return _per_sample(counts.hits.sum(axis=-1), counts)


def _label_accuracy(counts: Counts) -> Doubles:
    right = count_correct_labels(counts.hits, counts.predicted, counts.actual, counts.samples)
    return _per_sample(right / max(counts.hits.shape[-1], 1), counts)


def _exact_match(counts: Counts) -> Doubles:
    return _per_sample(counts.sums["exact"], counts)


def _r2(counts: Counts) -> Doubles:
    return _per_sample(compute_squared_credit(counts.sums["squared_error"], counts.samples, counts.variance), counts)


def _explained_absolute_error(counts: Counts) -> Doubles:
    return _per_sample(compute_squared_credit(counts.sums["absolute_error"], counts.samples, counts.distance), counts)


def _log_likelihood(counts: Counts) -> Doubles:
    return _per_sample(counts.sums["log_likelihood"], counts)


def _balanced_accuracy(counts: Counts) -> Doubles:
    """Recall averaged over the classes that the client has; what is predicted does not change for whom it is defined."""
    return mean(ratio(counts.hits, counts.actual))


def _f1(counts: Counts) -> Doubles:
    return f1(counts.hits, counts.predicted, counts.actual)


CLASSIFICATION: tuple[TaskName, ...] = ("classification",)


METRICS: dict[str, Metric] = {
    found.measure.name: found
    for found in (
        Metric(ACCURACY, CLASSIFICATION, _accuracy),
        Metric(Measure("labels", "share of right labels", "one right label in 100"), ("multilabel",), _label_accuracy),
        Metric(
            Measure("exact", "exact-match accuracy", "one sample in 100 with all labels right", whole=True), ("multilabel",), _exact_match
        ),
        Metric(Measure("r2", "R2", "one hundredth of R2", share=False), ("regression",), _r2),
        Metric(
            Measure("mae", "explained absolute error", "one hundredth of the absolute error of always saying the mean", share=False),
            ("regression",),
            _explained_absolute_error,
        ),
        Metric(
            Measure("likelihood", "log-likelihood", "one hundredth of a nat a token, about 1 % of perplexity", share=False, nats=True),
            ("next-token",),
            _log_likelihood,
        ),
        Metric(
            Measure("balanced_accuracy", "balanced accuracy", "one hundredth of balanced accuracy", alike=True),
            CLASSIFICATION,
            _balanced_accuracy,
        ),
        Metric(Measure("f1", "F1", "one hundredth of F1", alike=True, share=False), ("classification", "multilabel"), _f1),
        Metric(
            Measure("auroc", "AUROC", "one hundredth of AUROC", alike=True, share=False),
            CLASSIFICATION,
            lambda counts: counts.auroc,
            two_classes=True,
        ),
    )
}


DEFAULT_METRICS: dict[TaskName, str] = {
    "classification": "accuracy",
    "multilabel": "labels",
    "regression": "r2",
    "next-token": "likelihood",
}  # each task's, unless another is chosen


MetricFunction = Callable[[Counts], Doubles]


INSTALLED_METRICS: Registry[Doubles] = Registry("metric", "coterie.metrics")  # functions of counts, as entry points


def get_metric(name: str | MetricFunction | None, task: TaskName, classes: int) -> Metric:
    """The metric for a task: its own, or the one chosen, refused where it is none of this task."""
    if name is None:
        return METRICS[DEFAULT_METRICS[task]]
    if not isinstance(name, str):
        return _wrap_metric(getattr(name, "__name__", "own metric"), name)
    if ":" in name:
        return _wrap_metric(name.rpartition(":")[2], import_object("Metric", name))
    if name not in METRICS and name in INSTALLED_METRICS:
        return _wrap_metric(name, INSTALLED_METRICS[name])
    fitting = [each for each, metric in METRICS.items() if task in metric.tasks]
    if name not in METRICS:
        raise UserError(f"There is no metric {name!r}: {suggest_names(name, [*fitting, *INSTALLED_METRICS])}")
    found = METRICS[name]
    if task not in found.tasks or (found.two_classes and classes != 2):
        why = f"is of two classes, and there are {classes}" if task in found.tasks else f"is not for a {Task(task)}"
        raise UserError(f"The metric {name!r} {why}: choose from {', '.join(each for each in fitting if each != name)}.")
    return found


def is_code(name: str | None) -> bool:
    """Whether a name stands for code that would be imported."""
    return name is not None and ":" in name


def _wrap_metric(name: str, function: MetricFunction) -> Metric:
    if not callable(function):
        raise UserError(f"The metric {name!r} is no function: let it take counts and give a value for each of their rows.")

    def checked(counts: Counts) -> Doubles:
        found = np.asarray(function(counts), dtype=np.float64)
        if found.shape != np.shape(counts.samples):
            raise UserError(f"The metric {name!r} gives values of shape {found.shape} for {len(counts.samples)} rows: give one a row.")
        return found

    words = name.replace("_", " ")
    measure = Measure(name, words, f"one hundredth of {words}", share=False, alike=True)
    return replace(METRICS["accuracy"], measure=measure, of=checked)
