"""Rows cut to a length: what bounds how much one client's answer can tell or do."""

import numpy as np

from coterie.core.arrays import Doubles


def clipped(rows: Doubles, bound: float) -> Doubles:
    """Each row cut to an L2 norm of at most `bound`; a row with a number that is not finite has no direction, and becomes zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt((rows**2).sum(axis=1))
    whole = np.where(np.isfinite(norms)[:, None], rows, 0.0)
    factors = np.minimum(1.0, bound / np.maximum(norms, np.finfo(np.float64).tiny, where=np.isfinite(norms), out=np.ones_like(norms)))
    return np.asarray(whole * factors[:, None], dtype=np.float64)
