"""What methods have in common that find their groups in one round, in which everybody trains, and keep them from then on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.holdings import EVERYBODY_TRAINS, Holdings
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round, done
from coterie.core.serving import NamedModels
from coterie.grouping.clusterers import canonical
from coterie.grouping.controls import controlled
from coterie.methods.grouped import GroupedMethod, Groups, named_models


@dataclass(frozen=True)
class Clusters(Groups):
    """One model until the clustering, then one a group."""

    clustered: bool


@dataclass(frozen=True, kw_only=True)
class ClusteredOnce(GroupedMethod[Clusters], ABC):
    """A shared model for some rounds, one round of clustering, then a model a group."""

    @property
    def holdings(self) -> Holdings:
        return EVERYBODY_TRAINS

    @abstractmethod
    def due(self, ctx: Context) -> bool:
        """Whether groups, where there are none yet, are made in this round."""

    @abstractmethod
    def labels(self, state: Clusters, trained: Trained, ctx: Context) -> Round[Ids]:
        """(n,) the similar group of each client that has trained; may ask."""

    @abstractmethod
    def aggregate(self, state: Clusters, trained: Trained, groups: Ids, models: int, ctx: Context) -> Floats:
        """(models, d) each group's new model from its members' replies; a group without any keeps the one it has."""

    def start(self, init: InitialModels, ctx: Context) -> Round[Clusters]:
        return done(Clusters(init()[None, :], np.full(len(ctx.roster), -1, dtype=np.int64), False))

    def round(self, state: Clusters, ctx: Context) -> Round[Clusters]:
        if not state.clustered and self.due(ctx):
            return (yield from self._cluster(state, ctx))
        cohort, groups = ctx.cohort(), state.everybody(ctx)
        rows = np.zeros(len(ctx.roster), dtype=np.int64)
        if state.clustered:
            groups = rows = yield from self.joined(state, cohort, ctx)
            cohort = cohort[groups[cohort] >= 0]
        trained = yield from Train(cohort, state.models, ctx.local, start=rows[cohort])
        if not len(trained):
            return state
        return Clusters(self.aggregate(state, trained, rows[trained.clients], len(state.models), ctx), groups, state.clustered)

    def _cluster(self, state: Clusters, ctx: Context) -> Round[Clusters]:
        """Everybody trains once from the shared model; each group's first model is made from its members' replies."""
        trained = yield from Train(ctx.roster.available, state.models, ctx.local)
        if not len(trained):
            return state  # nobody answered: the next round tries again
        found = yield from self.labels(state, trained, ctx)
        labels = canonical(controlled(found, trained.clients, self.assign, ctx))
        groups = state.everybody(ctx)
        groups[trained.clients] = labels
        count = int(labels.max()) + 1
        ctx.note("groups_found", count)
        return Clusters(self.aggregate(state, trained, labels, count, ctx), groups, True)

    def central(self, state: Clusters) -> NamedModels:
        return named_models(state.models, mean=True)
