"""FedEM: each client's data is a mixture of a few distributions, and its predictions are the same mixture of a few models.

Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of Distributions" (2021), Algorithm 1. What
a client computes, the E-step and the weighted training of the M-step, is `reporting_rules.MixtureRule`. Steps are those of the method's
page.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.core.asks import Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round
from coterie.core.serving import COMBINED, Mixture, NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.states import Models, grow_rows
from coterie.methods.averaging import Weighting, average_components, compute_weights
from coterie.methods.group_number import GroupNumber, choose_from_structure
from coterie.methods.grouped import name_models
from coterie.methods.reporting_rules import WEIGHTS, MixtureRule


@dataclass(frozen=True)
class MixtureState(Models):
    """The K models, and how much of each a client's data is."""

    weights: Doubles  # (clients, K) omega; zeros for a client that has not taken part
    shares: Doubles  # (K, C) the share of each class in what a model is responsible for, with FedRC; else (K, 0)


@dataclass(frozen=True, kw_only=True)
class FedEM(Method[MixtureState]):
    """K models, each trained on all samples weighted by its responsibility for them; a client is served its own mixture of the K.

    Example: ``ct.FedEM(groups=3)``, or the spec ``fedem(groups=3)``.
    """

    groups: GroupNumber = setting(3, "Models.", minimum=1)
    predict: Literal["mixture", "hard"] = setting("mixture", "What a client is served: its mixture of all models, or the heaviest one.")
    damped: bool = setting(False, "Models of clients outside the cohort count as unchanged, as in the authors' code.")
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")
    most: int = setting(10, "The most models that auto may find.", minimum=1)

    def start(self, init: InitialModels, ctx: Context) -> Round[MixtureState]:
        k = self.groups
        if k == "auto":
            ctx.notes.choice = yield from choose_from_structure(init()[None, :], ctx, self.most)
            k = ctx.notes.choice.k
        models = np.stack([init(i) for i in range(min(k, len(ctx.roster)))])  # step 1
        return MixtureState(models, np.zeros((len(ctx.roster), len(models))), self.start_shares(len(models), ctx))

    @property
    def combines_models(self) -> bool:
        return self.predict == "mixture" and self.groups != 1

    def start_shares(self, models: int, ctx: Context) -> Doubles:
        """(K, C) class shares to begin with."""
        return np.zeros((models, 0))

    def round(self, state: MixtureState, ctx: Context) -> Round[MixtureState]:
        cohort, weights = ctx.cohort(), np.array(grow_rows(state.weights, len(ctx.roster), 0.0))
        if len(state.models) == 1:  # the only model is responsible for all samples
            trained = yield from Train(cohort, state.models, ctx.local)
        else:
            trained = yield from self.ask(state, cohort, weights, ctx)  # steps 2 and 3
        if not len(trained):
            return state
        own = compute_weights(trained, self.weighting)
        total = float((ctx.roster.sizes if self.weighting == "samples" else np.ones(len(ctx.roster))).sum()) if self.damped else own.sum()
        rows = np.repeat((own / total)[None, :], len(state.models), axis=0)
        found = self.read_weights(trained, state)
        weights[trained.clients] = found
        ctx.note("largest_weight", float(found.max(axis=1).mean()))
        return MixtureState(average_components(trained, rows, state.models, ctx), weights, self.read_shares(trained, state))  # step 4

    def ask(self, state: MixtureState, clients: Ids, weights: Doubles, ctx: Context, *, trains: bool = True) -> Train:
        """The E- and M-step of these clients, or the E-step alone, which a client runs for itself."""
        rule = MixtureRule(components=len(state.models), classes=state.shares.shape[1], trains=trains)
        known = weights[clients]
        even = np.where(known.any(axis=1, keepdims=True), known, 1 / len(state.models))
        extra = rule.bring(state.models, even, state.shares if state.shares.size else None)
        local = ctx.local.replace(rule=rule)
        return Train(clients, state.models[:1], local, extra=extra, kept=(WEIGHTS,), alone=not trains)

    def read_weights(self, trained: Trained, state: MixtureState) -> Doubles:
        """(n, K) omega_ik, the mean of gamma_ijk over a client's samples (step 2)."""
        models = len(state.models)
        if models == 1:
            return np.ones((len(trained), 1))
        return np.asarray(trained.summary.reshape(len(trained), models, max(state.shares.shape[1], 1)).sum(axis=2))

    def read_shares(self, trained: Trained, state: MixtureState) -> Doubles:
        """(K, C) the class shares after a round."""
        return state.shares

    def serve(self, state: MixtureState, clients: Ids, ctx: Context) -> Round[Serving]:
        """Step 6; a client that has not taken part runs one E-step from even weights (step 7), or keeps these if it does not answer."""
        if len(state.models) == 1:
            return Serving.one(clients, state.models)
        weights = np.array(grow_rows(state.weights, len(ctx.roster), 0.0))
        new = np.sort(clients[~weights[clients].any(axis=1)])
        if len(new):
            found = yield from self.ask(state, new, weights, ctx, trains=False)
            weights[new] = 1 / len(state.models)
            weights[found.clients] = self.read_weights(found, state)
        own = weights[clients]
        if self.predict == "hard":
            return Serving(clients, state.models, own.argmax(axis=1))
        return Serving(clients, state.models, np.full(len(clients), COMBINED), Mixture(own))

    def central(self, state: MixtureState) -> NamedModels:
        return name_models(state.models)

    def members(self, state: MixtureState) -> Ids:
        """The model of the largest weight."""
        return np.where(state.weights.any(axis=1), state.weights.argmax(axis=1), -1)
