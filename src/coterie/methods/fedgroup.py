"""FedGroup and FedGrouProx: groups found once, from the directions of pre-trained updates, each trained by FedAvg or FedProx.

Duan et al., "FedGroup: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure" (003), Algorithms 2 to 4. Two slips of
the text are put right: line 7 of Algorithm 4 prints the mean *update* as the group's model, and the sum of lines 22-23 makes norms grow
(the authors' code divides by the weights' sum); `literal` gives the latter, and Eq. 10, to the letter.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels
from coterie.core.local import Local
from coterie.core.method import Context, Method, Round
from coterie.core.mixing import Mixing, mix
from coterie.core.rng import generator, key
from coterie.core.serving import Panel, Serving
from coterie.core.states import Models
from coterie.grouping.clusterers import canonical, choose, kmeans, nearest, silhouette
from coterie.grouping.controls import Assign, controlled
from coterie.grouping.similarity import dots, ternary_cosines
from coterie.methods.joining import grown, mean_model, panel_of, under_control
from coterie.methods.trial import sampled, trial


@dataclass(frozen=True)
class Grouped(Models):
    """A model and a direction for each group, and who is in it; before the group cold start, one model and no directions."""

    initial: Floats  # (d,) w_0, where newcomers pre-train
    directions: Floats  # (m, d) mean update of the group's pre-trained clients; literally, the group's latest update
    members: Ids  # (clients,) the group, -1 for a cold client


@dataclass(frozen=True, kw_only=True)
class FedGroup(Method[Grouped]):
    """Static groups by ternary cosine similarity; newcomers may arrive in any round and join by the direction of their update."""

    groups: int | Literal["auto"] = 3  # m
    alpha: int = 20  # alpha * m clients pre-train
    pretrain: int = 1  # epochs
    pretrain_steps: int | None = None  # steps instead of epochs: 50 is the authors' later choice
    directions: int | Literal["groups"] = 3  # m in the authors' later measure (EDC)
    start_from: Literal["pretrained", "w0"] = "pretrained"
    eta_g: float = 0.01
    mu: float = 0.0
    literal: bool = False
    centres: Literal["kmeans", "random"] = "kmeans"  # random: RCC
    cold: Literal["nearest", "random"] = "nearest"  # random: RAC
    restarts: int = 10
    choice: Literal["silhouette", "gap", "stability", "trial"] = "silhouette"  # how "auto" finds the number of groups
    most: int = 8  # and the most it may find
    assign: Assign = "similar"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("groups", "alpha", "pretrain", "pretrain_steps", "directions", "restarts", "most"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise UserError(f"FedGroup cannot use {name}={value}: give 1 or more.")
        for name in ("eta_g", "mu"):
            if not 0 <= getattr(self, name) < np.inf:
                raise UserError(f"FedGroup cannot use {name}={getattr(self, name)}: give a finite number, 0 or more.")

    def start(self, init: InitialModels, ctx: Context) -> Round[Grouped]:
        w0 = init()
        state = Grouped(w0[None, :], w0, np.zeros((0, len(w0)), np.float32), np.full(len(ctx.roster), -1, np.int64))
        return (yield from self._group_cold_start(state, ctx))

    def round(self, state: Grouped, ctx: Context) -> Round[Grouped]:
        if not len(state.directions):  # nobody answered so far: the cold start takes this round
            return (yield from self._group_cold_start(state, ctx))
        members = grown(state.members, len(ctx.roster)).copy()
        cohort = ctx.cohort()  # Alg. 2, line 4
        groups, pretrained = yield from self._with_newcomers(state, members, cohort, ctx)
        trained = yield from self._training(state, groups, cohort[groups[cohort] >= 0], pretrained, ctx)
        if not len(trained):
            return state
        members[trained.clients] = groups[trained.clients]  # a cold client is in once it has trained
        intra = Mixing.within(trained.clients, members[trained.clients], trained.sizes, len(state.models))  # lines 5-8
        interim = mix(intra, trained.vectors, state.models)
        models = ctx.mix(self._inter_group(intra, interim, ctx), trained, state.models)  # lines 9-10, both applied at once
        ctx.record("group_sizes", np.bincount(members[members >= 0], minlength=len(models)))
        ctx.record("joined", int(np.count_nonzero(members >= 0) - np.count_nonzero(state.members >= 0)))
        return replace(state, models=models, members=members, directions=self._directions(state, interim))

    def _group_cold_start(self, state: Grouped, ctx: Context) -> Round[Grouped]:
        """Algorithms 3 and 4."""
        m = self.groups
        if m == "auto" and self.choice == "trial":
            m = yield from trial(lambda k: replace(self, groups=k, assign="similar"), lambda i=0: state.initial, ctx, self.most)
        most = self.most if m == "auto" else m
        clients = sampled(ctx.roster.available, self.alpha * most, "pre-training clients", ctx)  # Alg. 3, line 2
        pretrained = yield from Train(clients, state.initial, self._pretraining(ctx), purpose="pretrain", partial=True)  # lines 3-5
        if not len(pretrained):
            return state
        directions = most if self.directions == "groups" else self.directions
        w0 = state.initial[None, :]
        points = ternary_cosines(ctx.layout.comparable(pretrained.vectors), directions, ctx.layout.comparable(w0))  # Eq. 7-9
        if m == "auto":
            assert self.choice != "trial"
            chosen = choose(points, ctx.rng("number of groups"), most, self.choice)
            ctx.record("choice_curve", np.array(chosen.curve))
            m = chosen.k
        labels = self._grouped(points, pretrained.clients, m, ctx)
        ctx.record("within", _within(points, labels))
        labels = canonical(controlled(labels, pretrained.clients, self.assign, ctx))
        sizes = np.bincount(labels)
        ctx.record("group_sizes", sizes)
        ctx.record("silhouette", silhouette(points, labels))
        ctx.record("groups_capped", int(max(m - len(sizes), 0)))  # fewer distinct directions, or clients, than groups asked for
        means = Mixing.within(pretrained.clients, labels, np.ones(len(labels)), 1, models=len(sizes))  # Alg. 4, line 7
        unmoved = Mixing(pretrained.clients, np.zeros_like(means.replies), np.ones_like(means.before))  # Alg. 2, line 2
        models = ctx.mix(means if self.start_from == "pretrained" else unmoved, pretrained, w0)
        members = grown(state.members, len(ctx.roster)).copy()
        members[pretrained.clients] = labels
        return Grouped(models, state.initial, mix(means, pretrained.vectors - w0, w0), members)  # line 8: the mean update

    def _grouped(self, points: Doubles, clients: Ids, m: int, ctx: Context) -> Ids:
        """Alg. 4, line 3: k-means++, or (RCC) the nearest of m random clients."""
        if self.centres == "kmeans":
            return kmeans(points, m, ctx.rng("groups"), self.restarts)
        centres = np.searchsorted(clients, sampled(clients, m, "random centres", ctx))
        return canonical(nearest(points, points[centres]))

    def _with_newcomers(self, state: Grouped, members: Ids, clients: Ids, ctx: Context) -> Round[tuple[Ids, Trained | None]]:
        """(roster,) the group of everybody, cold clients among these included where they answer; and what these pre-trained."""
        groups, m = members.copy(), len(state.models)
        new = np.sort(clients[members[clients] < 0])
        pretrained: Trained | None = None
        if m == 1:
            groups[new] = 0
        elif self.cold == "random":  # RAC
            groups[new] = [generator(key(ctx.seed, "random group", ctx.roster.ids[client])).integers(m) for client in new]
        elif len(new):
            origin = mean_model(state.models) if self.literal else state.initial[None, :]
            pretrained = yield from Train(new, origin, self._pretraining(ctx), purpose="pretrain", partial=True)
            groups[pretrained.clients] = self._closest(pretrained.vectors, state.directions, origin, ctx)
        groups[new] = under_control(groups[new], new, members, m, self.assign, ctx)
        return groups, pretrained

    def _closest(self, vectors: Floats, directions: Floats, origin: Floats, ctx: Context) -> Ids:
        """Eq. 10: the direction with the largest cosine. The update's own norm is the same for all directions and is left away."""
        vectors, directions, origin = (ctx.layout.comparable(part) for part in (vectors, directions, origin))
        norms = np.linalg.norm(directions.astype(np.float64), axis=1)
        products = np.stack([dots(vectors, direction, origin) for direction in directions], axis=1)  # (n, m)
        cosines = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
        return np.asarray(cosines.argmax(axis=1), dtype=np.int64)

    def _training(self, state: Grouped, groups: Ids, cohort: Ids, pretrained: Trained | None, ctx: Context) -> Round[Trained]:
        """Alg. 2, lines 12-19: every client trains from its group's model; mu > 0 is FedGrouProx."""
        local = ctx.local.but(mu=self.mu) if self.mu else ctx.local
        models, begin, epochs, anchors = state.models, groups[cohort], None, None
        if self.literal and pretrained is not None:  # "the client continues to train E - 1 epochs": from where it has come to
            goes_on = np.isin(cohort, pretrained.clients)
            anchors = models[begin] if self.mu else None
            models = np.concatenate([models, pretrained.vectors])
            begin = np.where(goes_on, len(state.models) + np.searchsorted(pretrained.clients, cohort), begin)
            epochs = np.where(goes_on, max(local.epochs - self.pretrain, 1), local.epochs)
        ask = Train(cohort, models, local, start=begin, epochs=epochs, anchors=anchors, partial=self.mu > 0)
        return (yield from ask)

    def _inter_group(self, intra: Mixing, interim: Floats, ctx: Context) -> Mixing:
        """Lines 20-25: each group takes a small step towards the others, idle groups included; models of norm zero have no direction."""
        norms = np.linalg.norm(ctx.layout.comparable(interim).astype(np.float64), axis=1)
        pull = np.tile(np.divide(self.eta_g, norms, out=np.zeros_like(norms), where=norms > 0), (len(norms), 1))
        np.fill_diagonal(pull, 0.0)
        if not pull.any():
            return intra
        across = np.eye(len(norms)) + pull
        if not self.literal:
            across /= across.sum(axis=1, keepdims=True)  # by 1 + eta_g * sum 1/||w_l||, so that norms don't grow
        return Mixing(intra.clients, across @ intra.replies, across @ intra.before, averages=not self.literal)

    def _directions(self, state: Grouped, interim: Floats) -> Floats:
        """What newcomers are compared with: the initial directions; literally, each group's latest update that is not zero."""
        if not self.literal:
            return state.directions
        update = interim - state.models
        return np.where(np.any(update != 0, axis=1, keepdims=True), update, state.directions)

    def _pretraining(self, ctx: Context) -> Local:
        """The same for everybody whenever they come: no proximal term, the rate of the first round."""
        local = ctx.plan.local.but(mu=0.0, epochs=self.pretrain)
        steps = self.pretrain_steps
        return local if steps is None else local.but(epochs=steps, max_steps=steps)  # an epoch has at least one step

    def serve(self, state: Grouped, clients: Ids, ctx: Context) -> Round[Serving]:
        """Its group's model; a cold client with data pre-trains and is placed; one that does not answer gets the global model."""
        if not len(state.directions):
            return Serving.one(clients, state.models)
        groups, _ = yield from self._with_newcomers(state, grown(state.members, len(ctx.roster)), clients, ctx)
        models = np.concatenate([state.models, mean_model(state.models)])  # line 11: the plain mean of the groups
        return Serving(clients, models, np.where(groups[clients] >= 0, groups[clients], len(state.models)))

    def panel(self, state: Grouped) -> Panel:
        return panel_of(state.models, mean=True)

    def members(self, state: Grouped) -> Ids:
        return state.members


@dataclass(frozen=True, kw_only=True)
class FedGrouProx(FedGroup):
    """FedGroup with FedProx inside the groups."""

    mu: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RandomCentres(FedGroup):
    """FedGroup-RCC: the groups' centres are random pre-trained clients."""

    centres: Literal["kmeans", "random"] = "random"


@dataclass(frozen=True, kw_only=True)
class RandomNewcomers(FedGroup):
    """FedGroup-RAC: cold clients get a random group."""

    cold: Literal["nearest", "random"] = "random"


def _within(points: Doubles, labels: Ids) -> float:
    """The squared distances of the ternary similarities from their groups' means (Alg. 4, line 6), summed."""
    means = np.stack([points[labels == j].mean(axis=0) for j in range(int(labels.max()) + 1)])
    return float(((points - means[labels]) ** 2).sum())
