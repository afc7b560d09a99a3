"""Federated averaging.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017), Algorithm 1; with uniform weights it is
Eq. 1 of SimProx.
"""

from dataclasses import dataclass

from coterie.core.asks import Train
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.methods.averaging import Weighting, average_replies
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class FedAvg(OneModelMethod):
    """Train a sample of clients from the shared model and average what they send back.

    Example: ``ct.FedAvg(weighting="uniform")``, or the spec ``fedavg(weighting=uniform)``.
    """

    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort = ctx.cohort()
        trained = yield from Train(cohort, state.models, ctx.local)
        return average_replies(state, trained, self.weighting, ctx)
