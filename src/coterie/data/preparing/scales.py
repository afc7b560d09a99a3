"""A word of warning where the columns of a table are of very different scales: models learn little from them as they are."""

import numpy as np

from coterie.data.checks import find_flattening
from coterie.data.federation import Federation
from coterie.data.schema import Schema

FACTOR = 100.0
LOOKED_AT = 10_000  # rows


def scale_warning(federation: Federation) -> str | None:
    """One sentence where a value would flatten its column, or the deviations of a table's columns differ by more than a hundred."""
    names, x = federation.provenance.get("features"), federation.x
    if not isinstance(names, (list, tuple)) or x.dtype.kind != "f" or x.shape[1:] != (len(names),):
        return None
    if Schema.of(federation).scale != "robust" and (found := find_flattening(federation)) is not None:
        return str(found)
    rows = federation.train.indices
    rows = rows[:: max(len(rows) // LOOKED_AT, 1)]
    spread = np.asarray(x[rows], dtype=np.float64).std(axis=0)
    moving = np.flatnonzero(spread > 0)
    if not len(moving):
        return None
    low, high = moving[spread[moving].argmin()], moving[spread[moving].argmax()]
    factor = spread[high] / spread[low]
    if factor < FACTOR:
        return None
    return (
        f"Columns of {federation.name} differ in scale by a factor of {factor:,.0f} ({str(names[low])!r} varies by {spread[low]:.3g}, "
        f"{str(names[high])!r} by {spread[high]:.3g}): models learn better from them with scale=standard in the data's spec."
    )
