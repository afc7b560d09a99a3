"""k-means of many points: the best of several starts on landmarks, then Lloyd's steps over everybody. The algorithm is scikit-learn's."""

import numpy as np
from sklearn.cluster import KMeans

from coterie.core.arrays import Doubles, Ids
from coterie.core.threads import one_thread
from coterie.grouping.many.points import by_rows, landmarks

STARTED_ON = 4096  # points that the starts are tried on
STEPS = 20  # of Lloyd over all points: from centres of thousands few are needed


def kmeans_of_many(points: Doubles, k: int, rng: np.random.Generator, restarts: int) -> Ids:
    """(n,) labels of k groups, or fewer where a centre loses its points."""
    state, some = int(rng.integers(2**31)), landmarks(len(points), rng, STARTED_ON)
    with one_thread():
        started = KMeans(k, n_init=restarts, random_state=state).fit(points[some])
        fitted = KMeans(k, init=started.cluster_centers_, n_init=1, max_iter=STEPS, random_state=state).fit(points)
    return np.asarray(fitted.labels_, dtype=np.int64)


def nearest_of_many(points: Doubles, centres: Doubles) -> Ids:
    """(n,) the nearest centre of each point, a piece of the points at a time."""
    squares = np.einsum("ij,ij->i", centres, centres)
    found = by_rows(lambda block: (squares - 2 * block.astype(np.float64) @ centres.T).argmin(axis=1), points, width=len(centres))
    return found.astype(np.int64)
