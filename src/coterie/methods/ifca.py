"""IFCA, also called HypoCluster: every client takes the model that fits it best.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning" (2020), Algorithm 1, option II (model averaging); Mansour et al.,
"Three Approaches for Personalization with Applications to Federated Learning" (2020), HypCluster. A bad start is common and final: several
starts side by side are `ifca+restarts`.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Round
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.grouping.similarity import compute_coordinates, compute_cosines, compute_gram
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.controls import find_largest_group, get_true_groups
from coterie.methods.group_number import GroupNumber, GroupNumberMixin
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups, find_lowest_loss


@dataclass(frozen=True, kw_only=True)
class IFCA(GroupedMethod[Groups], GroupNumberMixin):
    """Clients take the model with the lowest loss, train it, and clients with the same model are averaged.

    Example: ``ct.IFCA(groups=4)``, or the spec ``ifca(groups=4)``.
    """

    groups: GroupNumber = setting(3, "Models.", minimum=1)
    weighting: Weighting = setting("uniform", "How much a client counts: by its samples, or as much as any other.")
    probe: int = setting(100, "Clients whose updates auto reads the number from, where its choice reads points.", minimum=1)

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(gathered=self.count_trial_clients(self.groups, self.probe))

    def start(self, init: InitialModels, ctx: Context) -> Round[Groups]:
        k = yield from self._count(init, ctx)
        models = np.stack([init(i) for i in range(min(k, len(ctx.roster)))])
        return Groups(models, np.full(len(ctx.roster), -1, dtype=np.int64))

    def _count(self, init: InitialModels, ctx: Context) -> Round[int]:
        """The number of models: as set, as the oracle knows, as asked for, or read from the updates of a short probe."""
        if self.assign == "oracle":
            return int(get_true_groups(ctx).max()) + 1
        model = init()[None, :]
        known = yield from self.ask_number(self.groups, model, init, ctx)
        if known is not None:
            return known
        clients = ctx.sample(ctx.roster.available, self.probe, "probe")
        trained = yield from Train(clients, model, ctx.local.replace(epochs=1), purpose="probe")
        if not len(trained):
            return self.read_number(None, np.zeros((0, 0)), ctx)
        inner = compute_gram(ctx.layout.comparable(trained.vectors), ctx.layout.comparable(model))
        return self.read_number(None, compute_coordinates(compute_cosines(inner)), ctx)

    def round(self, state: Groups, ctx: Context) -> Round[Groups]:
        cohort = ctx.cohort()
        groups = yield from self.estimated(state, cohort, ctx)  # line 6: every client estimates its group
        cohort = cohort[groups[cohort] >= 0]
        trained = yield from Train(cohort, state.models, ctx.local, start=groups[cohort])  # line 9
        took = groups[trained.clients]
        models = average_within_groups(
            state, trained, took, compute_weights(trained, self.weighting), len(state.models), ctx
        )  # line 13, II
        after = state.all_groups(ctx)
        before = after[trained.clients]
        after[trained.clients] = took
        ctx.note("switched", int(np.sum((before != took) & (before >= 0))))
        known = after[after >= 0]
        ctx.note("collapsed", min(len(models), len(known)) - len(np.unique(known)))  # a model that no client takes any more
        return Groups(models, after) if len(trained) else state

    def estimated(self, state: Groups, clients: Ids, ctx: Context) -> Round[Ids]:
        """(roster,) the group of every client, these clients' as they estimate it now: the lowest loss. One that does not answer keeps the
        model it took last. Under a control a client's first group is its group for good."""
        if self.assign != "similar":
            return (yield from self.joined(state, clients, ctx))
        groups = state.all_groups(ctx)
        rows = yield from find_lowest_loss(clients, state.models)
        groups[clients] = np.where(rows >= 0, rows, groups[clients])
        return groups

    def serve(self, state: Groups, clients: Ids, ctx: Context) -> Round[Serving]:
        """Old clients and new ones alike take what fits them now."""
        rows = (yield from self.estimated(state, clients, ctx))[clients]
        return Serving(clients, state.models, np.where(rows >= 0, rows, find_largest_group(state.groups, len(state.models))))


@dataclass(frozen=True, kw_only=True)
class HypoCluster(IFCA):
    """IFCA under the name that FeSEM's paper gives it.

    Example: ``ct.HypoCluster(groups=4)``, or the spec ``hypocluster(groups=4)``.
    """
