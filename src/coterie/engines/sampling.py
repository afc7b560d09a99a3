"""Which samples a client uses: its share of an ask, and the batches of its training. Keyed, so the same on every engine and device."""

from collections.abc import Iterator
from math import ceil

import numpy as np

from coterie.core.arrays import Array, Bools, Ints, Words
from coterie.core.asks import Share
from coterie.core.rng import GOLDEN, extend_key, fold_keys, shuffle
from coterie.data.federation import Parts


def select_share(parts: Parts, share: Share, y: Array, keys: Words) -> Parts:
    """The parts with only the samples in the share, in the order they had; `keys` (n,) draw each client's halves."""
    kept = np.ones(len(parts.indices), dtype=np.bool_)
    if share.half is not None:
        kept &= _mark_first_half(parts, keys) == (share.half == 0)
    if share.label is not None:
        if y.ndim != 1 or y.dtype.kind == "f":
            raise ValueError("a share by label is of a task whose samples have one class each")
        kept &= y[parts.indices] == share.label
    ends = np.concatenate([[0], np.cumsum(kept)])
    return Parts(ends[parts.offsets].astype(np.int64), parts.indices[kept])


def _mark_first_half(parts: Parts, keys: Words) -> Bools:
    """Which samples are in their client's half 0: the first ceil(n / 2) of ``rng.shuffle(key, n)``, for all clients in one sort."""
    owners = np.repeat(np.arange(len(parts)), parts.sizes)
    places = np.arange(len(owners)) - parts.offsets[owners]
    # rng.words numbers its counters from 1, and fold adds the golden ratio once: so these count from 0
    drawn = fold_keys(keys[owners] + places.astype(np.uint64) * np.uint64(GOLDEN), np.zeros(1, np.uint64))
    first = np.zeros(len(owners), dtype=np.bool_)
    first[np.lexsort((drawn, owners))] = 2 * places < parts.sizes[owners]
    return first


def count_steps(samples: int, batch_size: int | None, epochs: int, max_steps: int | None) -> int:
    """How many optimiser steps a training takes."""
    steps = epochs * ceil(samples / (batch_size or samples))
    return steps if max_steps is None else min(steps, max_steps)


def has_single_leftover(samples: Ints, batch_size: int | None) -> bool:
    """Whether any of these numbers of samples leaves a single one for the last batch."""
    return batch_size is not None and batch_size > 1 and bool((samples % batch_size == 1).any())


def iterate_batches(key: int, samples: Ints, batch_size: int | None, epochs: int, max_steps: int | None, least: int = 1) -> Iterator[Ints]:
    """Sample numbers batch by batch: a keyed shuffle each epoch, the last partial batch kept, at most max_steps in all.

    A last batch of fewer than `least` samples joins the one before it.
    """
    size, taken = batch_size or len(samples), 0
    for epoch in range(epochs):
        order = samples[shuffle(extend_key(key, epoch), len(samples))]
        begins = list(range(0, len(order), size))
        if len(begins) > 1 and len(order) - begins[-1] < least:
            del begins[-1]
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
            if taken == max_steps:
                return
            taken += 1
            yield order[begin:end]
