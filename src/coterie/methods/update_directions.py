"""Updates as FedGroup compares them: by their directions, whole or in sketches."""

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Trained
from coterie.core.method import Context
from coterie.core.sketches import Sketch
from coterie.grouping.similarity import dots


def compared_updates(pretrained: Trained, origin: Floats, sketch: Sketch | None, ctx: Context) -> tuple[Floats, Floats | None]:
    """What is compared: the models and what they are measured from; or sketches, which are of updates already."""
    if sketch is not None:
        return pretrained.vectors, None
    return ctx.layout.comparable(pretrained.vectors), ctx.layout.comparable(origin)


def closest(vectors: Floats, origin: Floats | None, directions: Floats) -> Ids:
    """(n,) the direction with the largest cosine. The update's own norm is the same for all directions and is left away."""
    norms = np.linalg.norm(directions.astype(np.float64), axis=1)
    products = dots(vectors, directions, origin)  # (n, m)
    cosines = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
    return np.asarray(cosines.argmax(axis=1), dtype=np.int64)
