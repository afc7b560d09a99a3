"""FeSEM: multi-centre federated learning by stochastic expectation maximisation.

Long et al., "Multi-Center Federated Learning: Clients Clustering for Better Personalization" (004), Algorithms 1 and 2. The paper assumes
that all clients take part in every round. Here a round re-assigns only those who took part, by the model they have just trained, so no
table of everybody's last model is needed.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels, Layout
from coterie.core.local import Local
from coterie.core.method import Context, Method, Round, done
from coterie.core.mixing import Mixing
from coterie.core.rng import generator, key
from coterie.core.serving import Panel, Serving
from coterie.core.states import Models
from coterie.grouping.clusterers import canonical, choose, kmeans, silhouette
from coterie.grouping.controls import Assign, controlled
from coterie.grouping.similarity import BLOCK, coordinates, gram, sketch
from coterie.methods.fedavg import Weighting
from coterie.methods.joining import grown, largest, lowest_loss, panel_of, under_control
from coterie.methods.trial import trial

SKETCH = 256  # numbers a model is reduced to by assign_on="sketch": distances survive to about 6 %


@dataclass(frozen=True)
class Centres(Models):
    """The centres, and whose they are; before the warm-up, the common start alone."""

    initial: Floats  # (d,) w_0
    first: Floats  # (K, d) the centres right after the warm-up, which newcomers are compared with; no rows before it
    members: Ids  # (clients,) the centre of each client, -1 for one never seen


@dataclass(frozen=True, kw_only=True)
class FeSEM(Method[Centres]):
    """K centres: clients train from their own, move to the nearest, and centres move to the mean of their clients."""

    groups: int | Literal["auto"] = 3  # K
    lam: float = 0.1  # lambda: the paper gives none; the authors' code has .1
    warmup: int | None = None  # epochs of the first round; the plan's unless given
    warmup_by: Literal["all", "cohort"] = "all"
    weighting: Weighting = "uniform"  # Eq. 9
    assign_on: Literal["all", "last_layer", "sketch"] = "all"  # what the E-step compares
    newcomers: Literal["train", "loss"] = "train"  # how a client never seen finds its centre
    literal: bool = False
    restarts: int = 20
    choice: Literal["trial", "silhouette", "gap", "stability"] = "trial"  # how "auto" finds the number of centres
    most: int = 8  # and the most it may find
    assign: Assign = "similar"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("groups", "warmup", "restarts", "most"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise UserError(f"FeSEM cannot use {name}={value}: give 1 or more.")
        if not 0 <= self.lam < np.inf:
            raise UserError(f"FeSEM cannot use lam={self.lam}: give a finite number, 0 or more.")

    def start(self, init: InitialModels, ctx: Context) -> Round[Centres]:
        """Asks nothing: the warm-up is round 1, on the round axis and in the costs."""
        w0 = init()
        return done(Centres(w0[None, :], w0, np.zeros((0, len(w0)), np.float32), np.full(len(ctx.roster), -1, np.int64)))

    def round(self, state: Centres, ctx: Context) -> Round[Centres]:
        if not len(state.first):
            return (yield from self._warm_up(state, ctx))
        cohort = ctx.cohort()
        members = yield from self._with_newcomers(state, cohort, ctx)
        cohort = cohort[members[cohort] >= 0]
        local, mus = self._distance_term(cohort, ctx)
        trained = yield from Train(cohort, state.models, local, start=members[cohort], mus=mus)  # Eq. 7, Alg. 1, lines 8-13
        if not len(trained):
            return state
        apart = self._distances(trained.vectors, state.models, ctx)  # (n, K), Alg. 1, line 4
        before, everybody = members[trained.clients], grown(state.members, len(ctx.roster)).copy()
        everybody[trained.clients] = self._e_step(apart, before)
        reseeded = self._reseed(everybody, trained.clients, apart)
        labels = everybody[trained.clients]
        ctx.record("switches", int(np.sum(labels != before)))
        ctx.record("reseeded", np.array(reseeded, dtype=np.int64))
        ctx.record("intra_distance", float(np.take_along_axis(apart, labels[:, None], axis=1).mean()))  # Eq. 6
        trained = self._aligned(trained, labels, state.models, ctx)
        models = self._m_step(state.models, trained, labels, len(state.models), ctx)
        ctx.record("group_sizes", np.bincount(everybody[everybody >= 0], minlength=len(models)))
        return replace(state, models=models, members=everybody)

    def _warm_up(self, state: Centres, ctx: Context) -> Round[Centres]:
        """Round 1: one local training from w_0, then k-means++ (Alg. 1, line 1; 6.1, "Training settings")."""
        k = self.groups
        if k == "auto" and self.choice == "trial":
            k = yield from trial(lambda k: replace(self, groups=k, assign="similar"), lambda i=0: state.initial, ctx, self.most)
        clients = ctx.roster.available if self.warmup_by == "all" else ctx.cohort()
        trained = yield from Train(clients, state.models, self._warm(ctx.local))
        if not len(trained):
            return state
        trained = self._aligned(trained, np.zeros(len(trained), dtype=np.int64), state.models, ctx)
        points = self._points(trained.vectors, state.initial, ctx)
        if k == "auto":
            assert self.choice != "trial"
            chosen = choose(points, ctx.rng("number of groups"), self.most, self.choice)
            ctx.record("choice_curve", np.array(chosen.curve))
            k = chosen.k
        labels = kmeans(points, k, ctx.rng("groups"), self.restarts)
        labels = canonical(controlled(labels, trained.clients, self.assign, ctx))
        sizes = np.bincount(labels)
        ctx.record("group_sizes", sizes)
        ctx.record("silhouette", silhouette(points, labels))
        ctx.record("groups_capped", int(max(k - len(sizes), 0)))  # fewer distinct models, or clients, than centres asked for
        members = grown(state.members, len(ctx.roster)).copy()
        members[trained.clients] = labels
        models = self._m_step(state.models, trained, labels, len(sizes), ctx)
        return Centres(models, state.initial, models, members)

    def _distance_term(self, clients: Ids, ctx: Context) -> tuple[Local, Doubles | None]:
        """Eq. 7 divided by alpha_i: L_i + lambda / (m alpha_i) ||w - centre||^2, whose gradient is that of mu = 2 lambda / (m alpha_i).

        With equal sizes m alpha_i = 1, which is the default; literally, m alpha_i = n_i / mean n.
        """
        if not self.lam:
            return ctx.local, None
        sizes = ctx.roster.sizes
        return ctx.local.but(mu=2 * self.lam), 2 * self.lam * sizes.mean() / sizes[clients] if self.literal else None

    def _e_step(self, apart: Doubles, own: Ids) -> Ids:
        """Eq. 8: the nearest centre; the own one where another is only as near, and always under a control."""
        best = apart.argmin(axis=1)
        rows = np.arange(len(own))
        return np.where((apart[rows, best] < apart[rows, own]) & (self.assign == "similar"), best, own)

    def _reseed(self, members: Ids, clients: Ids, apart: Doubles) -> list[int]:
        """A centre that has lost every client gets this round's farthest, unless that would empty another; `members` is changed."""
        sizes = np.bincount(members[members >= 0], minlength=apart.shape[1])
        reseeded = []
        for empty in np.flatnonzero(sizes == 0) if self.assign == "similar" else []:
            own = members[clients]
            gaps = np.where(sizes[own] > 1, apart[np.arange(len(own)), own], 0.0)
            far = int(gaps.argmax())
            if gaps[far] > 0:
                sizes[own[far]] -= 1
                sizes[empty], members[clients[far]] = 1, empty
                reseeded.append(int(empty))
        return reseeded

    def _m_step(self, before: Floats, trained: Trained, labels: Ids, groups: int, ctx: Context) -> Floats:
        """Eq. 9 over this round's participants; a centre without any keeps its place."""
        weights = np.ones(len(trained)) if self.weighting == "uniform" else trained.sizes
        mixing = Mixing.within(trained.clients, labels, weights, len(before), models=groups)
        return ctx.mix(mixing, trained, before)

    def _with_newcomers(self, state: Centres, clients: Ids, ctx: Context) -> Round[Ids]:
        """(roster,) everybody's centre. A client never seen trains from w_0, as the others did, and is compared with the first centres."""
        members, models = grown(state.members, len(ctx.roster)).copy(), state.models
        known = members.copy()
        new = np.sort(clients[members[clients] < 0])
        if self.newcomers == "loss" or len(models) == 1:
            members[new] = yield from lowest_loss(new, models)
        elif len(new):
            trained = yield from Train(new, state.initial, self._warm(ctx.plan.local), purpose="warm-up")
            members[trained.clients] = self._distances(trained.vectors, state.first, ctx).argmin(axis=1)
        members[new] = under_control(members[new], new, known, len(models), self.assign, ctx)
        return members

    def _warm(self, local: Local) -> Local:
        return local if self.warmup is None else local.but(epochs=self.warmup)

    def _points(self, vectors: Floats, origin: Floats, ctx: Context) -> Doubles:
        """(n, r) the models as points with the distances that `assign_on` asks for."""
        vectors, origin = self._compared(vectors, ctx.layout), self._compared(origin[None, :], ctx.layout)
        if self.assign_on == "sketch":
            return sketch(vectors, SKETCH, generator(key(ctx.seed, "sketch")), origin)
        return coordinates(gram(vectors, origin))

    def _distances(self, vectors: Floats, centres: Floats, ctx: Context) -> Doubles:
        """(n, K) squared L2."""
        vectors, centres = self._compared(vectors, ctx.layout), self._compared(centres, ctx.layout)
        if self.assign_on == "sketch":  # equal keys project alike, so that sketches of different rounds can be compared
            return squared_distances(*(sketch(part, SKETCH, generator(key(ctx.seed, "sketch"))) for part in (vectors, centres)))
        return squared_distances(vectors, centres)

    def _compared(self, vectors: Floats, layout: Layout) -> Floats:
        if self.assign_on != "last_layer":
            return layout.comparable(vectors)
        weights = [piece for piece in layout.slices if piece.kind == "weight"]
        last = [piece for piece in weights if piece.name.rpartition(".")[0] == weights[-1].name.rpartition(".")[0]]
        return vectors[:, last[0].begin : last[-1].end]

    def _aligned(self, trained: Trained, own: Ids, centres: Floats, ctx: Context) -> Trained:
        """The models as they are averaged with the others of their centre; FeSEM-MA puts their neurons in order."""
        return trained

    def serve(self, state: Centres, clients: Ids, ctx: Context) -> Round[Serving]:
        """Its centre; a new client's as when it joins; the largest group's for one that does not answer."""
        if not len(state.first):
            return Serving.one(clients, state.models)
        members = yield from self._with_newcomers(state, clients, ctx)
        rows = members[clients]
        return Serving(clients, state.models, np.where(rows >= 0, rows, largest(state.members, len(state.models))))

    def panel(self, state: Centres) -> Panel:
        return panel_of(state.models, mean=False)

    def members(self, state: Centres) -> Ids:
        return state.members


def squared_distances(vectors: Floats | Doubles, centres: Floats | Doubles) -> Doubles:
    """(n, K) ||w_i - c_k||^2 in float64, from the differences themselves, a block of columns at a time."""
    total = np.zeros((len(vectors), len(centres)))
    for begin in range(0, vectors.shape[1], BLOCK):
        block = vectors[:, begin : begin + BLOCK].astype(np.float64)
        for k, centre in enumerate(centres[:, begin : begin + BLOCK]):
            total[:, k] += ((block - centre) ** 2).sum(axis=1)
    return total
