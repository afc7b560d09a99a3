"""Clients drawn to their neighbours' models: what SimProx's paper states as MOON (its Eq. 4). It is not the published MOON.

The paper names "Modeling Overlapping Neighborhoods" and cites Li, He and Song (2021), "Model-contrastive federated learning", whose loss
is a contrast of representations (that is `moon`). What it prints is another method: each client is drawn to the models of its neighbours,
L_i(w) + gamma * sum over j in N(i) of ||w - w_j||^2. That is what is here.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Train
from coterie.core.holdings import Holdings
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round, done
from coterie.core.own_rows import OwnRows
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.grouping.nearest import nearest_clients
from coterie.methods.averaging import Weighting, averaged
from coterie.methods.one_model import SharedModel


@dataclass(frozen=True)
class Neighbourly(Models):
    """The shared model, and the last that was heard of each client."""

    last: OwnRows  # (n, d) its last model
    updates: OwnRows  # (n, d) its last model less the one it had received: what clients are compared by


@dataclass(frozen=True, kw_only=True)
class NeighbourProx(SharedModel[Neighbourly]):
    """FedAvg whose clients are drawn to the last models of their nearest neighbours."""

    gamma: float = setting(0.01, "How strongly a client is drawn to each neighbour.", least=0)
    neighbours: int = setting(3, "Neighbours of a client.", least=1)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def holdings(self) -> Holdings:
        return Holdings(kept=2.0)

    def start(self, init: InitialModels, ctx: Context) -> Round[Neighbourly]:
        model = init()[None, :]
        nothing = OwnRows.nobody(len(ctx.roster), np.zeros_like(model[0]))
        return done(Neighbourly(model, nothing, nothing))

    def round(self, state: Neighbourly, ctx: Context) -> Round[Neighbourly]:
        last, updates = (rows.grown(len(ctx.roster)) for rows in (state.last, state.updates))
        cohort = ctx.cohort()
        anchors, counts = self._anchors(Neighbourly(state.models, last, updates), cohort, ctx)
        drawn = bool(counts.any()) and self.gamma > 0  # the gradient of Eq. 4's sum is 2 gamma |N(i)| (w - mean of w_j)
        mus = 2.0 * self.gamma * counts.astype(np.float64)
        trained = yield from Train(cohort, state.models, ctx.local, anchors=anchors if drawn else None, mus=mus if drawn else None)
        ctx.note("with_neighbours", int(np.count_nonzero(counts)))
        if not len(trained):
            return state
        last, updates = last.put(trained.clients, trained.vectors), updates.put(trained.clients, trained.vectors - state.models[0])
        return Neighbourly(averaged(state, trained, self.weighting, ctx).models, last, updates)

    def _anchors(self, state: Neighbourly, cohort: Ids, ctx: Context) -> tuple[Floats, Ids]:
        """(m, d) the mean of each client's neighbours' last models, and (m,) how many they are; none before it has been seen itself."""
        anchors = np.repeat(state.models, len(cohort), axis=0)
        counts = np.zeros(len(cohort), dtype=np.int64)
        known = np.flatnonzero(state.last.has)
        here, count = np.flatnonzero(state.last.has[cohort]), min(self.neighbours, len(known) - 1)
        if count > 0 and len(here):
            compared = ctx.layout.comparable(state.updates.of(known))
            near = known[nearest_clients(compared, np.searchsorted(known, cohort[here]), count, ctx)]
            for i, others in zip(here, near, strict=True):
                anchors[i], counts[i] = state.last.of(others).mean(axis=0, dtype=np.float64), count
        return anchors, counts
