"""The number of groups read from points: silhouette, its cautious form on Ward's tree, gap, stability.

Other ways are a test of structure (`structure`) and a short pilot run (`methods.group_number`). A new way has a name in `ChoiceRule`:
one that reads points is a case of `choose_from_points`, one that asks clients a case of `methods.group_number.GroupNumberMixin`.
"""

from typing import Literal

import numpy as np
from sklearn.metrics import adjusted_rand_score, silhouette_score

from coterie.core.arrays import Doubles
from coterie.core.method import Choice
from coterie.grouping.clustering import agglomerative_clustering
from coterie.grouping.kmeans import compute_inertia, count_distinct, kmeans
from coterie.grouping.landmarks import MANY, sample_landmarks
from coterie.grouping.similarity import compute_distances

ChoiceRule = Literal["structure", "trial", "gap", "stability", "silhouette", "ward"]
Criterion = Literal["silhouette", "gap", "stability", "ward"]
WARD_GAIN = 1.1  # CLoVE: a larger number must have so many times the silhouette of the number kept so far


def choose_from_points(points: Doubles, rng: np.random.Generator, most: int, how: Criterion) -> Choice:
    """How many groups, from 1 to `most`. `silhouette` and `ward` cannot give 1 unless all points are equal; the other two can.

    The candidates stop below the number of distinct points, since points that are each their own group fit perfectly and mean nothing.
    Of many points a keyed sample is asked.
    """
    points = np.asarray(points, dtype=np.float64)
    points = points[sample_landmarks(len(points), rng)] if len(points) > MANY else points
    n = len(points)
    different = count_distinct(points, min(n, most + 1))  # more need not be counted
    most = max(min(most, different if different < n else n - 1), 1)
    if most == 1:
        return _make_choice(1, how, (np.nan,))
    match how:
        case "silhouette":
            curve = [float(silhouette_score(points, kmeans(points, k, rng))) for k in range(2, most + 1)]  # Rousseeuw (1987)
            return _make_choice(2 + int(np.argmax(curve)), "silhouette", (np.nan, *curve))
        case "ward":
            return _choose_by_ward(points, most)
        case "gap":
            return _choose_by_gap(points, rng, most)
        case "stability":
            return _choose_by_stability(points, rng, most)


def _make_choice(k: int, how: Criterion, curve: tuple[float, ...]) -> Choice:
    return Choice(k, how, {how: curve})


def _choose_by_ward(points: Doubles, most: int) -> Choice:
    """The rule of CLoVE's authors: cuts of Ward's tree, from two groups on; more groups count only where the silhouette is 10 % better."""
    middled = points - points.mean(axis=0)
    distances, curve, best, k = compute_distances(middled @ middled.T), [], -1.0, 2
    for candidate in range(2, most + 1):
        curve.append(float(silhouette_score(points, agglomerative_clustering(distances, groups=candidate, linkage="ward"))))
        if curve[-1] > WARD_GAIN * best:
            best, k = curve[-1], candidate
    return _make_choice(k, "ward", (np.nan, *curve))


def _choose_by_gap(points: Doubles, rng: np.random.Generator, most: int, draws: int = 20) -> Choice:
    """Tibshirani, Walther and Hastie (2001), against uniform boxes along the principal axes.

    The smallest k within one error of the largest gap (Dudoit and Fridlyand 2002): the original's "first k that the next does not beat"
    stops at 1 when several groups lie equally far apart, since two of them then explain hardly more than one.
    """
    rotated = points - points.mean(axis=0)
    rotated = rotated @ np.linalg.svd(rotated, full_matrices=False)[2].T
    low, high = rotated.min(axis=0), rotated.max(axis=0)
    ks = range(1, most + 1)
    logs = np.array([[_compute_log_inertia(rng.uniform(low, high, rotated.shape), k, rng, 3) for k in ks] for _ in range(draws)])
    gaps = logs.mean(axis=0) - [_compute_log_inertia(points, k, rng, 10) for k in ks]
    errors = logs.std(axis=0) * np.sqrt(1 + 1 / draws)
    best = int(np.argmax(gaps))
    return _make_choice(1 + int(np.argmax(gaps >= gaps[best] - errors[best])), "gap", tuple(map(float, gaps)))


def _choose_by_stability(points: Doubles, rng: np.random.Generator, most: int, draws: int = 20) -> Choice:
    """Ben-Hur, Elisseeff and Guyon (2002): two samples of 80 %, grouped apart, must agree on the clients they share.

    The largest k within .01 of the best mean agreement (adjusted Rand index); one group where even the best is below .9. Only k that leave
    two clients a group in a sample are tested: clients each in their own group always agree.
    """
    n = len(points)
    size = int(np.ceil(0.8 * n))
    curve = [1.0]
    for k in range(2, min(most, size // 2) + 1):
        scores = []
        for _ in range(draws):
            one, two = (np.sort(rng.permutation(n)[:size]) for _ in range(2))
            both = np.intersect1d(one, two)
            labels = [kmeans(points[sample], k, rng, restarts=3)[np.searchsorted(sample, both)] for sample in (one, two)]
            scores.append(adjusted_rand_score(*labels))
        curve.append(float(np.mean(scores)))
    best = max(curve[1:], default=0.0)
    k = max(k for k, score in enumerate(curve, start=1) if score >= best - 0.01) if best >= 0.9 else 1
    return _make_choice(k, "stability", tuple(curve))


def _compute_log_inertia(points: Doubles, k: int, rng: np.random.Generator, restarts: int) -> float:
    whole = float(((points - points.mean(axis=0)) ** 2).sum())
    return float(np.log(max(compute_inertia(points, kmeans(points, k, rng, restarts)), 1e-12 * whole)))
