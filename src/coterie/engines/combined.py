"""What a combiner makes of several models' answers: scores and losses, for clients one after the other or on the server's own test set."""

from collections.abc import Iterator

import numpy as np

from coterie.core.arrays import Array, Doubles, Ints
from coterie.core.serving import Serving
from coterie.core.tasks import LEAST_LIKELY, Task


def combined(
    serving: Serving, members: Ints, sizes: Ints | None, stacked: Doubles, y: Array, task: Task
) -> tuple[Ints, Doubles, Doubles, Array]:
    """Of each sample whose it is, its scores, its loss and its label.

    The samples of these rows of the serving, so many each, stand one after the other in `stacked` (k, m, C) and `y`; without sizes every
    row has them all to itself.
    """
    each = getattr(serving.combiner, "combine_each", None)
    together: Doubles | None = None if each is None or sizes is None else each(stacked, sizes)
    if together is not None and sizes is not None:
        return np.repeat(members, sizes), together, _losses(together, y, task), y
    assert serving.combiner is not None
    answers, labels, owners = [], [], []
    for i, part in _parts(members, sizes):
        scores = serving.combiner.combine(stacked[:, part], int(serving.places[i]))
        labels.append(y[part])
        answers.append((scores, _losses(scores, labels[-1], task)))  # sums over classes take the order in which scores lie
        owners.append(np.full(len(scores), i))
    found, losses = (np.concatenate(column) for column in zip(*answers, strict=True))
    return np.concatenate(owners), found, losses, np.concatenate(labels)


def _parts(members: Ints, sizes: Ints | None) -> Iterator[tuple[int, slice]]:
    """Each of these rows that has samples, and where they lie among those of all."""
    if sizes is None:
        yield from ((int(i), slice(None)) for i in members)
        return
    ends = np.cumsum(sizes)
    for i, begin, end in zip(members, ends - sizes, ends, strict=True):
        if begin < end:
            yield int(i), slice(int(begin), int(end))


def _losses(scores: Doubles, y: Array, task: Task) -> Doubles:
    """(m,) the loss of combined scores, as the task has it."""
    if task.name == "regression":
        return np.asarray((scores[:, 0] - y) ** 2)
    if task.name == "next-token":
        return np.asarray(-np.log(np.maximum(scores, np.exp(LEAST_LIKELY))).mean(axis=1))
    if task.name == "multilabel":
        chances = np.where(y > 0, scores, 1 - scores)
        return np.asarray(-np.log(np.maximum(chances, 1e-12)).mean(axis=1))
    likelihood = np.take_along_axis(scores, y[:, None], 1)[:, 0] / np.maximum(scores.sum(1), 1e-300)
    return np.asarray(-np.log(np.maximum(likelihood, 1e-12)))
