"""What clients would have sent, made by hand."""

import numpy as np

from coterie.core.arrays import Array
from coterie.grouping.structure_views import Probes


def made(vectors: Array, counts: Array) -> Probes:
    """Mean gradients (2 halves, n clients, C classes, q) of so many samples (2, n, C)."""
    n = vectors.shape[1]
    return Probes(np.arange(n), vectors, counts, True, np.zeros(0, dtype=np.int64))


def proportions_alone() -> Probes:
    """Two classes with fixed gradients, in proportions of each client's own: the halves agree, but not within a class."""
    rng = np.random.default_rng(1)
    shares = rng.integers(2, 18, size=20)
    counts = np.stack([np.stack([shares, 20 - shares], axis=1)] * 2)
    vectors = np.broadcast_to(np.array([[1.0, 0, 0], [0, 1.0, 0]]), (2, 20, 2, 3)) + 0.1 * rng.normal(size=(2, 20, 2, 3))
    return made(vectors, counts)
