"""Evaluation: predictions turned into counts, losses and errors for each client. Every engine uses this; only `predict` differs.

Models that answer for equally many samples are stacked. A slice of a stacked product is the product of that model alone, of the same
shape, so the bits are those of one model at a time. Tallies are filled block by block: classes, errors of numbers, several labels per
sample, tokens of texts, survival times.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

import numpy as np

from coterie.core.arrays import Array, Bools, Doubles, Floats, Ids, Ints
from coterie.core.asks import AskErrors, Errors, Evaluate, Evaluated, Losses, LossTable
from coterie.core.serving import COMBINED, Serving
from coterie.core.survival import (
    BRIER_LIMIT,
    EVENTS_LIMIT,
    compute_brier_scores,
    compute_likelihoods,
    compute_mean_times,
    count_concordant_pairs,
    count_expected_events,
    find_exits,
)
from coterie.core.tasks import MIN_LOG_LIKELIHOOD, Task
from coterie.core.vectors import on_device
from coterie.data.federation import Federation, Parts

Classified = tuple[Ints, Doubles]  # the most likely class (m,) and losses (m,)
TOGETHER = 1 << 18  # samples of many models that are evaluated together
STACKED = 1 << 22  # numbers of models and samples in a stack: what a cache nearly holds


class EachEvaluator(Protocol):
    """Evaluates many models (k, d) on samples (m,), of which each answers for the next so many (k,)."""

    many: ClassVar[int]  # models from which on they are asked together

    @property
    def numbers(self) -> int:
        """Numbers of models that it takes at a time."""

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,)."""

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> Classified:
        """The most likely class (m,) and losses (m,)."""


def group_by_model(rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Every model that serves clients, and which: by one sort, where a scan for each model would take the square of the clients."""
    order = np.argsort(rows, kind="stable")
    for members in split_runs(order, rows):
        yield int(rows[members[0]]), members


def iterate_blocks(rows: Ints, sizes: Ints, parameters: int, numbers: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Models, the clients they serve in their order, and how many samples each answers for: so many models at a time that neither their
    samples nor their own numbers are too many. Clients with a negative row are left out."""
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= 0]
    begins = np.flatnonzero(np.diff(rows[order], prepend=-1))
    counts = np.add.reduceat(sizes[order], begins) if len(begins) else begins
    ends, most, at = np.cumsum(counts), max(1, numbers // parameters), 0
    borders = np.append(begins, len(order))
    while at < len(begins):
        fits = int(np.searchsorted(ends, ends[at] - counts[at] + TOGETHER, side="right"))
        stop = min(max(fits, at + 1), at + most)
        yield rows[order[begins[at:stop]]], order[borders[at] : borders[stop]], counts[at:stop]
        at = stop


def iterate_stacks(sizes: Ints, parameters: int, inputs: int, most: int = STACKED) -> Iterator[Ints]:
    """The numbers of models in stacks: of equally many samples each, at least one, and no more than so many numbers."""
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    for alike in split_runs(order, sizes):
        together = max(1, most // (parameters + inputs * int(sizes[alike[0]])))
        yield from (alike[at : at + together] for at in range(0, len(alike), together))


def split_runs(order: Ints, values: Ints) -> list[Ints]:
    """An order in which equal values stand side by side, cut where they change."""
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(order) else []


def combine_scores(
    serving: Serving, members: Ints, sizes: Ints | None, stacked: Doubles, y: Array, task: Task
) -> tuple[Ints, Doubles, Doubles, Array]:
    """The owner of each sample, its scores, its loss and its label.

    The samples of these rows of the serving, so many each, stand one after the other in `stacked` (k, m, C) and `y`; without sizes every
    row has them all to itself.
    """
    each = getattr(serving.combiner, "combine_each", None)
    together: Doubles | None = None if each is None or sizes is None else each(stacked, sizes)
    if together is not None and sizes is not None:
        return np.repeat(members, sizes), together, compute_score_losses(together, y, task), y
    assert serving.combiner is not None
    answers, labels, owners = [], [], []
    for i, part in _iterate_parts(members, sizes):
        scores = serving.combiner.combine(stacked[:, part], int(serving.places[i]))
        labels.append(y[part])
        answers.append((scores, compute_score_losses(scores, labels[-1], task)))  # sums over classes take the order in which scores lie
        owners.append(np.full(len(scores), i))
    found, losses = (np.concatenate(column) for column in zip(*answers, strict=True))
    return np.concatenate(owners), found, losses, np.concatenate(labels)


def _iterate_parts(members: Ints, sizes: Ints | None) -> Iterator[tuple[int, slice]]:
    if sizes is None:
        yield from ((int(i), slice(None)) for i in members)
        return
    ends = np.cumsum(sizes)
    for i, begin, end in zip(members, ends - sizes, ends, strict=True):
        if begin < end:
            yield int(i), slice(int(begin), int(end))


def compute_score_losses(scores: Doubles, y: Array, task: Task) -> Doubles:
    """(m,) the loss of each sample, from what was predicted of it."""
    if task.name == "regression":
        return np.asarray((scores[:, 0] - y) ** 2)
    if task.name == "next-token":
        return np.asarray(-np.log(np.maximum(scores, np.exp(MIN_LOG_LIKELIHOOD))).mean(axis=1))
    if task.name == "survival":
        return np.asarray(-np.log(np.maximum(compute_likelihoods(scores, y), 1e-12)))
    if task.name == "multilabel":
        chances = np.where(y > 0, scores, 1 - scores)
        return np.asarray(-np.log(np.maximum(chances, 1e-12)).mean(axis=1))
    likelihood = np.take_along_axis(scores, y[:, None], 1)[:, 0] / np.maximum(scores.sum(1), 1e-300)
    return np.asarray(-np.log(np.maximum(likelihood, 1e-12)))


# (model, sample numbers or None for the central test set) -> probabilities or numbers (m, C), losses (m,)
Predict = Callable[[Floats, Ints | None], tuple[Doubles, Doubles]]
# the same -> the most likely class (m,) and losses (m,): where predictions are made on a device, only this need leave it
Classify = Callable[[Floats, Ints | None], Classified]
SERVED = -2  # among rows: served already


def evaluate(
    ask: Evaluate,
    federation: Federation,
    predict: Predict,
    parts: Parts | None,
    judge: Classify | None = None,
    each: EachEvaluator | None = None,
) -> Evaluated:
    """Counts, loss and AUROC for each row of the serving, one forward pass for all the clients that a model serves.

    Args:
        ask: The question.
        federation: The data.
        predict: Probabilities or numbers, and losses, of one model.
        parts: The samples that each client is evaluated on; None is the central test set, which every row has to itself.
        judge: The most likely classes and losses of one model: used where probabilities do not matter. They matter of two classes, whose
            order of samples is scored, and for combined models.
        each: Evaluates many models that serve a client or a few in few calls.
    """
    serving, n, task = ask.serving, len(ask.serving.clients), federation.task
    tally = make_tally(n, task, len(federation.classes))
    tally.limit = ask.loss_limit
    add: Any = tally.add  # scores or classes, as `answer` gives them
    answer: Any = predict
    answer_each: Any = None if each is None else each.predict
    if judge is not None and len(federation.classes) > 2 and isinstance(tally, ClassTally):
        add, answer, answer_each = tally.count, judge, None if each is None else each.judge
    if ask.answers and parts is not None:
        tally.keep_answers(parts.sizes[serving.clients])
    rows = serving.rows
    if each is not None and answer_each is not None and parts is not None and len(np.unique(rows)) >= each.many:
        for numbers, members, counts in iterate_blocks(rows, parts.sizes[serving.clients], serving.models.shape[1], each.numbers):
            samples, y = _get_samples(ask, federation, parts, members)
            if samples is not None and len(samples):
                owners = np.repeat(members, parts.sizes[serving.clients[members]])
                add(owners, *answer_each(serving.models[numbers], samples, counts), y)
        rows = np.where(rows == COMBINED, rows, SERVED)
    for row, members in group_by_model(rows):
        if row == SERVED:
            continue
        samples, y = _get_samples(ask, federation, parts, members)
        sizes = None if parts is None else parts.sizes[serving.clients[members]]
        if row == COMBINED:
            if len(y):
                stacked = np.stack([predict(model, samples)[0] for model in serving.models])  # (k, m, C), once for all combined rows
                tally.add(*combine_scores(serving, members, sizes, stacked, y, task))
            continue
        scores, losses = answer(_take_model(serving.models, row), samples)
        for owners in [np.full(len(y), i) for i in members] if sizes is None else [np.repeat(members, sizes)]:
            add(owners, scores, losses, y)
    return tally.result(ask)


def find_only_model(ask: Evaluate, federation: Federation, parts: Parts | None) -> Floats | None:
    """The one model that is evaluated on the samples of all the clients or, for one row, on the central set; None where there are
    several, or probabilities matter."""
    rows = ask.serving.rows
    judged = len(federation.classes) > 2 and federation.task.counts_classes
    there = parts is not None or (federation.central is not None and len(rows) == 1)
    plain = judged and there and ask.serving.neighbours is None
    alone = plain and len(rows) > 0 and rows[0] != COMBINED and bool((rows == rows[0]).all())
    return _take_model(ask.serving.models, int(rows[0])) if alone else None


def _take_model(models: Floats, row: int) -> Floats:
    """(d,) one of them; of those on a device (1, d) that stays there."""
    return models[row] if on_device(models) is None else models[row : row + 1]


def _get_samples(ask: Evaluate, federation: Federation, parts: Parts | None, members: Ints) -> tuple[Ints | None, Array]:
    """Sample numbers (None: the central set) and labels of these rows of the serving, client after client."""
    if parts is None:
        if federation.central is None:
            raise ValueError(f"federation {federation.name} has no central test set")
        return None, federation.central[1]
    samples = parts.joined(ask.serving.clients[members])
    return samples, federation.y[samples]


ComputeLosses = Callable[[Floats, Ints], Doubles]  # (models (k, d), samples) -> losses (k, m): where no probabilities are wanted


def compute_loss_table(ask: Losses, parts: Parts, predict: Predict, losses_of: ComputeLosses | None = None) -> LossTable:
    """The mean loss of every model on every client's part; by `losses_of` where an engine computes losses alone."""
    samples, owners = _concat_samples(parts, ask.clients)
    found = losses_of(ask.models, samples) if losses_of is not None else (predict(model, samples)[1] for model in ask.models)
    losses = np.stack(
        [_compute_client_means(clip_losses(of_model, ask.loss_limit), owners, len(ask.clients)) for of_model in found], axis=1
    )
    return LossTable(ask.clients, losses, parts.sizes[ask.clients])


def compute_squared_errors(predicted: Doubles, actual: Array, task: Task) -> tuple[Doubles, Doubles]:
    """(m,) twice: squared errors of the predicted class numbers, and of the probabilities (FedSim, Eq. 15-16).

    A regression predicts numbers, so both are its squared error; several labels are each predicted or not; of texts it is the probability
    that is missing to a token, of survival times the Brier score.
    """
    if task.name == "survival":
        found = compute_brier_scores(predicted, actual, np.array(task.grid), np.array(task.censoring))
        return found, found
    if task.name == "next-token":
        missing = ((1 - predicted) ** 2.0).mean(1)
        return missing, missing
    if task.name == "regression":
        found = (predicted[:, 0] - actual) ** 2.0
        return found, found
    if task.name == "multilabel":
        return (((predicted >= THRESHOLD) != (actual > 0)) * 1.0).mean(1), ((predicted - actual) ** 2.0).mean(1)
    return (predicted.argmax(1) - actual) ** 2.0, ((predicted - np.eye(predicted.shape[1])[actual]) ** 2.0).mean(1)


def compute_errors(ask: AskErrors, parts: Parts, y: Array, predict: Predict, task: Task) -> Errors:
    """Root mean squared errors of every model on every client's training part (FedSim, Eq. 15-16)."""
    samples, owners = _concat_samples(parts, ask.clients)
    actual = y[samples]
    labels, chances = [], []
    for model in ask.models:
        label, chance = compute_squared_errors(predict(model, samples)[0], actual, task)
        labels.append(_compute_client_means(label, owners, len(ask.clients)))
        chances.append(_compute_client_means(chance, owners, len(ask.clients)))
    table = [np.sqrt(np.stack(columns, axis=1)) for columns in (labels, chances)]
    return Errors(ask.clients, table[0], table[1], parts.sizes[ask.clients])


def _concat_samples(parts: Parts, clients: Ids) -> tuple[Ints, Ints]:
    """The sample numbers of these clients one after the other, and for each sample the row of its owner."""
    return parts.joined(clients), np.repeat(np.arange(len(clients)), parts.sizes[clients])


def _compute_client_means(values: Doubles, owners: Ints, n: int) -> Doubles:
    sums = np.bincount(owners, weights=values, minlength=n)
    return np.asarray(sums / np.bincount(owners, minlength=n))


THRESHOLD = 0.5  # the probability from which on a label is predicted


def clip_losses(losses: Doubles, limit: float | None) -> Doubles:
    """Losses of samples, each cut to the limit; one that is no number counts as the limit."""
    return losses if limit is None else np.fmin(np.maximum(losses, 0.0), limit)


def _place_answers(answers: Array | None, owners: Ints, values: Array) -> None:
    """Keep a number for each sample of a block in its owner's row, if answers are kept: a client's samples lie side by side."""
    if answers is not None and len(owners):
        begins = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
        answers[owners, np.arange(len(owners)) - np.repeat(begins, np.diff(np.r_[begins, len(owners)]))] = values


class SumTally(ABC):
    """Sums by client, the number of samples first."""

    def __init__(self, n: int, task: Task, labels: int) -> None:
        self.n, self.task = n, task
        self.hits, self.predicted, self.actual = np.zeros((3, n, labels), dtype=np.int64)
        self.sums = np.zeros((n, len(task.sums)))
        self.loss = np.zeros(n)
        self.answers: Floats | None = None
        self.limit: float | None = None  # of one sample's loss

    def keep_answers(self, sizes: Ints) -> None:
        """Keep a number for each of a client's samples, in the order of its part: a client's are given in one block."""
        self.answers = np.zeros((self.n, int(sizes.max(initial=0))), dtype=np.float32)

    def add(self, owners: Ints, scores: Doubles, losses: Doubles, y: Array) -> None:
        """Add a block of samples: the owner of each, the model's scores, its loss and the true label."""
        self.loss += self._by_owner(owners, clip_losses(losses, self.limit))
        self.sums[:, 0] += self._by_owner(owners, np.ones(len(owners)))
        _place_answers(self.answers, owners, self.take(owners, scores, y))

    @abstractmethod
    def take(self, owners: Ints, scores: Doubles, y: Array) -> Doubles:
        """Sum up a block; returns the number that is kept of each of its samples."""

    def result(self, ask: Evaluate) -> Evaluated:
        sizes = self.sums[:, 0]
        loss = np.divide(self.loss, sizes, out=np.full(self.n, np.nan), where=sizes > 0)
        counts = self.hits, self.predicted, self.actual
        kept = None if self.answers is None else self.answers.view(np.uint8).reshape(self.n, -1)
        return Evaluated(ask.serving.clients, *counts, loss, np.full(self.n, np.nan), sums=self.sums, answers=kept)

    def _by_owner(self, owners: Ints, values: Doubles) -> Doubles:
        return np.asarray(np.bincount(owners, weights=values, minlength=self.n), dtype=np.float64)


class ErrorTally(SumTally):
    """Of a regression: errors in the target's own units; of each sample its error is kept."""

    def take(self, owners: Ints, scores: Doubles, y: Array) -> Doubles:
        unit = self.task.deviation
        with np.errstate(over="ignore", invalid="ignore"):  # a model may have run away
            errors = unit * (scores[:, 0] - y)
            squared = errors**2
        away = unit * np.asarray(y, dtype=np.float64)  # from the mean of all training targets
        count = self._by_owner(owners, np.ones(len(owners)))
        mean = np.divide(self._by_owner(owners, away), count, out=np.zeros(self.n), where=count > 0)
        columns = [squared, np.abs(errors), (away - mean[owners]) ** 2, np.abs(away)]
        squares = [self._by_owner(owners, values) for values in columns]
        self.sums[:, 1] += squares[0]
        self.sums[:, 2] += squares[1]
        self.sums[count > 0, 3] = self.task.mean + mean[count > 0]  # all of a client's samples are in one block
        self.sums[:, 4] += squares[2]
        self.sums[:, 5] += squares[3]
        return errors


class LabelTally(SumTally):
    """Of several labels: counts of those that are set; of each sample the number of labels that are right is kept."""

    def take(self, owners: Ints, scores: Doubles, y: Array) -> Doubles:
        predicted, true = scores >= THRESHOLD, y > 0
        for table, marks in ((self.hits, predicted & true), (self.predicted, predicted), (self.actual, true)):
            np.add.at(table, owners, marks.astype(np.int64))
        right = (predicted == true).sum(axis=1)
        self.sums[:, 1] += self._by_owner(owners, (right == y.shape[1]).astype(np.float64))
        return np.asarray(right, dtype=np.float64)


class TokenTally(SumTally):
    """Of texts: the log-likelihood of each sample, the mean over its tokens, is summed up and kept."""

    def take(self, owners: Ints, scores: Doubles, y: Array) -> Doubles:
        likelihoods = np.log(np.maximum(scores, np.exp(MIN_LOG_LIKELIHOOD))).mean(axis=1)
        self.sums[:, 1] += self._by_owner(owners, likelihoods)
        return np.asarray(likelihoods, dtype=np.float64)


class TimeTally(SumTally):
    """Of survival times: Brier scores, pairs in the right order, and events that are expected; of each sample its Brier score is kept.

    Pairs are those within a client: samples of two clients are never compared.
    """

    def take(self, owners: Ints, scores: Doubles, y: Array) -> Doubles:
        brier, expected = self._compute_brier(scores, y), count_expected_events(scores, y)
        if self.limit is not None:
            expected = clip_losses(expected, EVENTS_LIMIT)
        for owner in np.unique(owners):
            own = owners == owner
            self.sums[owner, [2, 5]] += count_concordant_pairs(compute_mean_times(scores[own], np.array(self.task.grid)), y[own])
        usual = np.broadcast_to(np.array(self.task.reference), scores.shape)
        events = find_exits(y, scores.shape[1])[1]
        for place, values in ((1, brier), (3, expected), (4, self._compute_brier(usual, y)), (6, events.astype(np.float64))):
            self.sums[:, place] += self._by_owner(owners, values)
        return brier

    def _compute_brier(self, scores: Doubles, y: Array) -> Doubles:
        found = compute_brier_scores(scores, y, np.array(self.task.grid), np.array(self.task.censoring))
        return found if self.limit is None else clip_losses(found, BRIER_LIMIT)


WORTH_CLASSES, FEW_CLASSES = 256, 64  # samples from which on, and classes up to which, going class by class pays


def argmax_classes(scores: Doubles) -> Ints:
    """(m,) ``scores.argmax(1)``: the first of equals, and what is no number before all. Class by class where classes lie apart, as a
    dense network leaves them: numpy copies such a table first.
    """
    if scores.strides[0] > scores.strides[1] or len(scores) < WORTH_CLASSES or scores.shape[1] > FEW_CLASSES:
        return np.asarray(scores.argmax(1))
    best, guess = scores[:, 0].copy(), np.zeros(len(scores), dtype=np.int64)
    for number in range(1, scores.shape[1]):
        better = ~(scores[:, number] <= best) & ~np.isnan(best)
        np.copyto(best, scores[:, number], where=better)
        guess[better] = number
    return guess


def compute_auroc(owners: Ints, scores: Doubles, y: Ints, n: int) -> Doubles:
    """(n,) the area under each owner's ROC curve, from ranks (ties share theirs); nan where only one class is present."""
    order = np.lexsort((scores, owners))
    owner, score, positive = owners[order], scores[order], y[order] == 1
    first = np.r_[True, (owner[1:] != owner[:-1]) | (score[1:] != score[:-1])]  # begins a run of equal scores
    run = np.cumsum(first) - 1
    begin = np.flatnonzero(first)
    end = np.r_[begin[1:], len(order)]
    base = np.searchsorted(owner, owner)  # where this owner's samples begin
    rank = (begin[run] + end[run] + 1) / 2 - base  # the mean of the run's ranks, counted from 1
    up = np.bincount(owner, weights=positive, minlength=n)
    down = np.bincount(owner, weights=~positive, minlength=n)
    wins = np.bincount(owner, weights=rank * positive, minlength=n) - up * (up + 1) / 2
    return np.asarray(np.divide(wins, up * down, out=np.full(n, np.nan), where=up * down > 0))


class ClassTally:
    """Counts by client and class, filled a block of samples at a time."""

    def __init__(self, n: int, classes: int) -> None:
        self.n, self.classes = n, classes
        self.hits, self.predicted, self.actual = np.zeros((3, n, classes), dtype=np.int64)
        self.loss = np.zeros(n)
        self.auroc = np.full(n, np.nan)
        self.answers: Bools | None = None
        self.limit: float | None = None  # of one sample's loss

    def keep_answers(self, sizes: Ints) -> None:
        """Keep which of a client's samples were right, in the order of its part: a client's are given in one block."""
        self.answers = np.zeros((self.n, int(sizes.max(initial=0))), dtype=np.bool_)

    def add(self, owners: Ints, scores: Doubles, losses: Doubles, y: Ints) -> None:
        self.count(owners, argmax_classes(scores), losses, y)
        if self.classes == 2:
            present = np.unique(owners)
            self.auroc[present] = compute_auroc(owners, scores[:, 1] - scores[:, 0], y, self.n)[present]

    def count(self, owners: Ints, guess: Ints, losses: Doubles, y: Ints) -> None:
        right = guess == y
        for table, classes, rows in ((self.hits, y[right], owners[right]), (self.predicted, guess, owners), (self.actual, y, owners)):
            table += np.bincount(rows * self.classes + classes, minlength=table.size).reshape(table.shape)
        self.loss += np.bincount(owners, weights=clip_losses(losses, self.limit), minlength=self.n)
        _place_answers(self.answers, owners, right)

    def result(self, ask: Evaluate) -> Evaluated:
        sizes = self.actual.sum(1)
        loss = np.divide(self.loss, sizes, out=np.full(self.n, np.nan), where=sizes > 0)
        kept = None if self.answers is None else np.packbits(self.answers, axis=1)
        return Evaluated(ask.serving.clients, self.hits, self.predicted, self.actual, loss, self.auroc, answers=kept)


def make_tally(n: int, task: Task, outputs: int) -> "ClassTally | SumTally":
    """The tally of n rows for a task."""
    if task.counts_classes:
        return ClassTally(n, outputs)
    kinds: dict[str, type[SumTally]] = {
        "regression": ErrorTally,
        "multilabel": LabelTally,
        "next-token": TokenTally,
        "survival": TimeTally,
    }
    return kinds[task.name](n, task, task.labels(outputs))
