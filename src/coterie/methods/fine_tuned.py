"""Fine-tuning: a way of serving any method. Each client trains a few epochs from the model it would be served."""

from dataclasses import dataclass, replace

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ids
from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Round, S
from coterie.core.serving import COMBINED, Serving
from coterie.core.settings import setting
from coterie.methods.wrapper import ContextWrapper

MIXTURE = "A mixture of models cannot be fine-tuned, since clients share them: serve one model a client, or omit fine-tuning."


@dataclass(frozen=True, kw_only=True)
class FineTuned(ContextWrapper[S]):
    """Trains like the method it wraps; serves each client a copy adapted to its own training part.

    Example: ``ct.FineTuned(method=ct.FedAvg(), epochs=5)``, or the spec ``fedavg+finetune(epochs=5)``.
    """

    epochs: int = setting(1, "Epochs on the client's own training part.", minimum=1)
    lr: float | None = setting(None, "The learning rate; default: the plan's.", above=0)

    @property
    def memory_needs(self) -> MemoryNeeds:
        return super().memory_needs.serving(1.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[S]:
        if self.method.combines_models:  # refused before anything is trained
            raise UserError(MIXTURE)
        return super().start(init, ctx)

    def serve(self, state: S, clients: Ids, ctx: Context) -> Round[Serving]:
        serving = yield from self.method.serve(state, clients, ctx)
        return (yield from fine_tune(serving, self.epochs, ctx, lr=self.lr))


def fine_tune(serving: Serving, epochs: int, ctx: Context, *, lr: float | None = None, purpose: str = "fine-tune") -> Round[Serving]:
    """The serving with a copy for each client, trained on its own samples; one that does not answer keeps the model it was served."""
    if np.any(serving.rows == COMBINED):
        raise UserError(MIXTURE)
    local = ctx.local.replace(epochs=epochs, mu=0.0, max_steps=None, lr=lr or ctx.local.lr)
    tuned = yield from Train(serving.clients, serving.models, local, start=serving.rows, purpose=purpose, alone=True)
    answered = np.isin(serving.clients, tuned.clients)
    own = np.searchsorted(tuned.clients, serving.clients[answered])
    if answered.all():  # a copy of many models would be much
        return replace(serving, models=tuned.vectors, rows=own)
    rows = serving.rows.copy()
    rows[answered] = len(serving.models) + own
    return replace(serving, models=np.concatenate([serving.models, tuned.vectors]), rows=rows)
