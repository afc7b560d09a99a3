"""The clients most like each of some, by the way that suits their number: all pairs, those who ask against everybody, or cells."""

import numpy as np

from coterie.core.arrays import Floats, Ids, Ints
from coterie.core.method import Context
from coterie.grouping.many.neighbours import PAIRS, nearest_in_blocks, nearest_in_cells
from coterie.grouping.many.points import MANY
from coterie.grouping.similarity import cosines, gram


def nearest_clients(vectors: Floats, asking: Ints, count: int, ctx: Context) -> Ids:
    """(m, count) the rows with the largest cosine with each row of `asking`, itself excepted; above `MANY` rows the way is noted."""
    if len(vectors) <= MANY:
        alike = cosines(gram(vectors))
        np.fill_diagonal(alike, -np.inf)  # nobody is its own neighbour
        return np.argsort(-alike[asking], axis=1, kind="stable")[:, :count]
    if len(vectors) * len(asking) <= PAIRS:
        ctx.note("compared_with", len(vectors))
        return nearest_in_blocks(vectors, asking, count)
    found, cells = nearest_in_cells(vectors, asking, count, ctx.rng("landmarks"))
    ctx.note("landmarks", cells)
    return found
