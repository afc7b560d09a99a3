"""FeSEM: multi-centre federated learning by stochastic expectation maximisation.

Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-Center Federated Learning: Clients Clustering for Better Personalization", Algorithms 1 and 2
and the training settings of Section 6.1. Centres start from one round of local training (Algorithm 1, line 1). Clients that come later are
compared with these first centres. The paper assumes that all clients take part in every round. Here a round re-assigns only the clients
that took part, by the model they have just trained, so no table of all clients' last models is needed.
"""

from abc import ABC
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.layout import InitialModels, Layout
from coterie.core.local import Local
from coterie.core.method import Context, MemoryNeeds, Round, done
from coterie.core.serving import NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.vectors import Sketch, as_vectors, project
from coterie.grouping.clustering import compute_silhouette
from coterie.grouping.kmeans import kmeans, renumber_labels
from coterie.grouping.landmarks import MANY, compute_short_points_of
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.controls import apply_control
from coterie.methods.group_number import GroupNumber, GroupNumberMixin, SketchingMixin
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups, compute_client_points, name_models, note_landmarks

ComparedPart = Literal["all", "last_layer", "sketch"]


def compute_compared_points(vectors: Floats, origin: Floats, on: ComparedPart, sketch: Sketch | None, ctx: Context) -> Doubles:
    """(n, r) the models as points with the distances that `on` asks for; many are placed in the principal directions of landmarks."""
    vectors, origin = _select_compared(vectors, on, ctx.layout), _select_compared(origin[None, :], on, ctx.layout)
    if sketch is None:
        return compute_client_points(vectors, origin, ctx)
    if len(vectors) <= MANY:
        return project(vectors, sketch, origin)
    note_landmarks(ctx)  # the sketches of all clients in float64 would outgrow the models themselves
    return compute_short_points_of(lambda rows: project(rows, sketch, origin), vectors, ctx.rng("landmarks"))


def compute_distances(vectors: Floats, centres: Floats, on: ComparedPart, sketch: Sketch | None, ctx: Context) -> Doubles:
    """(n, K) squared L2 (Eq. 8)."""
    vectors, centres = _select_compared(vectors, on, ctx.layout), _select_compared(centres, on, ctx.layout)
    if sketch is not None:  # of differences from one centre: models lose their updates in the rounding
        return as_vectors(project(vectors, sketch, centres[:1])).squared_distances(project(centres, sketch, centres[:1]))
    return as_vectors(vectors).squared_distances(centres)


def reseed_empty_centres(members: Ids, clients: Ids, apart: Doubles) -> list[int]:
    """Give a centre that has lost every client this round's farthest, unless that would empty another; `members` is changed."""
    sizes = np.bincount(members[members >= 0], minlength=apart.shape[1])
    reseeded = []
    for empty in np.flatnonzero(sizes == 0):
        own = members[clients]
        gaps = np.where(sizes[own] > 1, apart[np.arange(len(own)), own], 0.0)
        far = int(gaps.argmax())
        if gaps[far] > 0:
            sizes[own[far]] -= 1
            sizes[empty], members[clients[far]] = 1, empty
            reseeded.append(int(empty))
    return reseeded


def _select_compared(vectors: Floats, on: ComparedPart, layout: Layout) -> Floats:
    if on != "last_layer":
        return layout.comparable(vectors)
    weights = layout.weights
    last = [piece for piece in weights if piece.name.rpartition(".")[0] == weights[-1].name.rpartition(".")[0]]
    return vectors[:, last[0].begin : last[-1].end]


DEFAULT_SKETCH_SIZE = 256  # numbers of a sketch by default: distances survive to about 6 %


@dataclass(frozen=True)
class FeSEMState(Groups):
    """The centres, and whose they are; before the warm-up, the common start alone."""

    initial: Floats  # (d,) w_0
    first: Floats  # (K, d) the centres right after the warm-up, which newcomers are compared with; no rows before it


@dataclass(frozen=True, kw_only=True)
class WarmStart(SketchingMixin[FeSEMState], GroupedMethod[FeSEMState], GroupNumberMixin, ABC):
    """Centres from one round of local training; newcomers are compared with them as they were then."""

    groups: GroupNumber = setting(3, "Centres (K).", minimum=1)
    warmup: int | None = setting(None, "Epochs of the first round; default: the plan's.", minimum=1)
    warmup_by: Literal["all", "cohort"] = setting("all", "Which clients train in the first round.")
    weighting: Weighting = setting("uniform", "How much a client counts in its centre (Eq. 9).")
    assign_on: ComparedPart = setting("all", "What the E-step compares.")
    newcomers: Literal["train", "loss"] = setting("train", "How a client never seen finds its centre.")
    restarts: int = setting(20, "Starts of k-means.", minimum=1)
    apart: bool = setting(False, "Whether each client first trains from an initial model of its own, not from w_0.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        gathered = self.count_trial_clients(self.groups)
        kept = 1.0 if self.apart else 0.0
        return MemoryNeeds(kept=kept, all_train=self.warmup_by == "all", gathered=gathered, placing=self.newcomers == "train")

    @property
    def groups_cohort(self) -> bool:
        return self.warmup_by == "cohort"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sketch is not None and self.assign_on != "sketch":
            raise UserError(f"{type(self).__name__} cannot use sketch={self.sketch} with assign_on={self.assign_on}: add assign_on=sketch.")

    def sketching(self, ctx: Context) -> Sketch | None:
        size = self.sketch or DEFAULT_SKETCH_SIZE
        return ctx.sketch(size, self.sketch_clip, self.sketch_noise) if self.assign_on == "sketch" else None

    def start(self, init: InitialModels, ctx: Context) -> Round[FeSEMState]:
        """Asks nothing: the warm-up is round 1, on the round axis and in the costs."""
        w0 = init()
        first = np.stack([w0, *(init(1 + i) for i in range(len(ctx.roster)))]) if self.apart else w0[None, :]
        return done(FeSEMState(first, np.full(len(ctx.roster), -1, np.int64), w0, np.zeros((0, len(w0)), np.float32)))

    def warm_up(self, state: FeSEMState, ctx: Context) -> Round[FeSEMState]:
        """Round 1: one local training from w_0, or from models apart, then k-means++."""
        before = replace(state, models=state.initial[None, :])
        known = yield from self.ask_number(self.groups, before.models, lambda i=0: state.initial, ctx, sketch=self.sketching(ctx))
        clients = ctx.roster.available if self.warmup_by == "all" else ctx.cohort()
        start = np.where(1 + clients < len(state.models), 1 + clients, 0)  # a client that came later has no model of its own
        trained = yield from Train(clients, state.models, self._warmup_local(ctx.local), start=start)
        if not len(trained):
            return state
        trained = self.align(trained, np.zeros(len(trained), dtype=np.int64), before.models, ctx)
        points = compute_compared_points(trained.vectors, state.initial, self.assign_on, self.sketching(ctx), ctx)
        k = self.read_number(known, points, ctx)
        labels = kmeans(points, k, ctx.rng("groups"), self.restarts)
        labels = renumber_labels(apply_control(labels, trained.clients, self.assign, ctx))
        sizes = np.bincount(labels)
        ctx.note("group_sizes", sizes)
        ctx.notes.silhouette = compute_silhouette(points, labels)
        ctx.note("groups_capped", int(max(k - len(sizes), 0)))  # fewer distinct models, or clients, than centres asked for
        groups = state.all_groups(ctx)
        groups[trained.clients] = labels
        models = average_within_groups(before, trained, labels, compute_weights(trained, self.weighting), len(sizes), ctx)
        return FeSEMState(models, groups, state.initial, models)

    def place(self, state: FeSEMState, new: Ids, ctx: Context) -> Round[Ids]:
        """A client never seen trains from w_0, as the others did, and is compared with the first centres; or takes the lowest loss."""
        if self.newcomers == "loss" or len(state.models) == 1:
            return (yield from super().place(state, new, ctx))
        rows = np.full(len(new), -1, dtype=np.int64)
        sketch = self.sketching(ctx)
        trained = yield from Train(new, state.initial, self._warmup_local(ctx.plan.local), purpose="warm-up", sketch=sketch)
        if sketch is None:
            apart = self.distances(trained.vectors, state.first, ctx)
        else:  # sketches are of updates: so are those of the first centres
            first, origin = (ctx.layout.comparable(part) for part in (state.first, state.initial[None, :]))
            apart = as_vectors(trained.vectors).squared_distances(project(first, sketch, origin))
        rows[np.searchsorted(new, trained.clients)] = apart.argmin(axis=1)
        return rows

    def serve(self, state: FeSEMState, clients: Ids, ctx: Context) -> Round[Serving]:
        if not len(state.first):
            return Serving.one(clients, state.initial[None, :])
        return (yield from super().serve(state, clients, ctx))

    def central(self, state: FeSEMState) -> NamedModels:
        return name_models(state.models if len(state.first) else state.initial[None, :])

    def _warmup_local(self, local: Local) -> Local:
        return local if self.warmup is None else local.replace(epochs=self.warmup)

    def distances(self, vectors: Floats, centres: Floats, ctx: Context) -> Doubles:
        """(n, K) what the E-step compares; FeSEM-MA has its own."""
        return compute_distances(vectors, centres, self.assign_on, self.sketching(ctx), ctx)

    def align(self, trained: Trained, own: Ids, centres: Floats, ctx: Context) -> Trained:
        """The models as they are averaged with the others of their centre; FeSEM-MA puts their neurons in order."""
        return trained


@dataclass(frozen=True, kw_only=True)
class FeSEM(WarmStart):
    """K centres: clients train from their own, move to the nearest, and centres move to the mean of their clients.

    Example: ``ct.FeSEM(groups=4)``, or the spec ``fesem(groups=4)``.
    """

    lam: float = setting(0.1, "Lambda: the paper gives none; the authors' code has .1.", minimum=0)
    literal: bool = setting(False, "Eq. 7 with a distance weight by the client's size.")

    @property
    def proximal(self) -> float:
        return 2 * self.lam

    def round(self, state: FeSEMState, ctx: Context) -> Round[FeSEMState]:
        if not len(state.first):
            return (yield from self.warm_up(state, ctx))
        cohort = ctx.cohort()
        members = yield from self.joined(state, cohort, ctx)
        cohort = cohort[members[cohort] >= 0]
        local, mus = self._distance_term(cohort, ctx)
        trained = yield from Train(cohort, state.models, local, start=members[cohort], mus=mus)  # Eq. 7, Alg. 1, lines 8-13
        if not len(trained):
            return state
        apart = self.distances(trained.vectors, state.models, ctx)  # (n, K), Alg. 1, line 4
        before, groups = members[trained.clients], state.all_groups(ctx)
        groups[trained.clients] = self._e_step(apart, before)
        reseeded = reseed_empty_centres(groups, trained.clients, apart) if self.assign == "similar" else []
        labels = groups[trained.clients]
        ctx.note("switches", int(np.sum(labels != before)))
        ctx.note("reseeded", np.array(reseeded, dtype=np.int64))
        ctx.note("intra_distance", float(np.take_along_axis(apart, labels[:, None], axis=1).mean()))  # Eq. 6
        trained = self.align(trained, labels, state.models, ctx)
        models = average_within_groups(state, trained, labels, compute_weights(trained, self.weighting), len(state.models), ctx)  # Eq. 9
        ctx.note("group_sizes", np.bincount(groups[groups >= 0], minlength=len(models)))
        return replace(state, models=models, groups=groups)

    def _distance_term(self, clients: Ids, ctx: Context) -> tuple[Local, Doubles | None]:
        """Eq. 7 divided by alpha_i: L_i + lambda / (m alpha_i) ||w - centre||^2, whose gradient is that of mu = 2 lambda / (m alpha_i).

        With equal sizes m alpha_i = 1, which is the default; literally, m alpha_i = n_i / mean n.
        """
        if not self.lam:
            return ctx.local, None
        sizes = ctx.roster.sizes
        return ctx.local.replace(mu=2 * self.lam), 2 * self.lam * sizes.mean() / sizes[clients] if self.literal else None

    def _e_step(self, apart: Doubles, own: Ids) -> Ids:
        """Eq. 8: the nearest centre; the own one where another is only as near, and always under a control."""
        best = apart.argmin(axis=1)
        rows = np.arange(len(own))
        return np.where((apart[rows, best] < apart[rows, own]) & (self.assign == "similar"), best, own)
