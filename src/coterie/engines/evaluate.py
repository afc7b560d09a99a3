"""Evaluation: predictions turned into counts for each client. Every engine evaluates with this; only `predict` differs."""

from collections.abc import Callable

import numpy as np

from coterie.core.arrays import Array, Bools, Doubles, Floats, Ints
from coterie.core.asks import Evaluate, Evaluated
from coterie.core.held import elsewhere
from coterie.core.serving import COMBINED
from coterie.core.tasks import Task
from coterie.data.federation import Federation, Parts
from coterie.engines.combined import combined
from coterie.engines.own_models import Each, blocks_of, by_model
from coterie.engines.tallies import ErrorTally, LabelTally, SumTally, TokenTally, limited

# (model, sample numbers or None for the central test set) -> probabilities or numbers (m, C), losses (m,)
Predict = Callable[[Floats, Ints | None], tuple[Doubles, Doubles]]
# the same -> the likeliest class (m,) and losses (m,): where predictions are made on a device, only this need leave it
Judge = Callable[[Floats, Ints | None], tuple[Ints, Doubles]]
NOBODY = -2  # among rows: served already
WORTH_CLASSES, FEW_CLASSES = 256, 64  # samples from which on, and classes up to which, going class by class pays


def evaluate(
    ask: Evaluate,
    federation: Federation,
    predict: Predict,
    parts: Parts | None,
    judge: Judge | None = None,
    each: Each | None = None,
) -> Evaluated:
    """Counts, loss and AUROC for each row of the serving, one forward pass for all the clients that a model serves.

    `parts` are the samples that each client is judged on; None is the central test set, which every row has to itself. With `judge`,
    probabilities are asked for only where they matter: of two classes, whose order of samples is scored, and for combined models. With
    `each`, many models that serve a client or a few are asked in few calls.
    """
    serving, n, task = ask.serving, len(ask.serving.clients), federation.task
    judge = judge if len(federation.classes) > 2 and task.counts_classes else None
    tally = _tally(n, task, len(federation.classes))
    tally.limit = ask.loss_limit
    if ask.answers and parts is not None:
        tally.keep_answers(parts.sizes[serving.clients])
    rows = serving.rows
    if each is not None and parts is not None and len(np.unique(rows)) >= each.many:
        for numbers, members, counts in blocks_of(rows, parts.sizes[serving.clients], serving.models.shape[1], each.numbers):
            samples, y = _samples(ask, federation, parts, members)
            assert samples is not None
            if not len(samples):
                continue
            owners = np.repeat(members, parts.sizes[serving.clients[members]])
            if judge is not None and isinstance(tally, _Tally):
                tally.count(owners, *each.judge(serving.models[numbers], samples, counts), y)
            else:
                tally.add(owners, *each.predict(serving.models[numbers], samples, counts), y)
        rows = np.where(rows == COMBINED, rows, NOBODY)
    for row, members in by_model(rows):
        if row == NOBODY:
            continue
        if row == COMBINED:
            samples, y = _samples(ask, federation, parts, members)
            if len(y):
                stacked = np.stack([predict(model, samples)[0] for model in serving.models])  # (k, m, C), once for all combined rows
                sizes = None if parts is None else parts.sizes[serving.clients[members]]
                tally.add(*combined(serving, members, sizes, stacked, y, task))
        elif parts is None:
            y = _samples(ask, federation, parts, members)[1]
            if judge is not None and isinstance(tally, _Tally):
                guess, losses = judge(_model(serving.models, row), None)
                for i in members:
                    tally.count(np.full(len(y), i), guess, losses, y)
            else:
                scores, losses = predict(_model(serving.models, row), None)
                for i in members:
                    tally.add(np.full(len(y), i), scores, losses, y)
        else:
            samples, y = _samples(ask, federation, parts, members)
            owners = np.repeat(members, parts.sizes[serving.clients[members]])
            if judge is not None and isinstance(tally, _Tally):
                tally.count(owners, *judge(_model(serving.models, row), samples), y)
            else:
                tally.add(owners, *predict(_model(serving.models, row), samples), y)
    return tally.result(ask)


def only_model(ask: Evaluate, federation: Federation, parts: Parts | None) -> Floats | None:
    """The one model that `evaluate` would have judged, on the samples of all the clients or, for one row, on the central set; None where
    there are several, or probabilities matter."""
    rows = ask.serving.rows
    judged = len(federation.classes) > 2 and federation.task.counts_classes
    there = parts is not None or (federation.central is not None and len(rows) == 1)
    alone = judged and there and len(rows) > 0 and rows[0] != COMBINED and bool((rows == rows[0]).all())
    return _model(ask.serving.models, int(rows[0])) if alone else None


def _model(models: Floats, row: int) -> Floats:
    """(d,) one of them; of held ones (1, d) that stays where it is, for a workspace."""
    return models[row] if elsewhere(models) is None else models[row : row + 1]


def _samples(ask: Evaluate, federation: Federation, parts: Parts | None, members: Ints) -> tuple[Ints | None, Array]:
    """Sample numbers (None: the central set) and labels of these rows of the serving, client after client."""
    if parts is None:
        if federation.central is None:
            raise ValueError(f"federation {federation.name} has no central test set")
        return None, federation.central[1]
    samples = parts.joined(ask.serving.clients[members])
    return samples, federation.y[samples]


def _tally(n: int, task: Task, outputs: int) -> "_Tally | SumTally":
    """What is summed up for n rows, by the task."""
    if task.counts_classes:
        return _Tally(n, outputs)
    kinds: dict[str, type[SumTally]] = {"regression": ErrorTally, "multilabel": LabelTally, "next-token": TokenTally}
    return kinds[task.name](n, task, task.labels(outputs))


def _largest(scores: Doubles) -> Ints:
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


class _Tally:
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
        self.count(owners, _largest(scores), losses, y)
        if self.classes == 2:
            present = np.unique(owners)
            self.auroc[present] = auroc(owners, scores[:, 1] - scores[:, 0], y, self.n)[present]

    def count(self, owners: Ints, guess: Ints, losses: Doubles, y: Ints) -> None:
        right = guess == y
        for table, classes, who in ((self.hits, y[right], owners[right]), (self.predicted, guess, owners), (self.actual, y, owners)):
            table += np.bincount(who * self.classes + classes, minlength=table.size).reshape(table.shape)
        self.loss += np.bincount(owners, weights=limited(losses, self.limit), minlength=self.n)
        if self.answers is not None and len(owners):
            begins = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
            place = np.arange(len(owners)) - np.repeat(begins, np.diff(np.r_[begins, len(owners)]))
            self.answers[owners, place] = right

    def result(self, ask: Evaluate) -> Evaluated:
        sizes = self.actual.sum(1)
        loss = np.divide(self.loss, sizes, out=np.full(self.n, np.nan), where=sizes > 0)
        kept = None if self.answers is None else np.packbits(self.answers, axis=1)
        return Evaluated(ask.serving.clients, self.hits, self.predicted, self.actual, loss, self.auroc, answers=kept)


def auroc(owners: Ints, scores: Doubles, y: Ints, n: int) -> Doubles:
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
