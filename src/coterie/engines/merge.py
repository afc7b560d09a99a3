"""Many asks to train as one job, and the job's results as the replies to those asks."""

from collections.abc import Callable, Sequence

import numpy as np

from coterie.arrays import Doubles, Floats, Ints
from coterie.asks import Train, Trained
from coterie.engines.engine import Stamped
from coterie.engines.kernels.job import FusedJob


def merge(stamped: Sequence[Stamped], asks: Sequence[Train], sizes: tuple[int, ...]) -> FusedJob:
    """All the trainings of these asks, which share a problem and an optimiser, one after the other."""
    federation = stamped[0].problem.federation
    held = [s.parts() for s in stamped]
    samples = np.concatenate([parts.sizes[ask.clients] for parts, ask in zip(held, asks, strict=True)])
    first_model = np.cumsum([0, *(len(ask.models) for ask in asks)])
    return FusedJob(
        sizes=sizes,
        x=federation.x.reshape(len(federation.x), -1),
        y=federation.y,
        offsets=np.concatenate([[0], np.cumsum(samples)]).astype(np.int64),
        indices=np.concatenate([parts[client] for parts, ask in zip(held, asks, strict=True) for client in ask.clients]),
        models=np.concatenate([ask.models for ask in asks]),
        start=np.concatenate([ask.start + first for ask, first in zip(asks, first_model, strict=False)]),
        keys=np.concatenate([s.keys(ask.purpose, ask.clients) for s, ask in zip(stamped, asks, strict=True)]),
        epochs=_each(asks, [ask.local.epochs if ask.epochs is None else ask.epochs for ask in asks]).astype(np.int64),
        max_steps=_each(asks, [-1 if ask.local.max_steps is None else ask.local.max_steps for ask in asks]).astype(np.int64),
        batch_size=np.where((batch := _each(asks, [ask.local.batch_size or 0 for ask in asks])) > 0, batch, samples).astype(np.int64),
        lr=_each(asks, [ask.local.lr for ask in asks]),
        momentum=_each(asks, [ask.local.momentum for ask in asks]),
        weight_decay=_each(asks, [ask.local.weight_decay for ask in asks]),
        mu=_each(asks, [ask.local.mu if ask.mus is None else ask.mus for ask in asks]),
        anchors=_rows(asks, [ask.anchors for ask in asks], lambda ask: ask.models[ask.start]),
        linear=_rows(asks, [ask.linear for ask in asks], lambda ask: np.zeros((len(ask.clients), ask.models.shape[1]), np.float32)),
    )


def share_out(asks: Sequence[Train], samples: Ints, vectors: Floats, steps: Ints) -> list[Trained]:
    """The reply to each of the merged asks."""
    ends = np.cumsum([len(ask.clients) for ask in asks])
    spans = [slice(end - len(ask.clients), end) for ask, end in zip(asks, ends, strict=True)]
    return [Trained(ask.clients, vectors[span], samples[span], steps[span]) for ask, span in zip(asks, spans, strict=True)]


def _each(asks: Sequence[Train], values: Sequence[float | Ints | Doubles]) -> Doubles:
    """One number for each training, from one number or one array for each ask."""
    return np.concatenate(
        [np.broadcast_to(np.asarray(value, np.float64), len(ask.clients)) for ask, value in zip(asks, values, strict=True)]
    )


def _rows(asks: Sequence[Train], given: Sequence[Floats | None], otherwise: Callable[[Train], Floats]) -> Floats | None:
    """One row for each training where any ask gives them; None where none does."""
    if all(rows is None for rows in given):
        return None
    return np.concatenate([otherwise(ask) if rows is None else rows for ask, rows in zip(asks, given, strict=True)])
