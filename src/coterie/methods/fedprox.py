"""FedProx: federated averaging with a proximal term, keeping the partial work of stragglers.

Li et al., "Federated Optimization in Heterogeneous Networks" (2020), Algorithm 2.
"""

from dataclasses import dataclass

from coterie.core.asks import Train
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.methods.averaging import Weighting, average_replies
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class FedProx(OneModelMethod):
    """FedAvg whose clients add ``mu/2 * ||w - w_t||^2`` to their loss.

    Example: ``ct.FedProx(mu=0.1)``, or the spec ``fedprox(mu=0.1)``.
    """

    mu: float = setting(1.0, "Weight of the proximal term.", minimum=0)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def proximal(self) -> float:
        return self.mu

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort = ctx.cohort()
        trained = yield from Train(cohort, state.models, ctx.local.replace(mu=self.mu), partial=True)
        return average_replies(state, trained, self.weighting, ctx)
