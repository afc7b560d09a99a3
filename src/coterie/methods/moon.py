"""MOON as SimProx's paper states it (002, Eq. 4). This is not the published MOON.

The paper names "Modeling Overlapping Neighborhoods" and cites Li, He and Song (2021), "Model-contrastive federated learning", whose loss
is a contrast of representations. What it prints is another method: each client is drawn to the models of its neighbours,
L_i(w) + gamma * sum over j in N(i) of ||w - w_j||^2. That is what is here.
"""

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.arrays import Bools, Floats, Ids
from coterie.core.asks import Train
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round, done
from coterie.core.serving import Panel, Serving
from coterie.core.states import Models
from coterie.grouping.similarity import cosines, gram
from coterie.methods.fedavg import Weighting, averaged


@dataclass(frozen=True)
class Neighbourly(Models):
    """The shared model, and the last that was heard of each client."""

    last: Floats  # (n, d) its last model
    updates: Floats  # (n, d) its last model less the one it had received: what clients are compared by
    seen: Bools  # (n,)


@dataclass(frozen=True, kw_only=True)
class Moon(Method[Neighbourly]):
    """FedAvg whose clients are drawn to the last models of their nearest neighbours."""

    gamma: float = 0.01
    neighbours: int = 3
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.gamma >= 0 and np.isfinite(self.gamma)):
            raise UserError(f"MOON cannot use gamma={self.gamma!r}: give 0 or more.")
        if self.neighbours < 1:
            raise UserError(f"MOON cannot use neighbours={self.neighbours!r}: give 1 or more.")

    def start(self, init: InitialModels, ctx: Context) -> Round[Neighbourly]:
        model = init()[None, :]
        nothing = np.zeros((len(ctx.roster), model.shape[1]), dtype=np.float32)
        return done(Neighbourly(model, nothing, nothing, np.zeros(len(ctx.roster), dtype=np.bool_)))

    def round(self, state: Neighbourly, ctx: Context) -> Round[Neighbourly]:
        state = _grown(state, len(ctx.roster))
        cohort = ctx.cohort()
        anchors, counts = self._anchors(state, cohort, ctx)
        drawn = bool(counts.any()) and self.gamma > 0  # the gradient of Eq. 4's sum is 2 gamma |N(i)| (w - mean of w_j)
        trained = yield from Train(
            cohort,
            state.models,
            ctx.local,
            anchors=anchors if drawn else None,
            mus=2.0 * self.gamma * counts.astype(np.float64) if drawn else None,
        )
        ctx.record("with_neighbours", float(np.count_nonzero(counts)))
        if not len(trained):
            return state
        last, updates, seen = state.last.copy(), state.updates.copy(), state.seen.copy()
        last[trained.clients] = trained.vectors
        updates[trained.clients] = trained.vectors - state.models[0]
        seen[trained.clients] = True
        return Neighbourly(averaged(state, trained, self.weighting, ctx).models, last, updates, seen)

    def _anchors(self, state: Neighbourly, cohort: Ids, ctx: Context) -> tuple[Floats, Ids]:
        """(m, d) the mean of each client's neighbours' last models, and (m,) how many they are; none before it has been seen itself."""
        anchors = np.repeat(state.models, len(cohort), axis=0)
        counts = np.zeros(len(cohort), dtype=np.int64)
        known = np.flatnonzero(state.seen)
        alike = cosines(gram(ctx.layout.comparable(state.updates[known])))
        np.fill_diagonal(alike, -np.inf)  # nobody is its own neighbour
        for i, client in enumerate(cohort):
            count = min(self.neighbours, len(known) - 1)
            if state.seen[client] and count > 0:
                near = known[np.argsort(-alike[np.searchsorted(known, client)], kind="stable")[:count]]
                anchors[i], counts[i] = state.last[near].mean(axis=0, dtype=np.float64), count
        return anchors, counts

    def serve(self, state: Neighbourly, clients: Ids, ctx: Context) -> Round[Serving]:
        return done(Serving.one(clients, state.models))

    def panel(self, state: Neighbourly) -> Panel:
        return Panel(("global",), Serving.one(np.zeros(1, dtype=np.int64), state.models))


def _grown(state: Neighbourly, clients: int) -> Neighbourly:
    """The state with a row for every client of the roster: of newcomers nothing has been heard."""
    more = clients - len(state.seen)
    if more <= 0:
        return state
    rows = np.zeros((more, state.last.shape[1]), dtype=np.float32)
    return replace(
        state,
        last=np.concatenate([state.last, rows]),
        updates=np.concatenate([state.updates, rows]),
        seen=np.concatenate([state.seen, np.zeros(more, dtype=np.bool_)]),
    )
