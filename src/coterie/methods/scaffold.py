"""SCAFFOLD: control variates against client drift.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (2020), Algorithm 1, option II, server step 1.
"""

from dataclasses import dataclass

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles
from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Round, done
from coterie.core.states import ClientTable, Models
from coterie.methods.averaging import average_replies
from coterie.methods.one_model import SharedModel


@dataclass(frozen=True)
class SCAFFOLDState(Models):
    """The shared model and the control variates: the clients' own, and their mean."""

    mean: Doubles  # (d,) c
    own: ClientTable  # (n, d) c_k, zero until a client has taken part


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(SharedModel[SCAFFOLDState]):
    """FedAvg(uniform) whose clients step along their gradient plus c - c_k.

    Example: ``ct.SCAFFOLD()``, or the spec ``scaffold``.
    """

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=1.0)

    @property
    def weighs_alike(self) -> bool:
        return True

    def start(self, init: InitialModels, ctx: Context) -> Round[SCAFFOLDState]:
        model = init()[None, :]
        return done(SCAFFOLDState(model, np.zeros(model.shape[1]), ClientTable.empty(len(ctx.roster), np.zeros_like(model[0]))))

    def round(self, state: SCAFFOLDState, ctx: Context) -> Round[SCAFFOLDState]:
        local = ctx.local
        if local.optimizer != "sgd" or local.momentum or local.mu:
            raise UserError("SCAFFOLD reads gradients off a client's way, so it needs plain SGD: no Adam, momentum or proximal term.")
        own = state.own.grow(len(ctx.roster))  # newcomers begin at zero
        cohort = ctx.cohort()
        linear = (state.mean - own.of(cohort)).astype(np.float32)  # line 10: g + c - c_k
        trained = yield from Train(cohort, state.models, local, linear=linear if linear.any() else None)
        if not len(trained):
            return state
        moved = state.models[0].astype(np.float64) - trained.vectors  # (m, d) w_t - w_k
        slopes = moved / (np.maximum(trained.steps, 1) * local.lr)[:, None]
        before = own.of(trained.clients).astype(np.float64)
        after = np.where(ctx.layout.compared, before - state.mean + slopes, 0.0)  # line 12 (II); statistics have no gradient
        votes = ctx.votes(trained.clients)
        change = (after - before).sum(axis=0) if votes is None else len(trained) * (votes @ (after - before))
        mean = state.mean + change / len(ctx.roster)  # line 17: c += |S|/N * mean change
        ctx.note("control_norm", float(np.linalg.norm(mean)))
        return SCAFFOLDState(
            average_replies(state, trained, "uniform", ctx).models, mean, own.put(trained.clients, after.astype(np.float32))
        )  # line 16
