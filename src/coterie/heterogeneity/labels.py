"""Distances between clients' label distributions, from their label counts. The counts must leave the client."""

import numpy as np
from scipy.spatial.distance import pdist, squareform

from coterie.core.arrays import Doubles, Ints


def proportions(counts: Ints) -> Doubles:
    """(n, C) label proportions; a client without samples counts for every class alike."""
    padded = counts + (counts.sum(axis=1, keepdims=True) == 0)
    return np.asarray(padded / padded.sum(axis=1, keepdims=True))


def hellinger(counts: Ints) -> Doubles:
    """(n, n) Hellinger distances: 0 for equal proportions, 1 for classes that never meet."""
    return np.asarray(squareform(pdist(np.sqrt(proportions(counts)))) / np.sqrt(2))


def jensen_shannon(counts: Ints) -> Doubles:
    """(n, n) Jensen-Shannon distances (the root of the divergence, in bits): from 0 to 1."""
    return np.asarray(np.nan_to_num(squareform(pdist(proportions(counts), "jensenshannon")) / np.sqrt(np.log(2))))


def earth_mover(counts: Ints) -> Doubles:
    """(n, n) how much of the labels has to change class to turn one client's proportions into another's: from 0 to 1.

    Class names have no order, so moving from any class to any other costs one, and the earth mover's distance is the total variation.
    """
    return np.asarray(squareform(pdist(proportions(counts), "cityblock")) / 2)
