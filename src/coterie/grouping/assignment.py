"""Who is whose partner: each of n things with one of n others, so that the sum of their products is the largest."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie.core.arrays import Doubles, Ints

MARGIN = 1e-9  # of the largest number: a lead that no rounding takes away


def find_best_assignment(products: Doubles) -> Ints:
    """(n,) the partner (column) of each row, by the Hungarian algorithm."""
    return np.asarray(linear_sum_assignment(products, maximize=True)[1], dtype=np.int64)


def is_identity_best(products: Doubles, squares: Doubles) -> bool:
    """Whether the i-th row's partner is the i-th column beyond doubt: it is nearer to it than to any other, for every i.

    ``<a, b> - ||b||^2 / 2`` is largest where ||a - b|| is least, and what is subtracted is the same whoever is whose partner. Where each
    row has what is best for it, no other order has a larger sum: then nothing need be searched.
    """
    near = products - squares / 2
    lead = near.diagonal().copy()
    np.fill_diagonal(near, -np.inf)
    return bool((lead > near.max(axis=1) + MARGIN * np.abs(lead).max()).all()) if len(near) > 1 else True
