"""Robust federated learning in a heterogeneous world: trimmed k-means, then trimmed means.

Ghosh et al., "Robust Federated Learning in a Heterogeneous Environment" (2019): local models, clustered by trimmed k-means (TKM), then a
robust optimisation in each cluster, here Yin et al.'s coordinate-wise trimmed mean (2018). FeSEM's paper calls it Robust (TKM).
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats, Ids, Ints
from coterie.core.asks import Trained
from coterie.core.method import Context, Round, done
from coterie.core.mixing import Mixing
from coterie.core.settings import setting
from coterie.core.vectors import MAX_SORTED, as_vectors
from coterie.grouping.kmeans import trimmed_kmeans
from coterie.grouping.landmarks import MANY
from coterie.methods import robust_rules
from coterie.methods.grouped import OneShotClustering, OneShotState, compute_client_points


@dataclass(frozen=True, kw_only=True)
class Robust(OneShotClustering):
    """Clusters found in the first round among all clients' local models, the oddest left out; then a trimmed mean in each.

    Example: ``ct.Robust(groups=4, trim=0.1)``, or the spec ``robust(groups=4,trim=0.1)``.
    """

    groups: int = setting(3, "Groups.", minimum=1)
    trim: float = setting(
        0.05, "Share of clients left out of the clustering, and of values at each end of a coordinate.", minimum=0, below=0.5
    )

    def due(self, ctx: Context) -> bool:
        return True

    @property
    def weighs_alike(self) -> bool:
        return True  # a trimmed mean counts every client alike

    def labels(self, state: OneShotState, trained: Trained, ctx: Context) -> Round[Ids]:
        points = compute_client_points(ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models), ctx)
        labels, odd = trimmed_kmeans(points, self.groups, int(self.trim * len(points)), ctx.rng("clusters"))
        ctx.note("odd_clients", trained.clients[odd])  # they count in no centre, and join the nearest
        return done(labels)

    def aggregate(self, state: OneShotState, trained: Trained, groups: Ids, models: int, ctx: Context) -> Floats:
        """Coordinate-wise trimmed means. Where nothing is trimmed that is the plain mean, and the matrix holds all.

        Where something is, no matrix does: each coordinate leaves out others. Its row then holds the share of the coordinates in which
        each client counted, and is marked as no average.
        """
        plain = ctx.bound_mixing(Mixing.within(trained.clients, groups, np.ones(len(trained)), len(state.models), models))
        shares = plain.replies.copy()
        means: dict[int, Floats | Doubles] = {}
        for j in range(models):
            members = np.flatnonzero(groups == j)
            cut, votes = int(self.trim * len(members)), ctx.votes(trained.clients[members])
            if self.trim and votes is not None:  # the share of the votes, not of the clients, goes at each end
                means[j], shares[j, members] = robust_rules.compute_trimmed_mean(np.asarray(trained.vectors[members]), votes, self.trim)
            elif cut:
                means[j], shares[j, members] = compute_trimmed_mean(trained.vectors[members], cut)
        # the bound is on what enters a mean: of what is left after trimming, honest sites may make up more
        mixing = Mixing(trained.clients, shares, plain.before, averages=not means, bounded=True)
        result = ctx.mix(mixing, trained, state.models)
        for j, mean in means.items():
            result[j] = mean
        ctx.note("trimmed_groups", len(means))
        return result


def compute_trimmed_mean(vectors: Floats, cut: int) -> tuple[Floats, Doubles]:
    """(d,) the mean of each coordinate without its `cut` lowest and highest values, and (n,) how much of it each row made up."""
    rows = as_vectors(vectors)
    n = len(rows)
    if n > MANY and rows.xp is np:
        return _compute_trimmed_mean_of_many(rows.to_host(), cut)
    means, counted = [], 0
    for _, values, order in rows.sorted_columns():
        means.append(values[cut : n - cut].mean(axis=0))
        counted = counted + rows.xp.bincount(order[cut : n - cut].ravel(), minlength=n)
    shares = rows.bring(counted, few=True).astype(np.float64)
    mean = rows.xp.asarray(rows.xp.concatenate(means), dtype=rows.xp.float32)
    return rows.bring(mean), shares / shares.sum()


def _compute_trimmed_mean_of_many(vectors: Floats, cut: int) -> tuple[Floats, Doubles]:
    """The same to rounding: what is kept lies between two ranks, which are found without sorting."""
    n, d = vectors.shape
    mean, counted = np.empty(d, dtype=np.float32), np.zeros(n)
    for begin in range(0, d, columns := max(8, MAX_SORTED // n)):
        for at, values in enumerate(np.ascontiguousarray(vectors[:, begin : begin + columns].T), begin):
            kept = _select_between_ranks(values, cut)
            mean[at] = values[kept].mean(dtype=np.float64)
            counted += kept
    return mean, counted / counted.sum()


def _select_between_ranks(values: Floats, cut: int) -> Bools:
    """(n,) which values a stable sort would leave without `cut` at either end: of equals the first are the lower ones."""
    low, high = np.partition(values, [cut, len(values) - cut - 1])[[cut, -cut - 1]]
    kept = (values >= low) & (values <= high)
    lowest: Ints = np.flatnonzero(values == low)
    kept[lowest[: cut - int(np.count_nonzero(values < low))]] = False
    highest: Ints = np.flatnonzero(values == high)
    kept[highest[len(highest) - (cut - int(np.count_nonzero(values > high))) :]] = False
    return np.asarray(kept)
