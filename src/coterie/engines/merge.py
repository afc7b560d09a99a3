"""Many asks to train as one job, and the job's results as the replies to those asks."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids, Ints, Words
from coterie.core.asks import Train, Trained
from coterie.core.local import Local
from coterie.core.rng import fold
from coterie.data.federation import Parts
from coterie.engines.apart import RowsApart, SomeRows
from coterie.engines.job import FusedJob
from coterie.engines.local_engine import Work


def merge(works: Sequence[Work], asks: Sequence[Train], sizes: tuple[int, ...], *, apart: bool = False) -> FusedJob:
    """All the trainings of these asks, which share a world and an optimiser, one after the other.

    Kept `apart`, models and terms stay in the arrays that they are in, for routes that put them together on a device.
    """
    federation = works[0].world.federation
    held = [work.parts() for work in works]
    counts, width = [len(ask.clients) for ask in asks], asks[0].models.shape[1]
    clients = np.concatenate([ask.clients for ask in asks])
    samples = _samples(held, asks, clients)
    epochs, max_steps, batch, lr, momentum, decay, mu = np.repeat(np.array([_settings(a.local) for a in asks]).T, counts, axis=1)
    return FusedJob(
        sizes=sizes,
        x=federation.x.reshape(len(federation.x), -1),
        y=federation.y,
        offsets=np.concatenate([[0], np.cumsum(samples)]),
        indices=_indices(held, asks, clients),
        models=_laid([SomeRows(len(ask.models), ask.models) for ask in asks], width, apart=apart),
        start=np.concatenate([ask.start for ask in asks]) + np.repeat(_firsts([len(ask.models) for ask in asks]), counts),
        keys=_keys(works, asks, clients, counts),
        epochs=_own(epochs, [ask.epochs for ask in asks], counts).astype(np.int64),
        max_steps=max_steps.astype(np.int64),
        batch_size=np.where(batch > 0, batch, samples).astype(np.int64),
        lr=lr,
        momentum=momentum,
        weight_decay=decay,
        mu=_own(mu, [ask.mus for ask in asks], counts),
        anchors=_rows(asks, [ask.anchors for ask in asks], lambda ask: SomeRows(len(ask.clients), ask.models, ask.start), apart=apart),
        linear=_rows(asks, [ask.linear for ask in asks], lambda ask: SomeRows(len(ask.clients)), apart=apart),
    )


def _samples(held: Sequence[Parts], asks: Sequence[Train], clients: Ids) -> Ints:
    """(n,) how many samples each training has; at once where all asks are about the same parts."""
    if _alike(held):
        return held[0].sizes[clients]
    return np.concatenate([parts.sizes[ask.clients] for parts, ask in zip(held, asks, strict=True)])


def _indices(held: Sequence[Parts], asks: Sequence[Train], clients: Ids) -> Ints:
    """The numbers of all these samples, training after training."""
    if _alike(held):
        return held[0].joined(clients)
    return np.concatenate([parts.joined(ask.clients) for parts, ask in zip(held, asks, strict=True)])


def _alike(held: Sequence[Parts]) -> bool:
    return all(parts is held[0] for parts in held)


def share_out(asks: Sequence[Train], samples: Ints, vectors: Floats, steps: Ints, more: Floats | None = None) -> list[Trained]:
    """The reply to each of the merged asks."""
    more = np.zeros((len(vectors), 0, *vectors.shape[1:]), dtype=np.float32) if more is None else more
    counts = [len(ask.clients) for ask in asks]
    spans = [slice(first, first + count) for first, count in zip(_firsts(counts), counts, strict=True)]
    return [Trained(ask.clients, vectors[span], samples[span], steps[span], more[span]) for ask, span in zip(asks, spans, strict=True)]


def _settings(local: Local) -> tuple[float, ...]:
    """One ask's numbers for each of its trainings; -1 steps are no limit, a batch of 0 is the full one."""
    limit = -1 if local.max_steps is None else local.max_steps
    return local.epochs, limit, local.batch_size or 0, local.lr, local.momentum, local.weight_decay, local.mu


def _firsts(counts: Sequence[int]) -> list[int]:
    """Where each of several runs of so many begins, when they are put one after the other."""
    return list(accumulate(counts, initial=0))[:-1]


def _keys(works: Sequence[Work], asks: Sequence[Train], clients: Ids, counts: Sequence[int]) -> Words:
    """The key of each training: `Work.keys` of all asks at once."""
    begun = np.array([work.stamped.key(ask.purpose) for work, ask in zip(works, asks, strict=True)], np.uint64)
    return fold(np.repeat(begun, counts), works[0].world.words[clients])


def _own(values: Doubles, given: Sequence[Ints | Doubles | None], counts: Sequence[int]) -> Doubles:
    """One number for each training: of its ask, unless the ask gives each client its own."""
    for own, first, count in zip(given, _firsts(counts), counts, strict=True):
        if own is not None:
            values[first : first + count] = own
    return values


def _rows(asks: Sequence[Train], given: Sequence[Floats | None], otherwise: Callable[[Train], SomeRows], *, apart: bool) -> Floats | None:
    """One row for each training where any ask gives them; None where none does."""
    if all(rows is None for rows in given):
        return None
    parts = [otherwise(ask) if rows is None else SomeRows(len(rows), rows) for ask, rows in zip(asks, given, strict=True)]
    return _laid(parts, asks[0].models.shape[1], apart=apart)


def _laid(parts: Sequence[SomeRows], width: int, *, apart: bool) -> Floats:
    """Rows one after the other, or as they lie."""
    rows = RowsApart(parts, width)
    return rows.as_array() if apart else np.asarray(rows)
