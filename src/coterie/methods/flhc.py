"""FL+HC: federated averaging, then one hierarchical clustering, then averaging in each cluster.

Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local updates to improve training on non-IID data" (2020),
Algorithm 1; the global model is 002's Eq. 6.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Trained
from coterie.core.errors import UserError
from coterie.core.method import Context
from coterie.core.mixing import Mixing
from coterie.grouping.clusterers import How, Linkage, agglomerative, choose
from coterie.grouping.similarity import coordinates, distances, gram
from coterie.methods.clustered_once import ClusteredOnce, Clusters
from coterie.methods.fedavg import Weighting


@dataclass(frozen=True, kw_only=True)
class FLHC(ClusteredOnce):
    """FedAvg for `warmup` rounds, agglomerative clustering of everybody's update in the next, FedAvg in each cluster from then on."""

    warmup: int = 10
    groups: int | Literal["auto"] = "auto"  # "auto": by the threshold where one is given, else by `choice`
    threshold: float | None = None  # cut the tree at this distance
    linkage: Linkage = "ward"
    weighting: Weighting = "samples"
    choice: How = "silhouette"  # how groups="auto" chooses without a threshold
    most: int = 10  # and up to how many

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup < 0:
            raise UserError(f"FL+HC cannot use warmup={self.warmup!r}: give 0 or more rounds.")
        if self.groups != "auto" and self.groups < 1:
            raise UserError(f"FL+HC cannot make groups={self.groups!r}: give 1 or more.")
        if self.threshold is not None and not self.threshold > 0:
            raise UserError(f"FL+HC cannot use threshold={self.threshold!r}: give a distance above 0.")
        if self.threshold is not None and self.groups != "auto":
            raise UserError("FL+HC cuts its tree at a number of groups or at a threshold: give one of them.")

    def due(self, ctx: Context) -> bool:
        return ctx.round_ > self.warmup

    def labels(self, state: Clusters, trained: Trained, ctx: Context) -> Ids:
        inner = gram(ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models))
        count = None if self.groups == "auto" else self.groups
        if count is None and self.threshold is None:
            choice = choose(coordinates(inner), ctx.rng("count"), self.most, self.choice)
            count = choice.k
            ctx.record("choice", np.array(choice.curve))
        return agglomerative(distances(inner), groups=count, threshold=self.threshold, linkage=self.linkage)

    def aggregate(self, state: Clusters, trained: Trained, groups: Ids, models: int, ctx: Context) -> Floats:
        weights = trained.sizes if self.weighting == "samples" else np.ones(len(trained))
        return ctx.mix(Mixing.within(trained.clients, groups, weights, len(state.models), models), trained, state.models)
