"""FL+HC: federated averaging, then one hierarchical clustering, then averaging in each cluster.

Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local updates to improve training on non-IID data" (2020),
Algorithm 1; the global model is SimProx's Eq. 6.
"""

from dataclasses import dataclass

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Floats, Ids
from coterie.core.asks import Trained
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.grouping.clustering import Linkage, agglomerative_clustering, agglomerative_clustering_large
from coterie.grouping.landmarks import MANY
from coterie.grouping.similarity import compute_coordinates, compute_distances, compute_gram
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.group_number import GroupNumber, GroupNumberMixin
from coterie.methods.grouped import OneShotClustering, OneShotState, average_within_groups, compute_client_points


@dataclass(frozen=True, kw_only=True)
class FLHC(OneShotClustering, GroupNumberMixin):
    """FedAvg for `warmup` rounds, agglomerative clustering of all clients' updates in the next, FedAvg in each cluster from then on.

    Example: ``ct.FLHC(warmup=5, groups=4)``, or the spec ``flhc(warmup=5,groups=4)``.
    """

    warmup: int = setting(10, "Rounds of FedAvg before the clustering.", minimum=0)
    groups: GroupNumber = setting("auto", "Groups; auto: by the threshold where one is given, else by the choice.", minimum=1)
    threshold: float | None = setting(None, "Cut the tree at this distance.", above=0)
    linkage: Linkage = setting("ward", "How the distance of two clusters is counted.")
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and self.groups != "auto":
            raise UserError("FL+HC cuts its tree at a number of groups or at a threshold: give one of them.")

    def due(self, ctx: Context) -> bool:
        return ctx.round_ > self.warmup

    def labels(self, state: OneShotState, trained: Trained, ctx: Context) -> Round[Ids]:
        sent, origin = self.cut(trained.vectors, ctx), self.cut(state.models, ctx)
        many, count = len(trained) > MANY, None
        inner = np.zeros((0, 0)) if many else compute_gram(sent, origin)
        points = compute_client_points(sent, origin, ctx) if many else None
        if self.threshold is None:
            count = yield from self.ask_number(self.groups, state.models, lambda i=0: state.models[0], ctx)
            if count is None:
                count = self.read_number(None, compute_coordinates(inner) if points is None else points, ctx)
        if points is not None:
            return agglomerative_clustering_large(points, ctx.rng("groups"), groups=count, threshold=self.threshold, linkage=self.linkage)
        return agglomerative_clustering(compute_distances(inner), groups=count, threshold=self.threshold, linkage=self.linkage)

    def cut(self, vectors: Floats, ctx: Context) -> Floats:
        """What of models is compared: all trained weights."""
        return ctx.layout.comparable(vectors)

    def aggregate(self, state: OneShotState, trained: Trained, groups: Ids, models: int, ctx: Context) -> Floats:
        return average_within_groups(state, trained, groups, compute_weights(trained, self.weighting), models, ctx)
