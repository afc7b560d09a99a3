"""Clients as points, by the way that suits their number: all pairs, the products of columns, or landmarks."""

import numpy as np

from coterie.core.arrays import Doubles, Floats
from coterie.core.method import Context
from coterie.core.threads import one_thread
from coterie.grouping.many.points import LANDMARKS, MANY, laid_out, short_points
from coterie.grouping.similarity import EPS, coordinates, gram

PAIRS = 2000  # clients up to which all pairs are multiplied, however short the rows: as it has ever been


def points_of_rows(vectors: Floats, origin: Floats | None, ctx: Context, variance: float | None = None) -> Doubles:
    """(n, r) principal coordinates of what clients sent; of more than `MANY`, in the directions of landmarks, which is noted."""
    if len(vectors) > MANY:
        note_landmarks(ctx)
        return short_points(vectors, origin, ctx.rng("landmarks"), variance=variance)
    return principal_points(vectors, origin, variance)


def note_landmarks(ctx: Context) -> None:
    """Write down that a sample stood for everybody in this round's grouping."""
    ctx.note("landmarks", LANDMARKS)


def principal_points(vectors: Floats, origin: Floats | None = None, variance: float | None = None) -> Doubles:
    """`coordinates` of the rows' Gram matrix, to rounding; where many rows are short, from their columns: the rank is at most d."""
    n, d = vectors.shape
    if n <= max(PAIRS, d):
        return coordinates(gram(vectors, origin), variance)
    rows = laid_out(vectors, origin)
    floor = float(np.einsum("ij,ij->i", rows, rows).max())
    rows -= rows.mean(axis=0)
    with one_thread():
        values, directions = np.linalg.eigh(rows.T @ rows)
        values, directions = values[::-1], directions[:, ::-1]
        kept = int(np.sum(values > 4 * n * EPS * max(floor, float(values[0]))))
        if variance is not None and kept:
            kept = int(np.searchsorted(np.cumsum(values[:kept]) / values[:kept].sum(), variance - 1e-12)) + 1
        found = rows @ directions[:, :kept]
    signs = np.sign(found[np.abs(found).argmax(axis=0), np.arange(kept)])
    return np.asarray(found * signs)
