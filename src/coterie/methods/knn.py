"""kNN-Per: a way of serving any method. Each client mixes its model's answer with that of its own nearest training samples.

Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local Memorization" (2022): h(x) = lambda h_knn(x) +
(1 - lambda) h_model(x), where h_knn counts the labels of the k training samples nearest to x in the features of the model.
"""

from dataclasses import dataclass, replace

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Ids
from coterie.core.asks import Evaluate, Evaluated, Together
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round, S
from coterie.core.serving import COMBINED, Neighbours, Serving
from coterie.core.settings import setting
from coterie.methods.wrapper import ContextWrapper


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours(ContextWrapper[S]):
    """Trains like the method it wraps; each client answers from its model and its own nearest training samples.

    Example: ``ct.NearestNeighbours(method=ct.FedAvg())``, or the spec ``fedavg+knn``.
    """

    neighbours: int = setting(10, "Neighbours that answer.", minimum=1)
    scale: float = setting(1.0, "They count by exp(-squared distance / (features * scale)).", above=0)
    lam: float | None = setting(None, "Their share of the answer; default: each client's choice on held-out samples.", minimum=0, maximum=1)
    steps: int = setting(10, "Shares from 0 to 1 that a client chooses from, less one.", minimum=1)

    def start(self, init: InitialModels, ctx: Context) -> Round[S]:
        if ctx.task.name == "next-token":
            raise UserError("knn needs a label for each sample, and this is text: omit it.")
        if not ctx.layout.head:
            raise UserError("The model has no dense layer whose inputs could be its features: omit knn, or choose another model.")
        return super().start(init, ctx)

    def serve(self, state: S, clients: Ids, ctx: Context) -> Round[Serving]:
        serving = yield from self.method.serve(state, clients, ctx)
        if np.any(serving.rows == COMBINED):
            raise UserError("A mixture of models has no features of its own: serve one model a client, or omit knn.")
        if self.lam is not None:
            weights = np.full(len(serving.clients), self.lam)
        else:
            weights = yield from self._choose(serving, ctx)
        return self.add_neighbours(serving, weights) if weights.any() else serving

    def add_neighbours(self, serving: Serving, weights: Doubles) -> Serving:
        """The serving with these shares of neighbours, one a client."""
        placed = np.zeros(int(serving.places.max(initial=-1)) + 1)
        placed[serving.places] = weights
        return replace(serving, neighbours=Neighbours(self.neighbours, self.scale, placed))

    def _choose(self, serving: Serving, ctx: Context) -> Round[Doubles]:
        """(n,) each client's share: that with most right answers on its validation samples; without any, on its training samples, of
        which none is its own neighbour. Of equals the lowest loss, then the smallest share. A client that cannot judge has none."""
        shares = np.linspace(0.0, 1.0, self.steps + 1)
        asks = [
            Evaluate(
                self.add_neighbours(serving, np.full(len(serving.clients), share)), "validation" if ctx.validation else "train", alone=True
            )
            for share in shares
        ]
        replies: tuple[Evaluated, ...] = yield from Together(*asks)
        right = np.full((len(shares), len(ctx.roster)), 0.0)
        losses = np.full((len(shares), len(ctx.roster)), np.inf)
        for i, reply in enumerate(replies):
            if ctx.task.counts_classes:
                right[i, reply.clients] = reply.hits.sum(axis=1)
            losses[i, reply.clients] = np.where(np.isfinite(reply.loss), reply.loss, np.inf)
        chosen = [int(np.lexsort((losses[:, client], -right[:, client]))[0]) for client in serving.clients.tolist()]
        return np.asarray(shares[chosen])
