"""Clients drawn to their neighbours' models: what SimProx's paper states as MOON (its Eq. 4). It is not the published MOON.

The paper names "Modeling Overlapping Neighborhoods" and cites Li, He and Song (2021), "Model-contrastive federated learning", whose loss
is a contrast of representations (that is `moon`). What it prints is another method: each client is drawn to the models of its neighbours,
L_i(w) + gamma * sum over j in N(i) of ||w - w_j||^2. That is what is here.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Round, done
from coterie.core.settings import setting
from coterie.core.states import ClientTable, Models
from coterie.grouping.neighbours import find_nearest_clients
from coterie.methods.averaging import Weighting, average_replies
from coterie.methods.one_model import SharedModel


@dataclass(frozen=True)
class NeighbourProxState(Models):
    """The shared model, and the last that was heard of each client."""

    last: ClientTable  # (n, d) its last model
    updates: ClientTable  # (n, d) its last model less the one it had received: what clients are compared by


@dataclass(frozen=True, kw_only=True)
class NeighbourProx(SharedModel[NeighbourProxState]):
    """FedAvg whose clients are drawn to the last models of their nearest neighbours.

    Example: ``ct.NeighbourProx(neighbours=3)``, or the spec ``neighbourprox(neighbours=3)``.
    """

    gamma: float = setting(0.01, "How strongly a client is drawn to each neighbour.", minimum=0)
    neighbours: int = setting(3, "Neighbours of a client.", minimum=1)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=2.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[NeighbourProxState]:
        model = init()[None, :]
        nothing = ClientTable.empty(len(ctx.roster), np.zeros_like(model[0]))
        return done(NeighbourProxState(model, nothing, nothing))

    def round(self, state: NeighbourProxState, ctx: Context) -> Round[NeighbourProxState]:
        last, updates = (rows.grow(len(ctx.roster)) for rows in (state.last, state.updates))
        cohort = ctx.cohort()
        anchors, counts = self._find_anchors(NeighbourProxState(state.models, last, updates), cohort, ctx)
        drawn = bool(counts.any()) and self.gamma > 0  # the gradient of Eq. 4's sum is 2 gamma |N(i)| (w - mean of w_j)
        mus = 2.0 * self.gamma * counts.astype(np.float64)
        trained = yield from Train(cohort, state.models, ctx.local, anchors=anchors if drawn else None, mus=mus if drawn else None)
        ctx.note("with_neighbours", int(np.count_nonzero(counts)))
        if not len(trained):
            return state
        last, updates = last.put(trained.clients, trained.vectors), updates.put(trained.clients, trained.vectors - state.models[0])
        return NeighbourProxState(average_replies(state, trained, self.weighting, ctx).models, last, updates)

    def _find_anchors(self, state: NeighbourProxState, cohort: Ids, ctx: Context) -> tuple[Floats, Ids]:
        """(m, d) the mean of each client's neighbours' last models, and (m,) how many they are; none before it has been seen itself."""
        anchors = np.repeat(state.models, len(cohort), axis=0)
        counts = np.zeros(len(cohort), dtype=np.int64)
        known = np.flatnonzero(state.last.has_row)
        here, count = np.flatnonzero(state.last.has_row[cohort]), min(self.neighbours, len(known) - 1)
        if count > 0 and len(here):
            compared = ctx.layout.comparable(state.updates.of(known))
            near, notes = find_nearest_clients(compared, np.searchsorted(known, cohort[here]), count, ctx.rng("landmarks"))
            for name, value in notes.items():
                ctx.note(name, value)
            for i, others in zip(here, known[near], strict=True):
                anchors[i], counts[i] = state.last.of(others).mean(axis=0, dtype=np.float64), count
        return anchors, counts
