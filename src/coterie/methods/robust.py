"""Robust federated learning in a heterogeneous world: trimmed k-means, then trimmed means.

Ghosh et al., "Robust Federated Learning in a Heterogeneous Environment" (2019): local models, clustered by trimmed k-means (TKM), then a
robust optimisation in each cluster, here Yin et al.'s coordinate-wise trimmed mean (2018). FeSEM's paper calls it Robust (TKM).
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats, Ids
from coterie.core.asks import Trained
from coterie.core.method import Context, Round, done
from coterie.core.mixing import Mixing
from coterie.core.settings import setting
from coterie.grouping.clusterers import kmeans
from coterie.grouping.principal import points_of_rows
from coterie.grouping.similarity import BLOCK
from coterie.methods.clustered_once import ClusteredOnce, Clusters

SORTED = 1 << 24  # numbers of many clients that are sorted at a time


@dataclass(frozen=True, kw_only=True)
class Robust(ClusteredOnce):
    """Clusters found in the first round among everybody's local models, the oddest left out; then a trimmed mean in each."""

    groups: int = setting(3, "Groups.", least=1)
    trim: float = setting(
        0.05, "Share of clients left out of the clustering, and of values at each end of a coordinate.", least=0, below=0.5
    )

    def due(self, ctx: Context) -> bool:
        return True

    @property
    def weighs_alike(self) -> bool:
        return True  # a trimmed mean counts every client alike

    def labels(self, state: Clusters, trained: Trained, ctx: Context) -> Round[Ids]:
        points = points_of_rows(ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models), ctx)
        labels, odd = trimmed_kmeans(points, self.groups, int(self.trim * len(points)), ctx.rng("clusters"))
        ctx.note("odd_clients", trained.clients[odd])  # they count in no centre, and join the nearest
        return done(labels)

    def aggregate(self, state: Clusters, trained: Trained, groups: Ids, models: int, ctx: Context) -> Floats:
        """Coordinate-wise trimmed means. Where nothing is trimmed that is the plain mean, and the matrix says all.

        Where something is, no matrix does: each coordinate leaves out others. Its row then holds the share of the coordinates in which
        each client counted, and is marked as no average.
        """
        plain = Mixing.within(trained.clients, groups, np.ones(len(trained)), len(state.models), models)
        shares, means = plain.replies.copy(), {}
        for j in range(models):
            members = np.flatnonzero(groups == j)
            cut = int(self.trim * len(members))
            if cut:
                means[j], shares[j, members] = trimmed_mean(trained.vectors[members], cut)
        result = ctx.mix(Mixing(trained.clients, shares, plain.before, averages=not means), trained, state.models)
        for j, mean in means.items():
            result[j] = mean
        ctx.note("trimmed_groups", len(means))
        return result


def trimmed_mean(vectors: Floats, cut: int) -> tuple[Floats, Doubles]:
    """(d,) the mean of each coordinate without its `cut` lowest and highest values, and (n,) how much of it each row made up."""
    n, d = vectors.shape
    mean, counted, columns = np.empty(d, dtype=np.float32), np.zeros(n), max(8, min(BLOCK, SORTED // n))
    for begin in range(0, d, columns):
        block = vectors[:, begin : begin + columns].astype(np.float64)
        kept = np.argsort(block, axis=0, kind="stable")[cut : n - cut]
        mean[begin : begin + columns] = np.take_along_axis(block, kept, axis=0).mean(axis=0)
        counted += np.bincount(kept.ravel(), minlength=n)
    return mean, counted / counted.sum()


def trimmed_kmeans(points: Doubles, k: int, leave: int, rng: np.random.Generator, restarts: int = 20) -> tuple[Ids, Bools]:
    """k-means in which the `leave` farthest points count in no centre: labels (the nearest centre), and who was left out.

    Each start clusters a random part of the points, so that some start without the odd ones; the least trimmed inertia wins.
    """
    best, labels, odd = np.inf, kmeans(points, k, rng), np.zeros(len(points), dtype=np.bool_)
    k = int(labels.max()) + 1 if len(labels) else 0
    if not leave or k >= len(points) - leave:
        return labels, odd
    for _ in range(restarts):
        part = rng.permutation(len(points))[: len(points) - leave]
        inertia, near, left = _settle(points, _means(points[part], kmeans(points[part], k, rng, restarts=1)), leave)
        if inertia < best:
            best, labels, odd = inertia, near, left
    return labels, odd


def _settle(points: Doubles, centres: Doubles, leave: int) -> tuple[float, Ids, Bools]:
    """Lloyd's iteration, leaving out the farthest: trimmed inertia, nearest centres, who was left out."""
    labels, odd = np.full(len(points), -1, dtype=np.int64), np.zeros(len(points), dtype=np.bool_)
    for _ in range(100):
        squares = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        near, gaps = squares.argmin(axis=1), squares.min(axis=1)
        left = np.zeros(len(points), dtype=np.bool_)
        left[np.argsort(gaps, kind="stable")[len(points) - leave :]] = True
        inertia = float(gaps[~left].sum())
        if np.array_equal(near, labels) and np.array_equal(left, odd):
            break
        labels, odd = near, left
        for j in np.unique(labels[~odd]):
            centres[j] = points[(labels == j) & ~odd].mean(axis=0)
    return inertia, labels, odd


def _means(points: Doubles, labels: Ids) -> Doubles:
    return np.array([points[labels == j].mean(axis=0) for j in range(int(labels.max()) + 1)])
