"""FedGroup's cold starts: how groups are found among pre-trained clients, and how a client that comes later finds its group.

Duan et al., "FedGroup: Ternary Cosine Similarity-based Clustered Federated Learning Framework toward High Accuracy in Heterogeneity Data",
Algorithms 3 and 4 and Eq. 10. Line 7 of Algorithm 4 prints the mean *update* as the group's model; here it is added to w_0.
"""

from abc import ABC
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.errors import UserError
from coterie.core.held import less
from coterie.core.holdings import Holdings
from coterie.core.layout import InitialModels
from coterie.core.local import Local
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing, mix
from coterie.core.rng import generator, key
from coterie.core.settings import setting
from coterie.grouping.clusterers import canonical, inertia, kmeans, nearest, silhouette
from coterie.grouping.controls import controlled
from coterie.grouping.similarity import ternary_cosines
from coterie.methods.grouped import GroupedMethod, Groups, mean_model
from coterie.methods.number import ChoosesGroups, GroupNumber
from coterie.methods.sketching import Sketching
from coterie.methods.update_directions import closest, compared_updates


@dataclass(frozen=True)
class Directed(Groups):
    """A model and a direction for each group; before the group cold start, one model and no directions."""

    initial: Floats  # (d,) w_0, where newcomers pre-train
    directions: Floats  # (m, d) mean update of the group's pre-trained clients, or (m, r) its sketch; literally, the group's latest update


@dataclass(frozen=True, kw_only=True)
class ColdStart(Sketching[Directed], GroupedMethod[Directed], ChoosesGroups, ABC):
    """Groups by the directions of pre-trained updates; newcomers may arrive in any round and join by theirs."""

    groups: GroupNumber = setting(3, "Groups (m).", least=1)
    alpha: int = setting(20, "Clients that pre-train, for each group.", least=1)
    pretrain: int = setting(1, "Epochs of pre-training.", least=1)
    pretrain_steps: int | None = setting(None, "Steps of pre-training instead; 50 is the authors' later choice.", least=1)
    directions: int | Literal["groups"] = setting(3, "Singular directions; groups (m) in the authors' later measure.", least=1)
    start_from: Literal["pretrained", "w0"] = setting("pretrained", "Where groups' models begin.")
    centres: Literal["kmeans", "random"] = setting("kmeans", "How groups are cut; random centres are RCC.")
    cold: Literal["nearest", "random"] = setting("nearest", "Where newcomers go; a random group is RAC.")
    restarts: int = setting(10, "Starts of k-means.", least=1)
    literal: bool = setting(False, "Eq. 10 and lines 22-23 to the letter.")

    @property
    def holdings(self) -> Holdings:
        least = self.groups if isinstance(self.groups, int) else 1
        return Holdings(gathered=max(self.alpha * least, self.tried_on(self.groups)), placing=self.cold != "random")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sketch is not None and (self.start_from != "w0" or self.literal):
            wants = "literal=true" if self.literal else "start_from=pretrained"
            raise UserError(
                f"{type(self).__name__} cannot use sketch={self.sketch} with {wants}: of pre-training the server then has sketches, "
                "and no models to begin from. Use start_from=w0 without literal."
            )

    def group_cold_start(self, state: Directed, ctx: Context) -> Round[Directed]:
        """Algorithms 3 and 4."""
        w0, sketch = state.initial[None, :], self.sketching(ctx)
        m = yield from self.asked_number(self.groups, w0, lambda i=0: state.initial, ctx, sketch=sketch)
        clients = ctx.sample(ctx.roster.available, self.alpha * (m or self.most), "pre-training clients")  # Alg. 3, line 2
        pretrained = yield from Train(clients, w0, self.pretraining(ctx), purpose="pretrain", partial=True, sketch=sketch)  # lines 3-5
        if not len(pretrained):
            return state
        count = (m or self.most) if self.directions == "groups" else self.directions
        updates, origin = compared_updates(pretrained, w0, sketch, ctx)
        points = ternary_cosines(updates, count, origin)  # Eq. 7-9
        m = self.read_number(m, points, ctx)
        labels = self._labels(points, pretrained.clients, m, ctx)
        ctx.note("within", inertia(points, labels))  # Alg. 4, line 6
        labels = canonical(controlled(labels, pretrained.clients, self.assign, ctx))
        sizes = np.bincount(labels)
        ctx.note("group_sizes", sizes)
        ctx.notes.silhouette = silhouette(points, labels)
        ctx.note("groups_capped", int(max(m - len(sizes), 0)))  # fewer distinct directions, or clients, than groups asked for
        means = Mixing.within(pretrained.clients, labels, np.ones(len(labels)), 1, models=len(sizes))  # Alg. 4, line 7
        means = ctx.bound_mixing(means)
        unmoved = Mixing(pretrained.clients, np.zeros_like(means.replies), np.ones_like(means.before))  # Alg. 2, line 2
        models = ctx.mix(means if self.start_from == "pretrained" else unmoved, pretrained, w0)
        groups = state.everybody(ctx)
        groups[pretrained.clients] = labels
        moved = less(pretrained.vectors, w0) if sketch is None else pretrained.vectors
        directions = mix(means, moved, np.zeros((1, moved.shape[1]), np.float32))  # line 8: the mean update
        return Directed(models, groups, state.initial, directions)

    def start(self, init: InitialModels, ctx: Context) -> Round[Directed]:
        w0 = init()
        state = Directed(w0[None, :], np.full(len(ctx.roster), -1, np.int64), w0, np.zeros((0, len(w0)), np.float32))
        return (yield from self.group_cold_start(state, ctx))

    def _labels(self, points: Doubles, clients: Ids, m: int, ctx: Context) -> Ids:
        """Alg. 4, line 3: k-means++, or (RCC) the nearest of m random clients."""
        if self.centres == "kmeans":
            return kmeans(points, m, ctx.rng("groups"), self.restarts)
        centres = np.searchsorted(clients, ctx.sample(clients, m, "random centres"))
        return canonical(nearest(points, points[centres]))

    def client_cold_start(self, state: Directed, new: Ids, ctx: Context) -> Round[tuple[Ids, Trained | None]]:
        """(n,) the group of each newcomer, -1 for one that does not answer; and what they pre-trained (Eq. 10)."""
        m = len(state.models)
        if m == 1:
            return np.zeros(len(new), dtype=np.int64), None
        if self.cold == "random":  # RAC
            drawn = [generator(key(ctx.seed, "random group", ctx.roster.ids[client])).integers(m) for client in new]
            return np.array(drawn, dtype=np.int64), None
        origin, sketch = mean_model(state.models) if self.literal else state.initial[None, :], self.sketching(ctx)
        pretrained = yield from Train(new, origin, self.pretraining(ctx), purpose="pretrain", partial=True, sketch=sketch)
        rows = np.full(len(new), -1, dtype=np.int64)
        directions = state.directions if sketch is not None else ctx.layout.comparable(state.directions)
        rows[np.searchsorted(new, pretrained.clients)] = closest(*compared_updates(pretrained, origin, sketch, ctx), directions)
        return rows, pretrained

    def place(self, state: Directed, new: Ids, ctx: Context) -> Round[Ids]:
        return (yield from self.client_cold_start(state, new, ctx))[0]

    def pretraining(self, ctx: Context) -> Local:
        """The same for everybody whenever they come: no proximal term, the rate of the first round."""
        local, steps = ctx.plan.local.but(mu=0.0, epochs=self.pretrain), self.pretrain_steps
        return local if steps is None else local.but(epochs=steps, max_steps=steps)  # an epoch has at least one step
