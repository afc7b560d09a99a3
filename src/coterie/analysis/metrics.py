"""Metrics: from counts of right, predicted and actual classes to a number for each client, agreement of groupings, and the names of scores.

The first functions are vectorised over clients and rounds. Counts are arrays (..., C) by class: `hits`, `predicted`, `actual`. What is not
defined is nan, never 0: the F1 of a class that was neither present nor predicted, the accuracy of a client without test samples.
`METRICS` is the table of metrics, `SCORES` that of scores: a new score is a line there, and a number in `scores` (of a curve) or a property
of `records.Records` (of every round).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from coterie._util.errors import UserError, suggest_names
from coterie.core.arrays import Array, Doubles, Ints
from coterie.core.specs import Registry, import_object
from coterie.core.tasks import Task, TaskName, compute_squared_credit, count_correct_labels

# of pairs of groupings of the same clients, -1 for a client in no group -> (P,) scores
AgreementScore = Callable[[Sequence[tuple[Array, Array]]], Doubles]
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
class Counts:
    """What is known of clients' test parts, a row for each client of a round: what metrics are made of."""

    hits: Array  # (rows, C) right predictions by class; of several labels, those rightly set
    predicted: Array  # (rows, C)
    actual: Array  # (rows, C)
    samples: Array  # (rows,)
    auroc: Doubles  # (rows,) of two classes; nan where there is none
    sums: Mapping[str, Array] = field(default_factory=dict)  # (rows,) each, by name: see `core.tasks.SUMS`
    variance: Array | float = (
        np.nan
    )  # (rows,) of all clients' test targets in that round, about their mean; or the Kaplan-Meier Brier score
    distance: Array | float = np.nan  # (rows,) their mean distance from the mean of all training targets


MetricFunction = Callable[[Counts], Doubles]


@dataclass(frozen=True)
class Metric:
    """A value for each row of counts, for which tasks it is defined, and how it is written."""

    name: str  # as it is chosen
    noun: str  # in a sentence: "accuracy", "R2"
    point_text: str  # what a point is
    tasks: tuple[TaskName, ...]
    compute: MetricFunction  # nan where it is not defined
    is_share: bool = True  # written in percent; otherwise its level is a plain number, and differences are in hundredths
    is_macro: bool = False  # the mean over clients of each one's own value, and not over their samples
    is_count: bool = False  # a sample is right or wrong: credits are whole numbers of samples
    is_log_likelihood: bool = False  # written with the perplexity
    two_classes: bool = False  # defined for two classes only

    @property
    def axis(self) -> str:
        """Over a column or beside an axis, where values are times 100."""
        return f"{self.noun}, %" if self.is_share else f"{self.noun}, hundredths"

    @property
    def title(self) -> str:
        """At the beginning of a line."""
        return f"{self.noun[0].upper()}{self.noun[1:]}"

    @property
    def times_100(self) -> str:
        """What numbers in a table are."""
        return f"{self.title} in {'percent' if self.is_share else 'hundredths'}"

    def format_level(self, value: float) -> str:
        """A value by itself: "80.4 %", "0.312"."""
        text = f"{100 * value:.1f} %" if self.is_share else f"{value:.3f}"
        return f"{text} (perplexity {np.exp(-value):.4g})" if self.is_log_likelihood else text

    def format_score(self, value: float) -> str:
        """A value with the metric's name: "80.4 % accuracy", "R2 0.312"."""
        return f"{self.format_level(value)} {self.noun}" if self.is_share else f"{self.noun} {self.format_level(value)}"


CLASSIFICATION: tuple[TaskName, ...] = ("classification",)


def _label_accuracy(counts: Counts) -> Doubles:
    right = count_correct_labels(counts.hits, counts.predicted, counts.actual, counts.samples)
    return ratio(right / max(counts.hits.shape[-1], 1), counts.samples)


def _accuracy(counts: Counts) -> Doubles:
    return ratio(counts.hits.sum(axis=-1), counts.samples)


def _exact_match(counts: Counts) -> Doubles:
    return ratio(counts.sums["exact"], counts.samples)


def _r2(counts: Counts) -> Doubles:
    return ratio(compute_squared_credit(counts.sums["squared_error"], counts.samples, counts.variance), counts.samples)


def _explained_absolute_error(counts: Counts) -> Doubles:
    return ratio(compute_squared_credit(counts.sums["absolute_error"], counts.samples, counts.distance), counts.samples)


def _log_likelihood(counts: Counts) -> Doubles:
    return ratio(counts.sums["log_likelihood"], counts.samples)


def _prediction_accuracy(counts: Counts) -> Doubles:
    return ratio(compute_squared_credit(counts.sums["brier_error"], counts.samples, counts.variance), counts.samples)


def _concordance(counts: Counts) -> Doubles:
    return ratio(counts.sums["concordant_pairs"], counts.sums["target_pairs"])


def _f1(counts: Counts) -> Doubles:
    return f1(counts.hits, counts.predicted, counts.actual)


def _auroc(counts: Counts) -> Doubles:
    return counts.auroc


def _balanced_accuracy(counts: Counts) -> Doubles:
    """Recall averaged over the classes that the client has; predictions do not change for which clients it is defined."""
    return mean(ratio(counts.hits, counts.actual))


ACCURACY = Metric(
    "accuracy",
    "accuracy",
    "one percentage point of accuracy: one more right answer in 100",
    CLASSIFICATION,
    _accuracy,
    is_count=True,
)
METRICS: dict[str, Metric] = {
    found.name: found
    for found in (
        ACCURACY,
        Metric("labels", "share of right labels", "one right label in 100", ("multilabel",), _label_accuracy),
        Metric("exact", "exact-match accuracy", "one sample in 100 with all labels right", ("multilabel",), _exact_match, is_count=True),
        Metric("r2", "R2", "one hundredth of R2", ("regression",), _r2, is_share=False),
        Metric(
            "mae",
            "explained absolute error",
            "one hundredth of the absolute error of always predicting the mean",
            ("regression",),
            _explained_absolute_error,
            is_share=False,
        ),
        Metric(
            "likelihood",
            "log-likelihood",
            "one hundredth of a nat a token, about 1 % of perplexity",
            ("next-token",),
            _log_likelihood,
            is_share=False,
            is_log_likelihood=True,
        ),
        Metric(
            "ipa",
            "index of prediction accuracy",
            "one hundredth of the Brier score of the Kaplan-Meier curve of all training samples",
            ("survival",),
            _prediction_accuracy,
            is_share=False,
        ),
        Metric(
            "concordance",
            "concordance index",
            "one more pair in 100 in the right order",
            ("survival",),
            _concordance,
            is_macro=True,
            is_share=False,
        ),
        Metric(
            "balanced_accuracy",
            "balanced accuracy",
            "one hundredth of balanced accuracy",
            CLASSIFICATION,
            _balanced_accuracy,
            is_macro=True,
        ),
        Metric("f1", "F1", "one hundredth of F1", ("classification", "multilabel"), _f1, is_macro=True, is_share=False),
        Metric("auroc", "AUROC", "one hundredth of AUROC", CLASSIFICATION, _auroc, is_macro=True, is_share=False, two_classes=True),
    )
}
DEFAULT_METRICS: dict[TaskName, str] = {
    "classification": "accuracy",
    "multilabel": "labels",
    "regression": "r2",
    "next-token": "likelihood",
    "survival": "ipa",
}  # by task
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
    return Metric(name, words, f"one hundredth of {words}", CLASSIFICATION, checked, is_share=False, is_macro=True)


Headline = Literal["final", "last10", "mean", "validated", "max"]  # what a comparison may rest on
Curve = Literal["final", "last10", "mean", "max", "median", "change"]  # read from a curve of accuracies
# known of every round; the score is that of the last
ByRound = Literal["macro", "worst", "bottom_decile", "loss", "auroc", "mae", "rmse", "perplexity", "concordance", "brier", "calibration"]
Score = Literal[Curve, ByRound, "validated", "ari", "unseen"]


@dataclass(frozen=True)
class ScoreName:
    """One score in words."""

    title: str  # over a column
    words: str = ""  # in a sentence; {measure} is the metric's noun, {rounds} are those averaged
    percent: bool = True  # of the metric, and written times 100 as that is
    compared: bool = False  # reported by every comparison
    tabled: bool = False  # in the table of a result
    printed: bool = False  # on the terminal, after a run


SCORES: dict[Score, ScoreName] = {
    "final": ScoreName("final", "{measure} after the last round", compared=True, tabled=True, printed=True),
    "last10": ScoreName("last 10", "mean {measure} of rounds {rounds}", compared=True, tabled=True, printed=True),
    "mean": ScoreName("mean", "mean {measure} over the rounds", compared=True, tabled=True, printed=True),
    "validated": ScoreName("validated", "{measure} in the round that validation chooses", compared=True),
    "max": ScoreName("max", "highest {measure} of any round (chosen on test data)"),  # only when asked for
    "median": ScoreName("median", "median {measure} over the rounds"),
    "change": ScoreName("change", "mean change of {measure} from round to round"),
    "macro": ScoreName("macro", "mean over clients of their {measure} after the last round", tabled=True),
    "worst": ScoreName("worst", "{measure} of the client served worst after the last round", tabled=True, printed=True),
    "bottom_decile": ScoreName("bottom decile", "mean {measure} of the tenth of clients served worst after the last round"),
    "loss": ScoreName("loss", "loss after the last round", percent=False, tabled=True),
    "auroc": ScoreName("AUROC", "area under the ROC curve after the last round", tabled=True, printed=True),
    "mae": ScoreName("MAE", "mean absolute error after the last round", percent=False, tabled=True, printed=True),
    "rmse": ScoreName("RMSE", "root mean squared error after the last round", percent=False, tabled=True, printed=True),
    "perplexity": ScoreName("perplexity", "perplexity after the last round", percent=False, tabled=True, printed=True),
    "concordance": ScoreName(
        "concordance", "concordance index (pairs within clients) after the last round", percent=False, tabled=True, printed=True
    ),
    "brier": ScoreName("Brier", "integrated Brier score after the last round", percent=False, tabled=True, printed=True),
    "calibration": ScoreName(
        "calibration", "events for each expected event after the last round", percent=False, tabled=True, printed=True
    ),
    "unseen": ScoreName("unseen", "{measure} after the last round of clients that took no part", tabled=True, printed=True),
    "ari": ScoreName("ARI", "adjusted Rand index with the true groups", percent=False, tabled=True, printed=True),
}
COMPARED: tuple[Score, ...] = tuple(name for name, score in SCORES.items() if score.compared)
TABLED: tuple[Score, ...] = tuple(name for name, score in SCORES.items() if score.tabled)
BATCH_CELLS = 1 << 22  # clients, or cells of tables, that are counted at once


def adjusted_rand_scores(pairs: Sequence[tuple[Array, Array]]) -> Doubles:
    """(P,) the adjusted Rand index of each pair of groupings (Hubert and Arabie, 1985), from tables of counts of many pairs at once.

    It equals scikit-learn's, which spends a hundred times as long on checking its input: too long for all rounds of a large study.
    """
    found = []
    for table in iter_contingency_tables(pairs):
        together, in_one, in_two = (_count_pairs(counts) for counts in (table, table.sum(axis=2), table.sum(axis=1)))
        n = table.sum(axis=(1, 2))
        expected, most = in_one * in_two / np.maximum(n * (n - 1) / 2, 1), (in_one + in_two) / 2
        index = np.divide(together - expected, most - expected, out=np.ones(len(n)), where=most != expected)
        found.append(np.where(n > 0, index, np.nan))
    return np.concatenate(found) if found else np.zeros(0)


def normalized_mutual_info_scores(pairs: Sequence[tuple[Array, Array]]) -> Doubles:
    """(P,) the mutual information of each pair of groupings as a share of the mean of their entropies, as scikit-learn has it."""
    found = []
    for table in iter_contingency_tables(pairs):
        n = table.sum(axis=(1, 2))
        share = table / np.maximum(n, 1)[:, None, None]
        one, two, both = (_entropy(part) for part in (share.sum(axis=2), share.sum(axis=1), share))
        mutual, mean = np.maximum(one + two - both, 0.0), (one + two) / 2
        alone = (np.count_nonzero(share.sum(axis=2), axis=1) == 1) & (np.count_nonzero(share.sum(axis=1), axis=1) == 1)
        scaled = np.divide(mutual, mean, out=np.zeros(len(n)), where=mean > 0)
        found.append(np.where(n > 0, np.where(alone, 1.0, scaled), np.nan))
    return np.concatenate(found) if found else np.zeros(0)


def iter_contingency_tables(pairs: Sequence[tuple[Array, Array]]) -> Iterator[Ints]:
    """(P', A, B) how many clients are in each group of the one and each of the other, of those in both; some of the pairs at a time."""
    begin = 0
    while begin < len(pairs):
        end, rows, a, b = begin, 0, 1, 1
        while end < len(pairs):
            one, two = pairs[end]
            rows, a, b = rows + len(one), max(a, int(one.max(initial=0)) + 1), max(b, int(two.max(initial=0)) + 1)
            if end > begin and max(rows, (end + 1 - begin) * a * b) > BATCH_CELLS:
                break
            end += 1
        yield _contingency_table(pairs[begin:end])
        begin = end


def _contingency_table(pairs: Sequence[tuple[Array, Array]]) -> Ints:
    both = [(one >= 0) & (two >= 0) for one, two in pairs]
    a, b = (np.concatenate([pair[which][own] for pair, own in zip(pairs, both, strict=True)]).astype(np.int64) for which in (0, 1))
    place = np.repeat(np.arange(len(pairs)), [int(own.sum()) for own in both])
    shape = len(pairs), int(a.max(initial=0)) + 1, int(b.max(initial=0)) + 1
    return np.bincount((place * shape[1] + a) * shape[2] + b, minlength=int(np.prod(shape))).reshape(shape)


def _count_pairs(counts: Ints) -> Doubles:
    """(P,) in how many pairs of clients both are in one cell."""
    return np.asarray((counts * (counts - 1) // 2).reshape(len(counts), -1).sum(axis=1), dtype=np.float64)


def _entropy(share: Doubles) -> Doubles:
    flat = share.reshape(len(share), -1)
    return -np.asarray((flat * np.log(np.where(flat > 0, flat, 1.0))).sum(axis=1))
