"""FedGroup and FedGrouProx: groups found once, from the directions of pre-trained updates, each trained by FedAvg or FedProx.

Duan et al., "FedGroup: Ternary Cosine Similarity-based Clustered Federated Learning Framework toward High Accuracy in Heterogeneity Data",
Algorithm 2; the cold starts are in `cold_start`. The sum of lines 22-23 makes norms grow; the authors' code divides by the weights' sum,
and so does this, unless `literal`.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing, mix
from coterie.core.serving import NamedModels, Serving
from coterie.core.settings import setting
from coterie.grouping.controls import joining
from coterie.methods.cold_start import ColdStart, Directed
from coterie.methods.grouped import mean_model, named_models


@dataclass(frozen=True, kw_only=True)
class FedGroup(ColdStart):
    """Static groups by ternary cosine similarity; newcomers may arrive in any round and join by the direction of their update."""

    eta_g: float = setting(0.01, "The step that groups take towards each other.", least=0)
    mu: float = setting(0.0, "Weight of a proximal term; above 0 it is FedGrouProx.", least=0)

    @property
    def proximal(self) -> float:
        return self.mu

    def round(self, state: Directed, ctx: Context) -> Round[Directed]:
        if not len(state.directions):  # nobody answered so far: the cold start takes this round
            return (yield from self.group_cold_start(state, ctx))
        cohort = ctx.cohort()  # Alg. 2, line 4
        groups, pretrained = yield from self._with_newcomers(state, cohort, ctx)
        trained = yield from self._training(state, groups, cohort[groups[cohort] >= 0], pretrained, ctx)
        if not len(trained):
            return state
        members = state.everybody(ctx)
        joined = int(np.sum(members[trained.clients] < 0))
        members[trained.clients] = groups[trained.clients]  # a cold client is in once it has trained
        intra = ctx.bound_mixing(Mixing.within(trained.clients, members[trained.clients], trained.sizes, len(state.models)))  # lines 5-8
        interim = mix(intra, trained.vectors, state.models)
        models = ctx.mix(self._inter_group(intra, interim, ctx), trained, state.models)  # lines 9-10, both applied at once
        ctx.note("group_sizes", np.bincount(members[members >= 0], minlength=len(models)))
        ctx.note("joined", joined)
        return replace(state, models=models, groups=members, directions=self._directions(state, interim))

    def _with_newcomers(self, state: Directed, cohort: Ids, ctx: Context) -> Round[tuple[Ids, Trained | None]]:
        """(roster,) the group of everybody, cold clients of the cohort included where they answer; and what these pre-trained."""
        groups, pretrained = state.everybody(ctx), None
        new = cohort[groups[cohort] < 0]
        if len(new):
            rows, pretrained = yield from self.client_cold_start(state, new, ctx)
            groups[new] = joining(rows, new, groups, len(state.models), self.assign, ctx)
        return groups, pretrained

    def _training(self, state: Directed, groups: Ids, cohort: Ids, pretrained: Trained | None, ctx: Context) -> Round[Trained]:
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
        return Mixing(intra.clients, across @ intra.replies, across @ intra.before, not self.literal, (across, intra))

    def _directions(self, state: Directed, interim: Floats) -> Floats:
        """What newcomers are compared with: the initial directions; literally, each group's latest update that is not zero."""
        if not self.literal:
            return state.directions
        update = interim - state.models
        return np.where(np.any(update != 0, axis=1, keepdims=True), update, state.directions)

    def serve(self, state: Directed, clients: Ids, ctx: Context) -> Round[Serving]:
        """Its group's model; a cold client with data pre-trains and is placed; one that does not answer gets the global model."""
        if not len(state.directions):
            return Serving.one(clients, state.models)
        rows = (yield from self.joined(state, clients, ctx))[clients]
        models = np.concatenate([state.models, mean_model(state.models)])  # line 11: the plain mean of the groups
        return Serving(clients, models, np.where(rows >= 0, rows, len(state.models)))

    def central(self, state: Directed) -> NamedModels:
        return named_models(state.models, mean=True)


@dataclass(frozen=True, kw_only=True)
class FedGrouProx(FedGroup):
    """FedGroup with FedProx inside the groups."""

    mu: float = setting(1.0, "Weight of the proximal term.", least=0)


@dataclass(frozen=True, kw_only=True)
class RandomCentres(FedGroup):
    """FedGroup-RCC: the groups' centres are random pre-trained clients."""

    centres: Literal["kmeans", "random"] = setting("random", "How groups are cut; random centres are RCC.")


@dataclass(frozen=True, kw_only=True)
class RandomNewcomers(FedGroup):
    """FedGroup-RAC: cold clients get a random group."""

    cold: Literal["nearest", "random"] = setting("random", "Where newcomers go; a random group is RAC.")
