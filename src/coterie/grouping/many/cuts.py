"""CFL's cut of many clients in two: landmarks are cut exactly, everybody else goes with the landmarks it is most like."""

import numpy as np

from coterie.core.arrays import Doubles, Floats
from coterie.core.threads import one_thread
from coterie.grouping.clusterers import Linkage
from coterie.grouping.cuts import Parting, cut_of_cosines
from coterie.grouping.many.points import PIECE, affordable, laid_out, landmarks, short_points
from coterie.grouping.many.trees import with_landmarks
from coterie.grouping.similarity import cosines, gram


def mean_move(vectors: Floats, origin: Floats, share: Doubles) -> float:
    """The length of the mean update, each client counting by its share: exactly, a piece of the clients at a time."""
    total, together = np.zeros(vectors.shape[1]), max(1, PIECE // max(vectors.shape[1], 1))
    with one_thread():
        for at in range(0, len(vectors), together):
            total += share[at : at + together] @ laid_out(vectors[at : at + together], origin)
    return float(np.linalg.norm(total))


def cut_of_many(vectors: Floats, origin: Floats, rng: np.random.Generator, linkage: Linkage) -> Parting:
    """The cut of the clients' updates. Cosines of landmarks are exact; everybody is placed by directions in few dimensions.

    The largest cosine across is that of landmarks: of everybody's it falls short by what the extremes of more pairs exceed those of fewer.
    """
    some = landmarks(len(vectors), rng, affordable(vectors.shape[1]))
    cut = cut_of_cosines(cosines(gram(vectors[some], origin)), linkage)
    if not cut.leaves.any():
        return Parting(np.zeros(len(vectors), dtype=np.bool_), cut.across)
    directions = laid_out(short_points(vectors, origin, rng, centred=False, unit=True), None, unit=True)
    return Parting(with_landmarks(directions, some, cut.leaves.astype(np.int64), linkage) == 1, cut.across)
