"""FedClust: one hierarchical clustering of the weights of clients' last layer, then averaging in each cluster.

Islam et al., "FedClust: Tackling Data Heterogeneity in Federated Learning through Weight-Driven Client Clustering" (2024). All clients
train once from the common start; clusters are cut from the tree of the distances between their last layers. It is FL+HC without a warm-up,
which looks at one layer.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Floats
from coterie.core.method import Context
from coterie.core.settings import setting
from coterie.grouping.clustering import Linkage
from coterie.methods.flhc import FLHC


@dataclass(frozen=True, kw_only=True)
class FedClust(FLHC):
    """Clusters of all clients by their last layer after one local training; then FedAvg in each cluster.

    Example: ``ct.FedClust(groups=4)``, or the spec ``fedclust(groups=4)``.
    """

    warmup: int = setting(0, "Rounds of FedAvg before the clustering.", minimum=0)
    linkage: Linkage = setting("average", "How the distance of two clusters is counted.")

    def cut(self, vectors: Floats, ctx: Context) -> Floats:
        """The last dense layer's columns."""
        if not ctx.layout.head:
            return super().cut(vectors, ctx)
        return vectors[:, np.concatenate([np.arange(s.begin, s.end) for s in ctx.layout.head])]
