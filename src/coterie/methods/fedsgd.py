"""FedSGD: one full-batch gradient a client, averaged, one server step (McMahan et al. 2017, Section 2).

A step of the averaged gradient is the average of one full-batch step on each client, so this is FedAvg with E=1 and the full batch; it is
written that way to share its arithmetic bit for bit.
"""

from dataclasses import dataclass

from coterie.core.asks import Train
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.methods.averaging import Weighting, average_replies
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class FedSGD(OneModelMethod):
    """One full-batch step on each client of the cohort, averaged.

    Example: ``ct.FedSGD()``, or the spec ``fedsgd``.
    """

    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort = ctx.cohort()
        trained = yield from Train(cohort, state.models, ctx.local.replace(epochs=1, batch_size=None))
        return average_replies(state, trained, self.weighting, ctx)
