"""Flux: one clustering of all clients by descriptors of their data, with a number of groups that density gives.

Fenoglio, Li, Barbiero, Lane, Langheinrich and Gjoreski, "FLUX: Efficient Descriptor-Driven Clustered Federated Learning under Arbitrary
Distribution Shifts" (2025). Steps are those of the method's page.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.spatial import cKDTree
from sklearn.cluster import DBSCAN

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Together, Train
from coterie.core.descriptions import Described
from coterie.core.layout import InitialModels
from coterie.core.method import ALL_CLIENTS_TRAIN, Context, MemoryNeeds, Round
from coterie.core.serving import NamedModels
from coterie.core.settings import setting
from coterie.grouping.clustering import find_nearest
from coterie.grouping.kmeans import kmeans, renumber_labels
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.client_descriptions import BlockScale, ask_descriptors, check_describable, read_blocks
from coterie.methods.controls import apply_control
from coterie.methods.group_number import choose_from_structure
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups, name_models

UNLABELLED = 2  # blocks that need no label: mean and deviation of all samples


@dataclass(frozen=True)
class FluxState(Groups):
    """One model until the clustering, then one a group, and what newcomers are compared with."""

    clustered: bool
    described: Floats  # (1, d) the model that descriptors are of; (0, d) before the clustering
    centres: Doubles  # (groups, 2 p) the mean descriptor of each group, without labels
    low: Doubles  # (2,) the scale of these blocks
    high: Doubles


@dataclass(frozen=True, kw_only=True)
class Flux(GroupedMethod[FluxState]):
    """FedAvg for `warmup` rounds, density clustering of all clients' descriptors in the next, FedAvg in each cluster from then on.

    Example: ``ct.Flux(warmup=5)``, or the spec ``flux(warmup=5)``.
    """

    warmup: int = setting(3, "Rounds of FedAvg before the clustering.", minimum=0)
    groups: int | Literal["density", "auto"] = setting("density", "Groups: by density, a number, or by the structure test.", minimum=1)
    reach: float = setting(1.0, "Of density: times the knee of the distances to nearest neighbours.", above=0)
    labels: bool = setting(True, "Describe each class as well, which shows how many samples it has.")
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")
    most: int = setting(10, "The most groups that auto may find.", minimum=1)
    again: int | None = setting(None, "Rounds after which clients describe themselves again, and are clustered again.", minimum=1)

    @property
    def memory_needs(self) -> MemoryNeeds:
        return ALL_CLIENTS_TRAIN

    def start(self, init: InitialModels, ctx: Context) -> Round[FluxState]:
        check_describable("Flux", self.labels, ctx)
        yield from ()
        model = init()[None, :]
        none = np.zeros(UNLABELLED)
        return FluxState(model, np.full(len(ctx.roster), -1, dtype=np.int64), False, model[:0], np.zeros((0, 0)), none, none)

    def round(self, state: FluxState, ctx: Context) -> Round[FluxState]:
        if not state.clustered and ctx.round_ > self.warmup:  # step 1
            return (yield from self._cluster(state, ctx))
        if state.clustered and self.again is not None and (ctx.round_ - self.warmup - 1) % self.again == 0:
            state = yield from self._cluster_again(state, ctx)
        trained, rows, groups = yield from self.train_cohort(state, ctx, grouped=state.clustered)
        if not len(trained):
            return state
        models = average_within_groups(state, trained, rows, compute_weights(trained, self.weighting), len(state.models), ctx)
        return replace(state, models=models, groups=groups)

    def _cluster(self, state: FluxState, ctx: Context) -> Round[FluxState]:
        """All clients describe themselves at the shared model and train it; models are averaged within the clusters (step 6)."""
        asked = ctx.roster.available
        trained, found = yield from Together(
            Train(asked, state.models, ctx.local), ask_descriptors(asked, state.models, ctx, labels=self.labels)
        )  # step 2
        both = np.intersect1d(trained.clients, found.clients)
        if not len(both):
            return state  # the next round tries again
        trained, after = trained.of(both), replace(state, clustered=True, described=state.models)
        after, labels = yield from self._group(after, found.of(both), ctx)
        models = average_within_groups(state, trained, labels, compute_weights(trained, self.weighting), len(after.centres), ctx)
        return replace(after, models=models)

    def _group(self, state: FluxState, found: Described, ctx: Context) -> Round[tuple[FluxState, Ids]]:
        """The state with the groups of these clients (steps 3 to 5), its models left as they are; and the clients' labels."""
        blocks = read_blocks(found)
        scale = BlockScale.fit(blocks)
        similar = yield from self._find_groups(scale.apply(blocks), state, ctx)
        labels = renumber_labels(apply_control(similar, found.clients, self.assign, ctx))
        count, groups = int(labels.max()) + 1, state.all_groups(ctx)
        groups[found.clients] = labels
        ctx.note("groups_found", count)
        low, high = scale.low[:UNLABELLED], scale.high[:UNLABELLED]
        short = BlockScale(low, high).apply(blocks[:, :UNLABELLED])
        centres = np.stack([short[labels == j].mean(axis=0) for j in range(count)])
        return replace(state, groups=groups, centres=centres, low=low, high=high), labels

    def _cluster_again(self, state: FluxState, ctx: Context) -> Round[FluxState]:
        """All clients describe themselves at the same model as before. Where the groups are others, each begins with the mean of what its
        members had; where they are not, nothing changes."""
        found = yield from ask_descriptors(ctx.roster.available, state.described, ctx, labels=self.labels)
        found = found.of(np.flatnonzero(state.all_groups(ctx) >= 0))
        if not len(found):
            return state
        before = state.groups[found.clients]
        after, labels = yield from self._group(state, found, ctx)
        if np.array_equal(renumber_labels(before), labels):
            return state
        weights = np.maximum(ctx.roster.sizes[found.clients], 1).astype(np.float64)
        shares = np.stack([np.bincount(before, weights * (labels == j), len(state.models)) for j in range(int(labels.max()) + 1)])
        models = (shares / shares.sum(axis=1, keepdims=True)) @ state.models.astype(np.float64)
        ctx.note("regrouped", int(np.sum(labels != renumber_labels(before))))
        silent = np.setdiff1d(np.flatnonzero(after.groups >= 0), found.clients)
        groups = after.groups.copy()
        groups[silent] = -1  # they join when they next take part
        return replace(after, groups=groups, models=models.astype(np.float32))

    def _find_groups(self, points: Doubles, state: FluxState, ctx: Context) -> Round[Ids]:
        if self.groups == "density":
            return find_dense_groups(points, self.reach, ctx)
        count = self.groups
        if count == "auto":
            ctx.notes.choice = yield from choose_from_structure(state.models, ctx, self.most)
            count = ctx.notes.choice.k
        return kmeans(points, count, ctx.rng("clusters"))

    def place(self, state: FluxState, new: Ids, ctx: Context) -> Round[Ids]:
        """Step 7: the nearest centre on the part without labels; -1 for a client that does not answer."""
        if len(state.models) == 1:
            return np.zeros(len(new), dtype=np.int64)
        rows = np.full(len(new), -1, dtype=np.int64)
        found = yield from ask_descriptors(new, state.described, ctx, labels=False)
        if len(found):
            rows[np.isin(new, found.clients)] = find_nearest(BlockScale(state.low, state.high).apply(read_blocks(found)), state.centres)
        return rows

    def central(self, state: FluxState) -> NamedModels:
        return name_models(state.models, mean=True)


def find_dense_groups(points: Doubles, reach: float, ctx: Context) -> Ids:
    """(n,) clusters of points that have a neighbour within `eps`; a point without one is a cluster of its own (step 5)."""
    if len(points) < 2:
        return np.zeros(len(points), dtype=np.int64)
    nearest = np.sort(cKDTree(points).query(points, k=2)[0][:, 1])
    eps = reach * float(nearest[find_knee(nearest)])
    ctx.note("eps", eps)
    labels: Ids = np.array(DBSCAN(eps=max(eps, 1e-12), min_samples=2).fit(points).labels_, dtype=np.int64)
    alone = np.flatnonzero(labels < 0)
    labels[alone] = labels.max() + 1 + np.arange(len(alone))
    return labels


def find_knee(values: Doubles) -> int:
    """Where a rising curve turns upwards: the place farthest below the line between its ends; the last one if none is below."""
    if len(values) < 3 or values[-1] <= values[0]:
        return len(values) - 1
    below = np.linspace(0, 1, len(values)) - (values - values[0]) / (values[-1] - values[0])
    return int(below.argmax()) if below.max() > 1e-9 else len(values) - 1
