"""Pairwise Kolmogorov-Smirnov similarity (FedSim, Figure 1). Features, or sketches of them, must leave the client.

The paper does not say which numbers are compared. Here: the client's feature values, one feature at a time, averaged over features; or any
one-dimensional numbers that a client may give away, such as its losses at a common model.
"""

from collections.abc import Sequence

import numpy as np

from coterie.core.arrays import Array, Doubles


def kolmogorov_smirnov(clients: Sequence[Array]) -> Doubles:
    """(n, n) the two-sample statistic of every pair: the largest gap between their distribution functions, the mean over features.

    `clients[i]` is (m_i,) or (m_i, features). Similarity, as the figure shows it, is one minus this.
    """
    columns = [np.asarray(values, dtype=np.float64).reshape(len(values), -1) for values in clients]
    total = np.zeros((len(clients), len(clients)))
    for feature in range(columns[0].shape[1]):
        total += _gaps([own[:, feature] for own in columns])
    return total / columns[0].shape[1]


def _gaps(values: Sequence[Doubles]) -> Doubles:
    """The largest gap of every pair. SciPy's `ks_2samp` takes one pair at a time; all distribution functions on one grid do them all."""
    grid = np.unique(np.concatenate(values))
    steps = np.stack([np.searchsorted(np.sort(own), grid, side="right") / len(own) for own in values])  # (n, grid)
    return np.stack([np.abs(steps - row).max(axis=1) for row in steps])
