"""Evaluation: predictions turned into counts, losses and errors for each client. Every engine uses this; only `predict` differs.

Models that answer for equally many samples are stacked. A slice of a stacked product is the product of that model alone, of the same
shape, so the bits are those of one model at a time.
"""

from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ids, Ints
from coterie.core.asks import AskErrors, Errors, Evaluate, Evaluated, Losses, LossTable
from coterie.core.serving import COMBINED, Serving
from coterie.core.tasks import MIN_LOG_LIKELIHOOD, Task
from coterie.core.vectors import on_device
from coterie.data.federation import Federation, Parts
from coterie.engines.evaluation.tallies import THRESHOLD, ClassTally, clip_losses, make_tally

TOGETHER, MANY_NUMBERS = 1 << 18, 1 << 24  # samples of many models, and numbers of these, that are looked at together


STACKED = 1 << 22  # numbers of models and samples in a stack: what a cache nearly holds


class EachEvaluator(Protocol):
    """Many models (k, d) on samples (m,), of which each answers for the next so many (k,)."""

    many: ClassVar[int]  # models from which on they are asked together

    @property
    def numbers(self) -> int:
        """Numbers of models that it takes at a time."""

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,)."""

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,)."""


def group_by_model(rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Every model that serves somebody, and whom: by one sort, where a scan for each model would take the square of the clients."""
    order = np.argsort(rows, kind="stable")
    for members in split_runs(order, rows):
        yield int(rows[members[0]]), members


def iterate_blocks(rows: Ints, sizes: Ints, parameters: int, numbers: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Models, whom they serve one after the other, and how many samples each answers for: so many models at a time that neither their
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
    """Of each sample whose it is, its scores, its loss and its label.

    The samples of these rows of the serving, so many each, stand one after the other in `stacked` (k, m, C) and `y`; without sizes every
    row has them all to itself.
    """
    each = getattr(serving.combiner, "combine_each", None)
    together: Doubles | None = None if each is None or sizes is None else each(stacked, sizes)
    if together is not None and sizes is not None:
        return np.repeat(members, sizes), together, _compute_losses(together, y, task), y
    assert serving.combiner is not None
    answers, labels, owners = [], [], []
    for i, part in _iterate_parts(members, sizes):
        scores = serving.combiner.combine(stacked[:, part], int(serving.places[i]))
        labels.append(y[part])
        answers.append((scores, _compute_losses(scores, labels[-1], task)))  # sums over classes take the order in which scores lie
        owners.append(np.full(len(scores), i))
    found, losses = (np.concatenate(column) for column in zip(*answers, strict=True))
    return np.concatenate(owners), found, losses, np.concatenate(labels)


def _iterate_parts(members: Ints, sizes: Ints | None) -> Iterator[tuple[int, slice]]:
    """Each of these rows that has samples, and where they lie among those of all."""
    if sizes is None:
        yield from ((int(i), slice(None)) for i in members)
        return
    ends = np.cumsum(sizes)
    for i, begin, end in zip(members, ends - sizes, ends, strict=True):
        if begin < end:
            yield int(i), slice(int(begin), int(end))


def _compute_losses(scores: Doubles, y: Array, task: Task) -> Doubles:
    """(m,) the loss of combined scores, as the task has it."""
    if task.name == "regression":
        return np.asarray((scores[:, 0] - y) ** 2)
    if task.name == "next-token":
        return np.asarray(-np.log(np.maximum(scores, np.exp(MIN_LOG_LIKELIHOOD))).mean(axis=1))
    if task.name == "multilabel":
        chances = np.where(y > 0, scores, 1 - scores)
        return np.asarray(-np.log(np.maximum(chances, 1e-12)).mean(axis=1))
    likelihood = np.take_along_axis(scores, y[:, None], 1)[:, 0] / np.maximum(scores.sum(1), 1e-300)
    return np.asarray(-np.log(np.maximum(likelihood, 1e-12)))


# (model, sample numbers or None for the central test set) -> probabilities or numbers (m, C), losses (m,)
Predict = Callable[[Floats, Ints | None], tuple[Doubles, Doubles]]


# the same -> the likeliest class (m,) and losses (m,): where predictions are made on a device, only this need leave it
Classify = Callable[[Floats, Ints | None], tuple[Ints, Doubles]]


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

    `parts` are the samples that each client is judged on; None is the central test set, which every row has to itself. With `judge`,
    probabilities are asked for only where they matter: of two classes, whose order of samples is scored, and for combined models. With
    `each`, many models that serve a client or a few are asked in few calls.
    """
    serving, n, task = ask.serving, len(ask.serving.clients), federation.task
    judge = judge if len(federation.classes) > 2 and task.counts_classes else None
    tally = make_tally(n, task, len(federation.classes))
    tally.limit = ask.loss_limit
    if ask.answers and parts is not None:
        tally.keep_answers(parts.sizes[serving.clients])
    rows = serving.rows
    if each is not None and parts is not None and len(np.unique(rows)) >= each.many:
        for numbers, members, counts in iterate_blocks(rows, parts.sizes[serving.clients], serving.models.shape[1], each.numbers):
            samples, y = _get_samples(ask, federation, parts, members)
            assert samples is not None
            if not len(samples):
                continue
            owners = np.repeat(members, parts.sizes[serving.clients[members]])
            if judge is not None and isinstance(tally, ClassTally):
                tally.count(owners, *each.judge(serving.models[numbers], samples, counts), y)
            else:
                tally.add(owners, *each.predict(serving.models[numbers], samples, counts), y)
        rows = np.where(rows == COMBINED, rows, SERVED)
    for row, members in group_by_model(rows):
        if row == SERVED:
            continue
        if row == COMBINED:
            samples, y = _get_samples(ask, federation, parts, members)
            if len(y):
                stacked = np.stack([predict(model, samples)[0] for model in serving.models])  # (k, m, C), once for all combined rows
                sizes = None if parts is None else parts.sizes[serving.clients[members]]
                tally.add(*combine_scores(serving, members, sizes, stacked, y, task))
        elif parts is None:
            y = _get_samples(ask, federation, parts, members)[1]
            if judge is not None and isinstance(tally, ClassTally):
                guess, losses = judge(_take_model(serving.models, row), None)
                for i in members:
                    tally.count(np.full(len(y), i), guess, losses, y)
            else:
                scores, losses = predict(_take_model(serving.models, row), None)
                for i in members:
                    tally.add(np.full(len(y), i), scores, losses, y)
        else:
            samples, y = _get_samples(ask, federation, parts, members)
            owners = np.repeat(members, parts.sizes[serving.clients[members]])
            if judge is not None and isinstance(tally, ClassTally):
                tally.count(owners, *judge(_take_model(serving.models, row), samples), y)
            else:
                tally.add(owners, *predict(_take_model(serving.models, row), samples), y)
    return tally.result(ask)


def find_only_model(ask: Evaluate, federation: Federation, parts: Parts | None) -> Floats | None:
    """The one model that `evaluate` would have judged, on the samples of all the clients or, for one row, on the central set; None where
    there are several, or probabilities matter."""
    rows = ask.serving.rows
    judged = len(federation.classes) > 2 and federation.task.counts_classes
    there = parts is not None or (federation.central is not None and len(rows) == 1)
    alone = judged and there and len(rows) > 0 and rows[0] != COMBINED and bool((rows == rows[0]).all())
    return _take_model(ask.serving.models, int(rows[0])) if alone else None


def _take_model(models: Floats, row: int) -> Floats:
    """(d,) one of them; of held ones (1, d) that stays where it is, for a workspace."""
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
    """The mean loss of every model on every client's part; by `losses_of` where an engine has a shorter way to losses alone."""
    samples, owners = _concat_samples(parts, ask.clients)
    found = losses_of(ask.models, samples) if losses_of is not None else (predict(model, samples)[1] for model in ask.models)
    losses = np.stack(
        [_compute_client_means(clip_losses(of_model, ask.loss_limit), owners, len(ask.clients)) for of_model in found], axis=1
    )
    return LossTable(ask.clients, losses, parts.sizes[ask.clients])


def compute_squared_errors(predicted: Doubles, actual: Array, task: Task) -> tuple[Doubles, Doubles]:
    """(m,) twice: squared errors of what is said, as class numbers, and of the probabilities (FedSim, Eq. 15-16).

    A regression says numbers, so both are its squared error; of several labels each is said or not; of texts it is the probability that is
    missing to a token.
    """
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
        said, chance = compute_squared_errors(predict(model, samples)[0], actual, task)
        labels.append(_compute_client_means(said, owners, len(ask.clients)))
        chances.append(_compute_client_means(chance, owners, len(ask.clients)))
    table = [np.sqrt(np.stack(columns, axis=1)) for columns in (labels, chances)]
    return Errors(ask.clients, table[0], table[1], parts.sizes[ask.clients])


def _concat_samples(parts: Parts, clients: Ids) -> tuple[Ints, Ints]:
    """The sample numbers of these clients one after the other, and for each sample the row of its owner."""
    return parts.joined(clients), np.repeat(np.arange(len(clients)), parts.sizes[clients])


def _compute_client_means(values: Doubles, owners: Ints, n: int) -> Doubles:
    sums = np.bincount(owners, weights=values, minlength=n)
    return np.asarray(sums / np.bincount(owners, minlength=n))
