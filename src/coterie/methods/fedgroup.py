"""FedGroup and FedGrouProx: static groups from the directions of pre-trained updates, each trained by FedAvg or FedProx.

Duan et al., "FedGroup: Ternary Cosine Similarity-based Clustered Federated Learning Framework toward High Accuracy in Heterogeneity Data",
Algorithms 2 to 4 and Eq. 10. Two deviations: line 7 of Algorithm 4 prints the mean *update* as the group's model; here it is added to w_0.
The sum of lines 22-23 makes norms grow; the authors' code divides by the sum of the weights, and so does this, unless `literal`.
"""

from abc import ABC
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.local import Local
from coterie.core.method import Context, MemoryNeeds, Round
from coterie.core.mixing import Mixing, mix
from coterie.core.rng import make_generator, make_key
from coterie.core.serving import NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.vectors import Sketch, as_vectors
from coterie.grouping.clustering import compute_silhouette, find_nearest
from coterie.grouping.kmeans import compute_inertia, kmeans, renumber_labels
from coterie.grouping.similarity import compute_dot_products, compute_ternary_cosines
from coterie.methods.controls import apply_control, assign_newcomers
from coterie.methods.group_number import GroupNumber, GroupNumberMixin, SketchingMixin
from coterie.methods.grouped import GroupedMethod, Groups, compute_mean_model, name_models


def compared_updates(pretrained: Trained, origin: Floats, sketch: Sketch | None, ctx: Context) -> tuple[Floats, Floats | None]:
    """What is compared: the models and what they are measured from; or sketches, which are of updates already."""
    if sketch is not None:
        return pretrained.vectors, None
    return ctx.layout.comparable(pretrained.vectors), ctx.layout.comparable(origin)


def closest(vectors: Floats, origin: Floats | None, directions: Floats) -> Ids:
    """(n,) the direction with the largest cosine. The update's own norm is the same for all directions and is omitted."""
    norms = np.linalg.norm(directions.astype(np.float64), axis=1)
    products = compute_dot_products(vectors, directions, origin)  # (n, m)
    cosines = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
    return np.asarray(cosines.argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True)
class FedGroupState(Groups):
    """A model and a direction for each group; before the group cold start, one model and no directions."""

    initial: Floats  # (d,) w_0, where newcomers pre-train
    directions: Floats  # (m, d) mean update of the group's pre-trained clients, or (m, r) its sketch; literally, the group's latest update


@dataclass(frozen=True, kw_only=True)
class ColdStart(SketchingMixin[FedGroupState], GroupedMethod[FedGroupState], GroupNumberMixin, ABC):
    """Groups by the directions of pre-trained updates; newcomers may arrive in any round and join by theirs."""

    groups: GroupNumber = setting(3, "Groups (m).", minimum=1)
    alpha: int = setting(20, "Clients that pre-train, for each group.", minimum=1)
    pretrain: int = setting(1, "Epochs of pre-training.", minimum=1)
    pretrain_steps: int | None = setting(None, "Steps of pre-training instead; 50 is the authors' later choice.", minimum=1)
    directions: int | Literal["groups"] = setting(3, "Singular directions; groups (m) in the authors' later measure.", minimum=1)
    start_from: Literal["pretrained", "w0"] = setting("pretrained", "Where groups' models begin.")
    centres: Literal["kmeans", "random"] = setting("kmeans", "How groups are cut; random centres are RCC.")
    cold: Literal["nearest", "random"] = setting("nearest", "Where newcomers go; a random group is RAC.")
    restarts: int = setting(10, "Starts of k-means.", minimum=1)
    literal: bool = setting(False, "Eq. 10 and lines 22-23 as printed.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        least = self.groups if isinstance(self.groups, int) else 1
        return MemoryNeeds(gathered=max(self.alpha * least, self.count_trial_clients(self.groups)), placing=self.cold != "random")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sketch is not None and (self.start_from != "w0" or self.literal):
            wants = "literal=true" if self.literal else "start_from=pretrained"
            raise UserError(
                f"{type(self).__name__} cannot use sketch={self.sketch} with {wants}: of pre-training the server then has sketches, "
                "and no models to begin from. Use start_from=w0 without literal."
            )

    def group_cold_start(self, state: FedGroupState, ctx: Context) -> Round[FedGroupState]:
        """Algorithms 3 and 4."""
        w0, sketch = state.initial[None, :], self.sketching(ctx)
        m = yield from self.ask_number(self.groups, w0, lambda i=0: state.initial, ctx, sketch=sketch)
        clients = ctx.sample(ctx.roster.available, self.alpha * (m or self.most), "pre-training clients")  # Alg. 3, line 2
        pretrained = yield from Train(
            clients, w0, self.get_pretraining_local(ctx), purpose="pretrain", partial=True, sketch=sketch
        )  # lines 3-5
        if not len(pretrained):
            return state
        count = (m or self.most) if self.directions == "groups" else self.directions
        updates, origin = compared_updates(pretrained, w0, sketch, ctx)
        points = compute_ternary_cosines(updates, count, origin)  # Eq. 7-9
        m = self.read_number(m, points, ctx)
        labels = self._labels(points, pretrained.clients, m, ctx)
        ctx.note("within", compute_inertia(points, labels))  # Alg. 4, line 6
        labels = renumber_labels(apply_control(labels, pretrained.clients, self.assign, ctx))
        sizes = np.bincount(labels)
        ctx.note("group_sizes", sizes)
        ctx.notes.silhouette = compute_silhouette(points, labels)
        ctx.note("groups_capped", int(max(m - len(sizes), 0)))  # fewer distinct directions, or clients, than groups asked for
        means = Mixing.within(pretrained.clients, labels, np.ones(len(labels)), 1, models=len(sizes))  # Alg. 4, line 7
        means = ctx.bound_mixing(means)
        unmoved = Mixing(pretrained.clients, np.zeros_like(means.replies), np.ones_like(means.before))  # Alg. 2, line 2
        models = ctx.mix(means if self.start_from == "pretrained" else unmoved, pretrained, w0)
        groups = state.all_groups(ctx)
        groups[pretrained.clients] = labels
        moved = as_vectors(pretrained.vectors).subtract(w0) if sketch is None else pretrained.vectors
        directions = mix(means, moved, np.zeros((1, moved.shape[1]), np.float32))  # line 8: the mean update
        return FedGroupState(models, groups, state.initial, directions)

    def start(self, init: InitialModels, ctx: Context) -> Round[FedGroupState]:
        w0 = init()
        state = FedGroupState(w0[None, :], np.full(len(ctx.roster), -1, np.int64), w0, np.zeros((0, len(w0)), np.float32))
        return (yield from self.group_cold_start(state, ctx))

    def _labels(self, points: Doubles, clients: Ids, m: int, ctx: Context) -> Ids:
        """Alg. 4, line 3: k-means++, or (RCC) the nearest of m random clients."""
        if self.centres == "kmeans":
            return kmeans(points, m, ctx.rng("groups"), self.restarts)
        centres = np.searchsorted(clients, ctx.sample(clients, m, "random centres"))
        return renumber_labels(find_nearest(points, points[centres]))

    def client_cold_start(self, state: FedGroupState, new: Ids, ctx: Context) -> Round[tuple[Ids, Trained | None]]:
        """(n,) the group of each newcomer, -1 for one that does not answer; and what they pre-trained (Eq. 10)."""
        m = len(state.models)
        if m == 1:
            return np.zeros(len(new), dtype=np.int64), None
        if self.cold == "random":  # RAC
            drawn = [make_generator(make_key(ctx.seed, "random group", ctx.roster.ids[client])).integers(m) for client in new]
            return np.array(drawn, dtype=np.int64), None
        origin, sketch = compute_mean_model(state.models) if self.literal else state.initial[None, :], self.sketching(ctx)
        pretrained = yield from Train(new, origin, self.get_pretraining_local(ctx), purpose="pretrain", partial=True, sketch=sketch)
        rows = np.full(len(new), -1, dtype=np.int64)
        directions = state.directions if sketch is not None else ctx.layout.comparable(state.directions)
        rows[np.searchsorted(new, pretrained.clients)] = closest(*compared_updates(pretrained, origin, sketch, ctx), directions)
        return rows, pretrained

    def place(self, state: FedGroupState, new: Ids, ctx: Context) -> Round[Ids]:
        return (yield from self.client_cold_start(state, new, ctx))[0]

    def get_pretraining_local(self, ctx: Context) -> Local:
        """The same for all clients whenever they come: no proximal term, the rate of the first round."""
        local, steps = ctx.plan.local.replace(mu=0.0, epochs=self.pretrain), self.pretrain_steps
        return local if steps is None else local.replace(epochs=steps, max_steps=steps)  # an epoch has at least one step


@dataclass(frozen=True, kw_only=True)
class FedGroup(ColdStart):
    """Static groups by ternary cosine similarity; newcomers may arrive in any round and join by the direction of their update.

    Example: ``ct.FedGroup(groups=4)``, or the spec ``fedgroup(groups=4)``.
    """

    eta_g: float = setting(0.01, "The step that groups take towards each other.", minimum=0)
    mu: float = setting(0.0, "Weight of a proximal term; above 0 it is FedGrouProx.", minimum=0)

    @property
    def proximal(self) -> float:
        return self.mu

    def round(self, state: FedGroupState, ctx: Context) -> Round[FedGroupState]:
        if not len(state.directions):  # no replies so far: the cold start takes this round
            return (yield from self.group_cold_start(state, ctx))
        cohort = ctx.cohort()  # Alg. 2, line 4
        groups, pretrained = yield from self._place_newcomers(state, cohort, ctx)
        trained = yield from self._train_cohort(state, groups, cohort[groups[cohort] >= 0], pretrained, ctx)
        if not len(trained):
            return state
        members = state.all_groups(ctx)
        joined = int(np.sum(members[trained.clients] < 0))
        members[trained.clients] = groups[trained.clients]  # a cold client is in once it has trained
        intra = ctx.bound_mixing(Mixing.within(trained.clients, members[trained.clients], trained.sizes, len(state.models)))  # lines 5-8
        interim = mix(intra, trained.vectors, state.models)
        models = ctx.mix(self._mix_groups(intra, interim, ctx), trained, state.models)  # lines 9-10, both applied at once
        ctx.note("group_sizes", np.bincount(members[members >= 0], minlength=len(models)))
        ctx.note("joined", joined)
        return replace(state, models=models, groups=members, directions=self._get_directions(state, interim))

    def _place_newcomers(self, state: FedGroupState, cohort: Ids, ctx: Context) -> Round[tuple[Ids, Trained | None]]:
        """(roster,) the group of every client, cold clients of the cohort included where they answer; and what these pre-trained."""
        groups, pretrained = state.all_groups(ctx), None
        new = cohort[groups[cohort] < 0]
        if len(new):
            rows, pretrained = yield from self.client_cold_start(state, new, ctx)
            groups[new] = assign_newcomers(rows, new, groups, len(state.models), self.assign, ctx)
        return groups, pretrained

    def _train_cohort(self, state: FedGroupState, groups: Ids, cohort: Ids, pretrained: Trained | None, ctx: Context) -> Round[Trained]:
        """Alg. 2, lines 12-19: every client trains from its group's model; mu > 0 is FedGrouProx."""
        local = ctx.local.replace(mu=self.mu) if self.mu else ctx.local
        models, begin, epochs, anchors = state.models, groups[cohort], None, None
        if self.literal and pretrained is not None:  # "the client continues to train E - 1 epochs": from where it has come to
            goes_on = np.isin(cohort, pretrained.clients)
            anchors = models[begin] if self.mu else None
            models = np.concatenate([models, pretrained.vectors])
            begin = np.where(goes_on, len(state.models) + np.searchsorted(pretrained.clients, cohort), begin)
            epochs = np.where(goes_on, max(local.epochs - self.pretrain, 1), local.epochs)
        ask = Train(cohort, models, local, start=begin, epochs=epochs, anchors=anchors, partial=self.mu > 0)
        return (yield from ask)

    def _mix_groups(self, intra: Mixing, interim: Floats, ctx: Context) -> Mixing:
        """Lines 20-25: each group takes a small step towards the others, idle groups included; models of norm zero have no direction."""
        norms = np.linalg.norm(ctx.layout.comparable(interim).astype(np.float64), axis=1)
        pull = np.tile(np.divide(self.eta_g, norms, out=np.zeros_like(norms), where=norms > 0), (len(norms), 1))
        np.fill_diagonal(pull, 0.0)
        if not pull.any():
            return intra
        across = np.eye(len(norms)) + pull
        if not self.literal:
            across /= across.sum(axis=1, keepdims=True)  # by 1 + eta_g * sum 1/||w_l||, so that norms don't grow
        return Mixing(intra.clients, across @ intra.replies, across @ intra.before, not self.literal, (across, intra))

    def _get_directions(self, state: FedGroupState, interim: Floats) -> Floats:
        """What newcomers are compared with: the initial directions; literally, each group's latest update that is not zero."""
        if not self.literal:
            return state.directions
        update = interim - state.models
        return np.where(np.any(update != 0, axis=1, keepdims=True), update, state.directions)

    def serve(self, state: FedGroupState, clients: Ids, ctx: Context) -> Round[Serving]:
        """Its group's model; a cold client with data pre-trains and is placed; one that does not answer gets the global model."""
        if not len(state.directions):
            return Serving.one(clients, state.models)
        rows = (yield from self.joined(state, clients, ctx))[clients]
        models = np.concatenate([state.models, compute_mean_model(state.models)])  # line 11: the plain mean of the groups
        return Serving(clients, models, np.where(rows >= 0, rows, len(state.models)))

    def central(self, state: FedGroupState) -> NamedModels:
        return name_models(state.models, mean=True)


@dataclass(frozen=True, kw_only=True)
class FedGrouProx(FedGroup):
    """FedGroup with FedProx inside the groups.

    Example: ``ct.FedGrouProx(groups=4, mu=1)``, or the spec ``fedgrouprox(groups=4,mu=1)``.
    """

    mu: float = setting(1.0, "Weight of the proximal term.", minimum=0)


@dataclass(frozen=True, kw_only=True)
class FedGroupRCC(FedGroup):
    """FedGroup-RCC: the groups' centres are random pre-trained clients.

    Example: ``ct.FedGroupRCC(groups=4)``, or the spec ``rcc(groups=4)``.
    """

    centres: Literal["kmeans", "random"] = setting("random", "How groups are cut; random centres are RCC.")


@dataclass(frozen=True, kw_only=True)
class FedGroupRAC(FedGroup):
    """FedGroup-RAC: cold clients get a random group.

    Example: ``ct.FedGroupRAC(groups=4)``, or the spec ``rac(groups=4)``.
    """

    cold: Literal["nearest", "random"] = setting("random", "Where newcomers go; a random group is RAC.")
