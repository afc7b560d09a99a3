"""A grouping method that is not in the catalogue: clients take the model with the lowest loss once, and keep it."""

from dataclasses import dataclass

import numpy as np

from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups


@dataclass(frozen=True, kw_only=True)
class ChosenOnce(GroupedMethod[Groups]):
    """A model for each group; a client joins by the lowest loss when it first takes part."""

    groups: int = 2

    def start(self, init: InitialModels, ctx: Context) -> Round[Groups]:
        yield from ()
        return Groups(np.stack([init(i) for i in range(self.groups)]), np.full(len(ctx.roster), -1, dtype=np.int64))

    def round(self, state: Groups, ctx: Context) -> Round[Groups]:
        cohort = ctx.cohort()
        groups = yield from self.joined(state, cohort, ctx)
        cohort = cohort[groups[cohort] >= 0]
        trained = yield from Train(cohort, state.models, ctx.local, start=groups[cohort])
        weights = trained.sizes.astype(np.float64)
        return Groups(average_within_groups(state, trained, groups[trained.clients], weights, len(state.models), ctx), groups)
