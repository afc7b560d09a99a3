"""FeSEM's centres: where they begin, and how a client that comes later finds its own.

Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-Center Federated Learning: Clients Clustering for Better Personalization": Algorithm 1,
line 1, and the training settings of Section 6.1.
"""

from abc import ABC
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.errors import UserError
from coterie.core.holdings import Holdings
from coterie.core.layout import InitialModels
from coterie.core.local import Local
from coterie.core.method import Context, Round, done
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.sketches import Sketch, project
from coterie.grouping.clusterers import canonical, kmeans, silhouette
from coterie.grouping.controls import controlled
from coterie.methods.averaging import Weighting, weights_of
from coterie.methods.centre_distances import Compared, distances_to, points_of, squared_distances
from coterie.methods.grouped import GroupedMethod, Groups, within_groups
from coterie.methods.number import ChoosesGroups, GroupNumber
from coterie.methods.sketching import Sketching

USUAL = 256  # numbers of a sketch unless said: distances survive to about 6 %


@dataclass(frozen=True)
class Centres(Groups):
    """The centres, and whose they are; before the warm-up, the common start alone."""

    initial: Floats  # (d,) w_0
    first: Floats  # (K, d) the centres right after the warm-up, which newcomers are compared with; no rows before it


@dataclass(frozen=True, kw_only=True)
class WarmStart(Sketching[Centres], GroupedMethod[Centres], ChoosesGroups, ABC):
    """Centres from one round of local training; newcomers are compared with them as they were then."""

    groups: GroupNumber = setting(3, "Centres (K).", least=1)
    warmup: int | None = setting(None, "Epochs of the first round; the plan's unless given.", least=1)
    warmup_by: Literal["all", "cohort"] = setting("all", "Who trains in the first round.")
    weighting: Weighting = setting("uniform", "How much a client counts in its centre (Eq. 9).")
    assign_on: Compared = setting("all", "What the E-step compares.")
    newcomers: Literal["train", "loss"] = setting("train", "How a client never seen finds its centre.")
    restarts: int = setting(20, "Starts of k-means.", least=1)

    @property
    def holdings(self) -> Holdings:
        gathered = self.tried_on(self.groups)
        return Holdings(everybody=self.warmup_by == "all", gathered=gathered, placing=self.newcomers == "train")

    @property
    def groups_cohort(self) -> bool:
        return self.warmup_by == "cohort"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sketch is not None and self.assign_on != "sketch":
            raise UserError(f"{type(self).__name__} cannot use sketch={self.sketch} with assign_on={self.assign_on}: add assign_on=sketch.")

    def sketching(self, ctx: Context) -> Sketch | None:
        size = self.sketch or USUAL
        return ctx.sketch(size, self.sketch_clip, self.sketch_noise) if self.assign_on == "sketch" else None

    def start(self, init: InitialModels, ctx: Context) -> Round[Centres]:
        """Asks nothing: the warm-up is round 1, on the round axis and in the costs."""
        w0 = init()
        return done(Centres(w0[None, :], np.full(len(ctx.roster), -1, np.int64), w0, np.zeros((0, len(w0)), np.float32)))

    def warm_up(self, state: Centres, ctx: Context) -> Round[Centres]:
        """Round 1: one local training from w_0, then k-means++."""
        known = yield from self.asked_number(self.groups, state.models, lambda i=0: state.initial, ctx, sketch=self.sketching(ctx))
        clients = ctx.roster.available if self.warmup_by == "all" else ctx.cohort()
        trained = yield from Train(clients, state.models, self._warm(ctx.local))
        if not len(trained):
            return state
        trained = self.aligned(trained, np.zeros(len(trained), dtype=np.int64), state.models, ctx)
        points = points_of(trained.vectors, state.initial, self.assign_on, self.sketching(ctx), ctx)
        k = self.read_number(known, points, ctx)
        labels = kmeans(points, k, ctx.rng("groups"), self.restarts)
        labels = canonical(controlled(labels, trained.clients, self.assign, ctx))
        sizes = np.bincount(labels)
        ctx.note("group_sizes", sizes)
        ctx.notes.silhouette = silhouette(points, labels)
        ctx.note("groups_capped", int(max(k - len(sizes), 0)))  # fewer distinct models, or clients, than centres asked for
        groups = state.everybody(ctx)
        groups[trained.clients] = labels
        models = within_groups(state, trained, labels, weights_of(trained, self.weighting), len(sizes), ctx)
        return Centres(models, groups, state.initial, models)

    def place(self, state: Centres, new: Ids, ctx: Context) -> Round[Ids]:
        """A client never seen trains from w_0, as the others did, and is compared with the first centres; or takes the lowest loss."""
        if self.newcomers == "loss" or len(state.models) == 1:
            return (yield from super().place(state, new, ctx))
        rows = np.full(len(new), -1, dtype=np.int64)
        sketch = self.sketching(ctx)
        trained = yield from Train(new, state.initial, self._warm(ctx.plan.local), purpose="warm-up", sketch=sketch)
        if sketch is None:
            apart = self.distances(trained.vectors, state.first, ctx)
        else:  # sketches are of updates: so are those of the first centres
            first, origin = (ctx.layout.comparable(part) for part in (state.first, state.initial[None, :]))
            apart = squared_distances(trained.vectors, project(first, sketch, origin))
        rows[np.searchsorted(new, trained.clients)] = apart.argmin(axis=1)
        return rows

    def serve(self, state: Centres, clients: Ids, ctx: Context) -> Round[Serving]:
        if not len(state.first):
            return Serving.one(clients, state.models)
        return (yield from super().serve(state, clients, ctx))

    def _warm(self, local: Local) -> Local:
        return local if self.warmup is None else local.but(epochs=self.warmup)

    def distances(self, vectors: Floats, centres: Floats, ctx: Context) -> Doubles:
        """(n, K) what the E-step compares; FeSEM-MA has its own."""
        return distances_to(vectors, centres, self.assign_on, self.sketching(ctx), ctx)

    def aligned(self, trained: Trained, own: Ids, centres: Floats, ctx: Context) -> Trained:
        """The models as they are averaged with the others of their centre; FeSEM-MA puts their neurons in order."""
        return trained
