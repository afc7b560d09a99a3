"""What methods have in common that find their clusters in one round, in which everybody trains, and keep them from then on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round, done
from coterie.core.serving import Panel, Serving
from coterie.core.states import Models
from coterie.grouping.clusterers import canonical
from coterie.grouping.controls import Assign, controlled
from coterie.methods.joining import grown, lowest_loss, panel_of, served, under_control


@dataclass(frozen=True)
class Clusters(Models):
    """One model until the clustering, then one a cluster."""

    groups: Ids  # (n,) -1 until a client is in a cluster
    clustered: bool


@dataclass(frozen=True, kw_only=True)
class ClusteredOnce(Method[Clusters], ABC):
    """A shared model for some rounds, one round of clustering, then a model a cluster."""

    assign: Assign = "similar"

    @abstractmethod
    def due(self, ctx: Context) -> bool:
        """Whether clusters, where there are none yet, are made in this round."""

    @abstractmethod
    def labels(self, state: Clusters, trained: Trained, ctx: Context) -> Ids:
        """(n,) the similar cluster of each client that has trained."""

    @abstractmethod
    def aggregate(self, state: Clusters, trained: Trained, groups: Ids, models: int, ctx: Context) -> Floats:
        """(models, d) each group's new model from its members' replies; a group without any keeps the one it has."""

    def start(self, init: InitialModels, ctx: Context) -> Round[Clusters]:
        return done(Clusters(init()[None, :], np.full(len(ctx.roster), -1, dtype=np.int64), False))

    def round(self, state: Clusters, ctx: Context) -> Round[Clusters]:
        if not state.clustered and self.due(ctx):
            return (yield from self._cluster(state, ctx))
        cohort = ctx.cohort()
        groups = grown(state.groups, len(ctx.roster)).copy()
        if state.clustered:
            new = cohort[groups[cohort] < 0]  # missed the clustering, or came later
            found = yield from lowest_loss(new, state.models)
            groups[new] = under_control(found, new, groups, len(state.models), self.assign, ctx)
            cohort = cohort[groups[cohort] >= 0]
        rows = groups[cohort] if state.clustered else np.zeros_like(cohort)
        trained = yield from Train(cohort, state.models, ctx.local, start=rows)
        if not len(trained):
            return state
        rows = rows[np.searchsorted(cohort, trained.clients)]
        return Clusters(self.aggregate(state, trained, rows, len(state.models), ctx), groups, state.clustered)

    def _cluster(self, state: Clusters, ctx: Context) -> Round[Clusters]:
        """Everybody trains once from the shared model; each cluster's first model is made from its members' replies."""
        trained = yield from Train(ctx.roster.available, state.models, ctx.local)
        if not len(trained):
            return state  # nobody answered: the next round tries again
        labels = canonical(controlled(self.labels(state, trained, ctx), trained.clients, self.assign, ctx))
        groups = grown(state.groups, len(ctx.roster)).copy()
        groups[trained.clients] = labels
        count = int(labels.max()) + 1
        ctx.record("groups_found", float(count))
        return Clusters(self.aggregate(state, trained, labels, count, ctx), groups, True)

    def serve(self, state: Clusters, clients: Ids, ctx: Context) -> Round[Serving]:
        return (yield from served(state.groups, state.models, clients, self.assign, ctx))

    def panel(self, state: Clusters) -> Panel:
        return panel_of(state.models, mean=True)

    def members(self, state: Clusters) -> Ids:
        return state.groups
