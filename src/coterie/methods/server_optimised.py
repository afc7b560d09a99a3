"""A server optimiser around any method's aggregate.

Reddi et al., "Adaptive Federated Optimization" (2021), Algorithm 2 (FedAvgM, FedAdam): what a round changed in each model is taken for a
(negative) gradient and goes through momentum or Adam. With learning rate 1 and no momentum the round is left as it is.
"""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from coterie.core.arrays import Doubles
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.core.states import Models, State
from coterie.methods.wrapper import Wrapper

M = TypeVar("M", bound=Models)


@dataclass(frozen=True)
class ServerOptimisedState(State, Generic[M]):
    """The method's own state with the optimiser's moments, a row a model."""

    inner: M
    first: Doubles  # (k, d)
    second: Doubles  # (k, d)


@dataclass(frozen=True, kw_only=True)
class ServerOptimised(Wrapper[ServerOptimisedState[M], M]):
    """Moves the models by an optimiser instead of setting them to the aggregate.

    Example: ``ct.ServerOptimised(method=ct.FedAvg(), optimizer="adam")``, or the spec ``fedavg+server(optimizer=adam)``.
    """

    optimizer: Literal["momentum", "adam"] = setting("momentum", "How the round's change is used.")
    lr: float = setting(1.0, "The server's learning rate.", above=0)
    beta1: float = setting(0.9, "How much of the last change is kept.", minimum=0, below=1)
    beta2: float = setting(0.99, "Adam's memory of squared changes.", minimum=0, below=1)
    tau: float = setting(1e-3, "Adam's floor of the scale, as in the paper.", above=0)

    def start(self, init: InitialModels, ctx: Context) -> Round[ServerOptimisedState[M]]:
        inner = yield from self.method.start(init, ctx)
        zeros = np.zeros(inner.models.shape)
        return ServerOptimisedState(inner, zeros, zeros)

    def round(self, state: ServerOptimisedState[M], ctx: Context) -> Round[ServerOptimisedState[M]]:
        inner = yield from self.method.round(state.inner, ctx)
        before, after = state.inner.models, inner.models
        if before is after:  # no replies: nothing moves, momentum included
            return ServerOptimisedState(inner, state.first, state.second)
        known = min(len(before), len(after))  # a model that the round added begins without moments
        step = after[:known].astype(np.float64) - before[:known]
        first, second = np.zeros((2, *after.shape))
        if self.optimizer == "momentum":
            first[:known] = self.beta1 * state.first[:known] + step
            move = first[:known]
        else:
            first[:known] = self.beta1 * state.first[:known] + (1 - self.beta1) * step
            second[:known] = self.beta2 * state.second[:known] + (1 - self.beta2) * step**2
            move = first[:known] / (np.sqrt(second[:known]) + self.tau)
        models = after.copy()
        weights = ctx.layout.compared  # statistics and counters are averaged, not optimised: a running variance may not turn negative
        models[:known, weights] = (before[:known] + self.lr * move)[:, weights]
        return ServerOptimisedState(inner.with_models(models), first, second)

    def inner(self, state: ServerOptimisedState[M]) -> M:
        return state.inner

    @property
    def trains_once(self) -> bool:
        return self.method.trains_once
