"""Ditto: a model of its own for each client, held near the shared one.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization" (2021), Algorithm 1. A client's visit has two
loops: it trains the shared model, which it sends back, and its own model v_k on F_k(v) + lambda/2 ||v - w_t||^2, which it keeps.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Bools, Ids
from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.local import MODEL, WeightedRule
from coterie.core.method import Context, MemoryNeeds, Round, done
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import ClientTable, Models, grow_rows
from coterie.methods.averaging import Weighting, average_replies
from coterie.methods.one_model import SharedModel

OWN_MODEL = "own"


@dataclass(frozen=True, kw_only=True)
class DittoRule(WeightedRule):
    """Two loops: the shared model on the study's loss, then the client's own, pulled towards the shared one as it was received."""

    loops = (MODEL, OWN_MODEL)
    needs = (OWN_MODEL,)

    lam: float
    own_epochs: int | None

    def epochs(self, loop: str, epochs: int) -> int:
        return self.own_epochs if loop == OWN_MODEL and self.own_epochs is not None else epochs

    def get_pull(self, loop: str) -> float:
        return self.lam if loop == OWN_MODEL else 0.0  # Alg. 1, line 7


@dataclass(frozen=True)
class DittoState(Models):
    """The shared model, and each client's own."""

    own: ClientTable  # (n, d) v_k; the common start until a client has taken part
    seen: Bools  # (n,)


@dataclass(frozen=True, kw_only=True)
class Ditto(SharedModel[DittoState]):
    """FedAvg, and beside it a model of its own for each client that took part; others are served the shared one.

    Example: ``ct.Ditto(lam=0.5)``, or the spec ``ditto(lam=0.5)``.
    """

    lam: float = setting(1.0, "How strongly a client's own model is held near the shared one.", minimum=0)
    own_epochs: int | None = setting(None, "Epochs of the client's own model a round; default: the plan's.", minimum=1)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=1.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[DittoState]:
        model = init()[None, :]
        return done(DittoState(model, ClientTable.empty(len(ctx.roster), model[0]), np.zeros(len(ctx.roster), dtype=np.bool_)))

    def round(self, state: DittoState, ctx: Context) -> Round[DittoState]:
        own = state.own.grow(len(ctx.roster), state.models[0])
        seen = np.array(grow_rows(state.seen, len(ctx.roster), False))
        cohort = ctx.cohort()
        local = ctx.local.replace(rule=DittoRule(lam=self.lam, own_epochs=self.own_epochs))
        trained = yield from Train(cohort, state.models, local, extra={OWN_MODEL: own.of(cohort)}, kept=(OWN_MODEL,))
        if not len(trained):
            return state
        seen[trained.clients] = True
        return DittoState(average_replies(state, trained, self.weighting, ctx).models, own.put(trained.clients, trained.more[:, 0]), seen)

    def serve(self, state: DittoState, clients: Ids, ctx: Context) -> Round[Serving]:
        n = len(ctx.roster)
        return done(state.own.grow(n).serving(clients, state.models, grow_rows(state.seen, n, False)))
