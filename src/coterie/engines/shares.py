"""Shares of clients' samples: the halves and classes that an ask may confine itself to."""

import numpy as np

from coterie.core.arrays import Array, Bools, Words
from coterie.core.asks import Share
from coterie.core.rng import GOLDEN, fold
from coterie.data.federation import Parts


def shared(parts: Parts, share: Share, y: Array, keys: Words) -> Parts:
    """The parts with only the samples in the share, in the order they had; `keys` (n,) draw each client's halves."""
    kept = np.ones(len(parts.indices), dtype=np.bool_)
    if share.half is not None:
        kept &= _first_half(parts, keys) == (share.half == 0)
    if share.label is not None:
        if y.ndim != 1 or y.dtype.kind == "f":
            raise ValueError("a share by label is of a task whose samples have one class each")
        kept &= y[parts.indices] == share.label
    ends = np.concatenate([[0], np.cumsum(kept)])
    return Parts(ends[parts.offsets].astype(np.int64), parts.indices[kept])


def _first_half(parts: Parts, keys: Words) -> Bools:
    """Which samples are in their client's half 0: the first ceil(n / 2) of ``rng.shuffle(key, n)``, for all clients in one sort."""
    owners = np.repeat(np.arange(len(parts)), parts.sizes)
    places = np.arange(len(owners)) - parts.offsets[owners]
    # rng.words numbers its counters from 1, and fold adds the golden ratio once: so these count from 0
    drawn = fold(keys[owners] + places.astype(np.uint64) * np.uint64(GOLDEN), np.zeros(1, np.uint64))
    first = np.zeros(len(owners), dtype=np.bool_)
    first[np.lexsort((drawn, owners))] = 2 * places < parts.sizes[owners]
    return first
