"""Which samples a client uses: its share of an ask, and the batches of its training. Keyed, so the same on every engine and device."""

from collections.abc import Iterator
from math import ceil

import numpy as np

from coterie.core.arrays import Array, Ints, Words
from coterie.core.asks import MAX_FOLDS, Share
from coterie.core.rng import GOLDEN, extend_key, fold_keys, make_key, shuffle
from coterie.data.federation import Parts


def select_share(parts: Parts, share: Share, y: Array, keys: Words) -> Parts:
    """The parts with only the samples in the share, in the order they had; `keys` (n,) draw each client's folds."""
    kept = np.ones(len(parts.indices), dtype=np.bool_)
    if share.fold is not None:
        if not 0 <= share.fold < share.folds <= MAX_FOLDS:
            raise ValueError(f"fold {share.fold} of {share.folds}: there are 2 to {MAX_FOLDS} folds, counted from 0")
        kept &= (_number_folds(parts, share.folds, keys) == share.fold) != share.rest
    if share.label is not None:
        if y.ndim != 1 or y.dtype.kind == "f":
            raise ValueError("a share by label is of a task whose samples have one class each")
        kept &= y[parts.indices] == share.label
    ends = np.concatenate([[0], np.cumsum(kept)])
    return Parts(ends[parts.offsets].astype(np.int64), parts.indices[kept])


def make_fold_key(seed: int, folds: int) -> int:
    """What the keys of all clients' folds begin with. Other numbers of folds are other draws: no fold of one is within a fold of another,
    whose difference would be an answer about a few samples."""
    return make_key(seed, "half") if folds == 2 else make_key(seed, "fold", folds)


def _number_folds(parts: Parts, folds: int, keys: Words) -> Ints:
    """The fold of each sample: place p of ``rng.shuffle(key, n)`` is in fold floor(p * folds / n), for all clients in one sort."""
    owners = np.repeat(np.arange(len(parts)), parts.sizes)
    places = np.arange(len(owners)) - parts.offsets[owners]
    # rng.words numbers its counters from 1, and fold adds the golden ratio once: so these count from 0
    drawn = fold_keys(keys[owners] + places.astype(np.uint64) * np.uint64(GOLDEN), np.zeros(1, np.uint64))
    number = np.zeros(len(owners), dtype=np.int64)
    number[np.lexsort((drawn, owners))] = places * folds // parts.sizes[owners]
    return number


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
