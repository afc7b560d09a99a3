"""Counts and sums by client, filled block by block: classes, errors of numbers, several labels per sample, tokens of texts."""

from abc import ABC, abstractmethod

import numpy as np

from coterie.core.arrays import Array, Bools, Doubles, Floats, Ints
from coterie.core.asks import Evaluate, Evaluated
from coterie.core.tasks import MIN_LOG_LIKELIHOOD, Task

THRESHOLD = 0.5  # the probability from which on a label is said


def clip_losses(losses: Doubles, limit: float | None) -> Doubles:
    """Losses of samples, each cut to the limit; one that is no number counts as the limit."""
    return losses if limit is None else np.fmin(np.maximum(losses, 0.0), limit)


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
        """A block of samples: whose each is, what the model says, its loss, and what is true."""
        self.loss += self._by_owner(owners, clip_losses(losses, self.limit))
        self.sums[:, 0] += self._by_owner(owners, np.ones(len(owners)))
        kept = self.take(owners, scores, y)
        if self.answers is not None and len(owners):
            begins = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
            place = np.arange(len(owners)) - np.repeat(begins, np.diff(np.r_[begins, len(owners)]))
            self.answers[owners, place] = kept

    @abstractmethod
    def take(self, owners: Ints, scores: Doubles, y: Array) -> Doubles:
        """Sum up a block; what is kept of each of its samples."""

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
        said, true = scores >= THRESHOLD, y > 0
        for table, marks in ((self.hits, said & true), (self.predicted, said), (self.actual, true)):
            np.add.at(table, owners, marks.astype(np.int64))
        right = (said == true).sum(axis=1)
        self.sums[:, 1] += self._by_owner(owners, (right == y.shape[1]).astype(np.float64))
        return np.asarray(right, dtype=np.float64)


class TokenTally(SumTally):
    """Of texts: the log-likelihood of each sample, the mean over its tokens, is summed up and kept."""

    def take(self, owners: Ints, scores: Doubles, y: Array) -> Doubles:
        said = np.log(np.maximum(scores, np.exp(MIN_LOG_LIKELIHOOD))).mean(axis=1)
        self.sums[:, 1] += self._by_owner(owners, said)
        return np.asarray(said, dtype=np.float64)


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
        """Keep which of a client's samples were answered rightly, in the order of its part: a client's are given in one block."""
        self.answers = np.zeros((self.n, int(sizes.max(initial=0))), dtype=np.bool_)

    def add(self, owners: Ints, scores: Doubles, losses: Doubles, y: Ints) -> None:
        self.count(owners, argmax_classes(scores), losses, y)
        if self.classes == 2:
            present = np.unique(owners)
            self.auroc[present] = compute_auroc(owners, scores[:, 1] - scores[:, 0], y, self.n)[present]

    def count(self, owners: Ints, guess: Ints, losses: Doubles, y: Ints) -> None:
        right = guess == y
        for table, classes, who in ((self.hits, y[right], owners[right]), (self.predicted, guess, owners), (self.actual, y, owners)):
            table += np.bincount(who * self.classes + classes, minlength=table.size).reshape(table.shape)
        self.loss += np.bincount(owners, weights=clip_losses(losses, self.limit), minlength=self.n)
        if self.answers is not None and len(owners):
            begins = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
            place = np.arange(len(owners)) - np.repeat(begins, np.diff(np.r_[begins, len(owners)]))
            self.answers[owners, place] = right

    def result(self, ask: Evaluate) -> Evaluated:
        sizes = self.actual.sum(1)
        loss = np.divide(self.loss, sizes, out=np.full(self.n, np.nan), where=sizes > 0)
        kept = None if self.answers is None else np.packbits(self.answers, axis=1)
        return Evaluated(ask.serving.clients, self.hits, self.predicted, self.actual, loss, self.auroc, answers=kept)


def make_tally(n: int, task: Task, outputs: int) -> "ClassTally | SumTally":
    """What is summed up for n rows, by the task."""
    if task.counts_classes:
        return ClassTally(n, outputs)
    kinds: dict[str, type[SumTally]] = {"regression": ErrorTally, "multilabel": LabelTally, "next-token": TokenTally}
    return kinds[task.name](n, task, task.labels(outputs))
