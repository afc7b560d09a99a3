"""IFCA, also called HypoCluster: every client takes the model that fits it best.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning" (2020), Algorithm 1, option II (model averaging); Mansour et al.,
"Three Approaches for Personalization with Applications to Federated Learning" (2020), HypCluster. A bad start is common and final: several
starts side by side are `ifca+restarts`.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Train
from coterie.core.holdings import Holdings
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.grouping.controls import largest, truth_of
from coterie.grouping.similarity import coordinates, cosines, gram
from coterie.methods.averaging import Weighting, weights_of
from coterie.methods.grouped import GroupedMethod, Groups, lowest_loss, within_groups
from coterie.methods.number import ChoosesGroups, GroupNumber


@dataclass(frozen=True, kw_only=True)
class IFCA(GroupedMethod[Groups], ChoosesGroups):
    """Clients take the model with the lowest loss, train it, and those who took the same are averaged."""

    groups: GroupNumber = setting(3, "Models.", least=1)
    weighting: Weighting = setting("uniform", "How much a client counts: by its samples, or as much as any other.")
    probe: int = setting(100, "Clients whose updates auto reads the number from, where its choice reads points.", least=1)

    @property
    def holdings(self) -> Holdings:
        return Holdings(gathered=self.tried_on(self.groups, self.probe))

    def start(self, init: InitialModels, ctx: Context) -> Round[Groups]:
        k = yield from self._count(init, ctx)
        models = np.stack([init(i) for i in range(min(k, len(ctx.roster)))])
        return Groups(models, np.full(len(ctx.roster), -1, dtype=np.int64))

    def _count(self, init: InitialModels, ctx: Context) -> Round[int]:
        """The number of models: as set, as the oracle knows, as asked for, or read from the updates of a short probe."""
        if self.assign == "oracle":
            return int(truth_of(ctx).max()) + 1
        model = init()[None, :]
        known = yield from self.asked_number(self.groups, model, init, ctx)
        if known is not None:
            return known
        points = yield from self._updates(model, ctx)
        return self.read_number(None, points, ctx)

    def _updates(self, model: Floats, ctx: Context) -> Round[Doubles]:
        """(n, r) clients by the directions of their updates after an epoch."""
        clients = ctx.sample(ctx.roster.available, self.probe, "probe")
        trained = yield from Train(clients, model, ctx.local.but(epochs=1), purpose="probe")
        if not len(trained):
            return np.zeros((0, 0))
        return coordinates(cosines(gram(ctx.layout.comparable(trained.vectors), ctx.layout.comparable(model))))

    def round(self, state: Groups, ctx: Context) -> Round[Groups]:
        cohort = ctx.cohort()
        groups = yield from self.estimated(state, cohort, ctx)  # line 6: every client estimates its group
        cohort = cohort[groups[cohort] >= 0]
        trained = yield from Train(cohort, state.models, ctx.local, start=groups[cohort])  # line 9
        took = groups[trained.clients]
        models = within_groups(state, trained, took, weights_of(trained, self.weighting), len(state.models), ctx)  # line 13, II
        after = state.everybody(ctx)
        before = after[trained.clients]
        after[trained.clients] = took
        ctx.note("switched", int(np.sum((before != took) & (before >= 0))))
        known = after[after >= 0]
        ctx.note("collapsed", min(len(models), len(known)) - len(np.unique(known)))  # a model that nobody takes any more
        return Groups(models, after) if len(trained) else state

    def estimated(self, state: Groups, clients: Ids, ctx: Context) -> Round[Ids]:
        """(roster,) everybody's group, these clients' as they estimate it now: the lowest loss. One that does not answer keeps the model it
        took last. Under a control a client's first group is its group for good."""
        if self.assign != "similar":
            return (yield from self.joined(state, clients, ctx))
        groups = state.everybody(ctx)
        rows = yield from lowest_loss(clients, state.models)
        groups[clients] = np.where(rows >= 0, rows, groups[clients])
        return groups

    def serve(self, state: Groups, clients: Ids, ctx: Context) -> Round[Serving]:
        """Old clients and new ones alike take what fits them now."""
        rows = (yield from self.estimated(state, clients, ctx))[clients]
        return Serving(clients, state.models, np.where(rows >= 0, rows, largest(state.groups, len(state.models))))


@dataclass(frozen=True, kw_only=True)
class HypoCluster(IFCA):
    """IFCA under the name that FeSEM's paper gives it."""
