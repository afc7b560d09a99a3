"""Tallies of what counts no classes: errors of numbers, several labels of a sample, tokens of texts. Filled block by block."""

from abc import ABC, abstractmethod

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.asks import Evaluate, Evaluated
from coterie.core.tasks import LEAST_LIKELY, Task

THRESHOLD = 0.5  # the probability from which on a label is said


def limited(losses: Doubles, limit: float | None) -> Doubles:
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
        self.loss += self._by_owner(owners, limited(losses, self.limit))
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
        said = np.log(np.maximum(scores, np.exp(LEAST_LIKELY))).mean(axis=1)
        self.sums[:, 1] += self._by_owner(owners, said)
        return np.asarray(said, dtype=np.float64)
