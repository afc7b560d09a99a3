"""Does a value rise over ordered points? By how much, not by ranks: a rank throws away that one step is small and another large.

Every run (seed, or draw and seed) that has all points gets one number: the change over the whole range along its least-squares line. These
numbers are differences like any others, paired over points, and go through the intervals of `over_seeds` and `over_draws`.
"""

from collections.abc import Sequence

import numpy as np

from coterie.core.arrays import Doubles


def rises(values: Doubles, points: Sequence[float] | None = None) -> Doubles:
    """(...) the change over the range of each run of values (K, ...) at K ordered points, 0, 1, ... unless given; nan with a point missing.

    The slope is a contrast of the values: sum (x - mean) y / sum (x - mean)^2. With three points at equal distance the change is that
    between the ends.
    """
    at = np.arange(len(values), dtype=np.float64) if points is None else np.asarray(points, dtype=np.float64)
    if len(at) != len(values) or len(at) < 2 or not (np.diff(at) > 0).all():
        raise ValueError("a trend needs two or more points in rising order, one for each row of values")
    off = at - at.mean()
    numbers = np.asarray(values, dtype=np.float64)
    # The contrast sums to zero, so the first value may be taken off: a run of equal values then has no change, not one of rounding.
    return np.asarray(np.tensordot(off / (off**2).sum() * (at[-1] - at[0]), numbers - numbers[0], axes=1))
