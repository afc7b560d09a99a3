"""FL+HC: federated averaging, then one hierarchical clustering, then averaging in each cluster.

Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local updates to improve training on non-IID data" (2020),
Algorithm 1; the global model is SimProx's Eq. 6.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Trained
from coterie.core.errors import UserError
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.grouping.clusterers import Linkage, agglomerative
from coterie.grouping.many.points import MANY
from coterie.grouping.many.trees import tree_of_many
from coterie.grouping.principal import points_of_rows
from coterie.grouping.similarity import coordinates, distances, gram
from coterie.methods.averaging import Weighting, weights_of
from coterie.methods.clustered_once import ClusteredOnce, Clusters
from coterie.methods.grouped import within_groups
from coterie.methods.number import ChoosesGroups, GroupNumber


@dataclass(frozen=True, kw_only=True)
class FLHC(ClusteredOnce, ChoosesGroups):
    """FedAvg for `warmup` rounds, agglomerative clustering of everybody's update in the next, FedAvg in each cluster from then on."""

    warmup: int = setting(10, "Rounds of FedAvg before the clustering.", least=0)
    groups: GroupNumber = setting("auto", "Groups; auto: by the threshold where one is given, else by the choice.", least=1)
    threshold: float | None = setting(None, "Cut the tree at this distance.", above=0)
    linkage: Linkage = setting("ward", "How the distance of two clusters is counted.")
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and self.groups != "auto":
            raise UserError("FL+HC cuts its tree at a number of groups or at a threshold: give one of them.")

    def due(self, ctx: Context) -> bool:
        return ctx.round_ > self.warmup

    def labels(self, state: Clusters, trained: Trained, ctx: Context) -> Round[Ids]:
        sent, origin = ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models)
        many, count = len(trained) > MANY, None
        inner = np.zeros((0, 0)) if many else gram(sent, origin)
        points = points_of_rows(sent, origin, ctx) if many else None
        if self.threshold is None:
            count = yield from self.asked_number(self.groups, state.models, lambda i=0: state.models[0], ctx)
            if count is None:
                count = self.read_number(None, coordinates(inner) if points is None else points, ctx)
        if points is not None:
            return tree_of_many(points, ctx.rng("groups"), groups=count, threshold=self.threshold, linkage=self.linkage)
        return agglomerative(distances(inner), groups=count, threshold=self.threshold, linkage=self.linkage)

    def aggregate(self, state: Clusters, trained: Trained, groups: Ids, models: int, ctx: Context) -> Floats:
        return within_groups(state, trained, groups, weights_of(trained, self.weighting), models, ctx)
