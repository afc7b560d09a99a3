"""CFL's cut of a group in two."""

from typing import NamedTuple

import numpy as np

from coterie.core.arrays import Bools, Doubles
from coterie.grouping.clusterers import Linkage, bipartition


class Parting(NamedTuple):
    """Who leaves, and the largest cosine between one who leaves and one who stays: it decides whether the cut counts."""

    leaves: Bools  # (n,) nobody where all are alike
    across: float


def cut_of_cosines(alike: Doubles, linkage: Linkage) -> Parting:
    """The cut with the smallest largest cosine across it (single linkage)."""
    parts = bipartition(alike, linkage)
    return Parting(parts, float(alike[np.ix_(parts, ~parts)].max(initial=-1.0)))
