"""APFL: each client is served a mixture of the shared model and one of its own, with a weight that it adapts.

Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning" (2020), Algorithm 1: the mixture is
v-bar_i = alpha_i v_i + (1 - alpha_i) w. Clients train w as in FedAvg, and v_i on the loss of v-bar_i; alpha_i moves along its gradient
<v_i - w, grad f_i(v-bar_i)>.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Gradient, Train
from coterie.core.layout import InitialModels
from coterie.core.local import MODEL, LocalRule, Step
from coterie.core.method import Context, MemoryNeeds, Round, done
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import ClientTable, Models, grow_rows
from coterie.methods.averaging import Weighting, average_replies
from coterie.methods.one_model import SharedModel

if TYPE_CHECKING:
    from torch import Tensor

OWN_MODEL, ALPHA = "own", "alpha"


@dataclass(frozen=True, kw_only=True)
class APFLRule(LocalRule):
    """Two loops: the shared model on the study's loss, then the client's own on the loss of the mixture with the model received."""

    loops = (MODEL, OWN_MODEL)
    needs = (OWN_MODEL, ALPHA)

    def objective(self, step: Step) -> "Tensor":
        if step.loop == MODEL:
            return step.loss(step.outputs())
        share, mixed = step.extra[ALPHA], dict(step.weights)
        for name in step.trained:
            mixed[name] = share[name] * step.weights[name] + (1 - share[name]) * step.received[name]
        return step.loss(step.outputs(mixed))  # Alg. 1: the gradient for v_i has a factor alpha_i


@dataclass(frozen=True)
class APFLState(Models):
    """The shared model, and each client's own and its weight."""

    own: ClientTable  # (n, d) v_i; the common start until a client has taken part
    alphas: Doubles  # (n,)


@dataclass(frozen=True, kw_only=True)
class APFL(SharedModel[APFLState]):
    """FedAvg, and for each client a mixture of the shared model and its own; clients that took no part are served the shared one.

    Example: ``ct.APFL(alpha=0.5)``, or the spec ``apfl(alpha=0.5)``.
    """

    alpha: float = setting(0.5, "The weight of a client's own model, to begin with.", minimum=0, maximum=1)
    adapt: bool = setting(True, "Whether the weight follows its gradient.")
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=1.0, served=1.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[APFLState]:
        model, n = init()[None, :], len(ctx.roster)
        return done(APFLState(model, ClientTable.empty(n, model[0]), np.full(n, self.alpha)))

    def round(self, state: APFLState, ctx: Context) -> Round[APFLState]:
        cohort, n = ctx.cohort(), len(ctx.roster)
        own, alphas = state.own.grow(n), np.array(grow_rows(state.alphas, n, self.alpha))
        now = yield from self._adapted(APFLState(state.models, own, alphas), cohort, ctx)
        shares = np.repeat(now[cohort].astype(np.float32)[:, None], ctx.layout.size, axis=1)
        extra = {OWN_MODEL: own.of(cohort), ALPHA: shares}
        trained = yield from Train(cohort, state.models, ctx.local.replace(rule=APFLRule()), extra=extra, kept=(OWN_MODEL, ALPHA))
        if not len(trained):
            return state
        alphas[trained.clients] = now[trained.clients]
        ctx.note("alphas", alphas[trained.clients])
        shared = average_replies(state, trained, self.weighting, ctx).models
        return APFLState(shared, own.put(trained.clients, trained.more[:, 0]), alphas)

    def _adapted(self, state: APFLState, cohort: Ids, ctx: Context) -> Round[Doubles]:
        """(roster,) the weights after a step along their gradients, once a round; of clients without a model of their own they stay."""
        alphas, known = state.alphas.copy(), cohort[state.own.has_row[cohort]]
        if not self.adapt or not len(known):
            return alphas
        probes = yield from Gradient(known, mix_own(state, known), start=np.arange(len(known)), alone=True)
        gaps = ctx.layout.comparable(np.asarray(state.own.of(probes.clients)) - state.models[0]).astype(np.float64)
        slopes = np.einsum("ij,ij->i", gaps, ctx.layout.comparable(np.asarray(probes.vectors)))  # <v_i - w, gradient of the mixture>
        alphas[probes.clients] = np.clip(alphas[probes.clients] - ctx.local.lr * slopes, 0.0, 1.0)
        return alphas

    def serve(self, state: APFLState, clients: Ids, ctx: Context) -> Round[Serving]:
        n = len(ctx.roster)
        grown = APFLState(state.models, state.own.grow(n), grow_rows(state.alphas, n, self.alpha))
        which = np.flatnonzero(grown.own.has_row[clients])
        rows = np.zeros(len(clients), dtype=np.int64)
        rows[which] = 1 + np.arange(len(which))
        return done(Serving(clients, np.concatenate([state.models, mix_own(grown, clients[which])]), rows))


def mix_own(state: APFLState, clients: Ids) -> Floats:
    """(m, d) alpha_i v_i + (1 - alpha_i) w."""
    share = state.alphas[clients][:, None]
    return (share * np.asarray(state.own.of(clients)) + (1 - share) * np.asarray(state.models)).astype(np.float32)
