"""MOON: model-contrastive federated learning.

Li, He and Song, "Model-Contrastive Federated Learning" (2021), Algorithm 1 and Eq. 3. The representation is what enters the model's last
dense layer; the paper's projection head, two dense layers that it adds to the network, is left out. (What SimProx's paper calls MOON is
`neighbourprox`.)
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.local import LocalRule, Step
from coterie.core.method import Context, MemoryNeeds, Round, done
from coterie.core.settings import setting
from coterie.core.states import ClientTable, Models
from coterie.methods.averaging import Weighting, average_replies
from coterie.methods.one_model import SharedModel

if TYPE_CHECKING:
    from torch import Tensor

PREVIOUS_MODEL = "previous"


@dataclass(frozen=True, kw_only=True)
class MOONRule(LocalRule):
    """The study's loss, and a pull of the representation towards the shared model's and away from the client's own last one."""

    needs = (PREVIOUS_MODEL,)

    mu: float
    temperature: float

    def objective(self, step: Step) -> "Tensor":
        import torch
        from torch.nn import functional

        with torch.no_grad():
            shared, previous = step.features(step.received), step.features(step.extra[PREVIOUS_MODEL])
        own = step.features()
        near = functional.cosine_similarity(own, shared, dim=-1) / self.temperature
        far = functional.cosine_similarity(own, previous, dim=-1) / self.temperature
        contrast = -functional.logsigmoid(near - far)  # Eq. 3: -log(e^near / (e^near + e^far))
        return step.loss(step.outputs()) + self.mu * step.mean(contrast)


@dataclass(frozen=True)
class MOONState(Models):
    """The shared model, and the model that each client trained last; the common start before it has."""

    last: ClientTable  # (n, d)


@dataclass(frozen=True, kw_only=True)
class MOON(SharedModel[MOONState]):
    """FedAvg whose clients contrast their representation with the shared model's and with their own last one.

    Example: ``ct.MOON(mu=1)``, or the spec ``moon(mu=1)``.
    """

    mu: float = setting(1.0, "Weight of the contrast.", minimum=0)
    temperature: float = setting(0.5, "Of the contrast.", above=0)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=1.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[MOONState]:
        model = init()[None, :]
        return done(MOONState(model, ClientTable.empty(len(ctx.roster), model[0])))

    def round(self, state: MOONState, ctx: Context) -> Round[MOONState]:
        last = state.last.grow(len(ctx.roster), state.models[0])
        cohort = ctx.cohort()
        local = ctx.local.replace(rule=MOONRule(mu=self.mu, temperature=self.temperature)) if self.mu else ctx.local
        extra = {PREVIOUS_MODEL: last.of(cohort)} if self.mu else {}
        trained = yield from Train(
            cohort, state.models, local, extra=extra, kept=(PREVIOUS_MODEL,)
        )  # Alg. 1: clients keep their last model
        if not len(trained):
            return state
        return MOONState(average_replies(state, trained, self.weighting, ctx).models, last.put(trained.clients, trained.vectors))
