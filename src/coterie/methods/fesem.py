"""FeSEM: multi-centre federated learning by stochastic expectation maximisation.

Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-Center Federated Learning: Clients Clustering for Better Personalization", Algorithms 1 and 2.
The paper assumes that all clients take part in every round. Here a round re-assigns only those who took part, by the model they have just
trained, so no table of everybody's last model is needed. The warm-up is in `centres`.
"""

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.methods.averaging import weights_of
from coterie.methods.centre_distances import reseed
from coterie.methods.centres import Centres, WarmStart
from coterie.methods.grouped import within_groups


@dataclass(frozen=True, kw_only=True)
class FeSEM(WarmStart):
    """K centres: clients train from their own, move to the nearest, and centres move to the mean of their clients."""

    lam: float = setting(0.1, "Lambda: the paper gives none; the authors' code has .1.", least=0)
    literal: bool = setting(False, "Eq. 7 with a distance weight by the client's size.")

    @property
    def proximal(self) -> float:
        return 2 * self.lam

    def round(self, state: Centres, ctx: Context) -> Round[Centres]:
        if not len(state.first):
            return (yield from self.warm_up(state, ctx))
        cohort = ctx.cohort()
        members = yield from self.joined(state, cohort, ctx)
        cohort = cohort[members[cohort] >= 0]
        local, mus = self._distance_term(cohort, ctx)
        trained = yield from Train(cohort, state.models, local, start=members[cohort], mus=mus)  # Eq. 7, Alg. 1, lines 8-13
        if not len(trained):
            return state
        apart = self.distances(trained.vectors, state.models, ctx)  # (n, K), Alg. 1, line 4
        before, groups = members[trained.clients], state.everybody(ctx)
        groups[trained.clients] = self._e_step(apart, before)
        reseeded = reseed(groups, trained.clients, apart) if self.assign == "similar" else []
        labels = groups[trained.clients]
        ctx.note("switches", int(np.sum(labels != before)))
        ctx.note("reseeded", np.array(reseeded, dtype=np.int64))
        ctx.note("intra_distance", float(np.take_along_axis(apart, labels[:, None], axis=1).mean()))  # Eq. 6
        trained = self.aligned(trained, labels, state.models, ctx)
        models = within_groups(state, trained, labels, weights_of(trained, self.weighting), len(state.models), ctx)  # Eq. 9
        ctx.note("group_sizes", np.bincount(groups[groups >= 0], minlength=len(models)))
        return replace(state, models=models, groups=groups)

    def _distance_term(self, clients: Ids, ctx: Context) -> tuple[Local, Doubles | None]:
        """Eq. 7 divided by alpha_i: L_i + lambda / (m alpha_i) ||w - centre||^2, whose gradient is that of mu = 2 lambda / (m alpha_i).

        With equal sizes m alpha_i = 1, which is the default; literally, m alpha_i = n_i / mean n.
        """
        if not self.lam:
            return ctx.local, None
        sizes = ctx.roster.sizes
        return ctx.local.but(mu=2 * self.lam), 2 * self.lam * sizes.mean() / sizes[clients] if self.literal else None

    def _e_step(self, apart: Doubles, own: Ids) -> Ids:
        """Eq. 8: the nearest centre; the own one where another is only as near, and always under a control."""
        best = apart.argmin(axis=1)
        rows = np.arange(len(own))
        return np.where((apart[rows, best] < apart[rows, own]) & (self.assign == "similar"), best, own)
