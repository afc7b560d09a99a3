"""Single numbers for a federation, each with what has to leave the client."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.grouping.similarity import cosines, gram
from coterie.heterogeneity.labels import earth_mover, hellinger, jensen_shannon

Leaves = Literal["sizes", "label counts", "features", "errors", "gradients"]


@dataclass(frozen=True)
class Index:
    """What an index is, and what clients must give away for it."""

    leaves: Leaves
    meaning: str

    @property
    def needs_labels(self) -> bool:
        """Whether labels (their counts) must leave the client."""
        return self.leaves == "label counts"


INDICES: Mapping[str, Index] = {
    "gini": Index("sizes", "how unequal the numbers of samples are: 0 equal, towards 1 one client has all"),
    "hellinger": Index("label counts", "mean pairwise Hellinger distance of label proportions, 0 to 1"),
    "jensen_shannon": Index("label counts", "mean pairwise Jensen-Shannon distance of label proportions, 0 to 1"),
    "earth_mover": Index("label counts", "mean pairwise share of labels that must change class, 0 to 1"),
    "kolmogorov_smirnov": Index("features", "mean pairwise two-sample statistic of the features (FedSim, Figure 1), 0 to 1"),
    "pni": Index("errors", "FedSim's index as printed: depends on how classes are numbered and grows with the number of clients"),
    "pni_normalised": Index("errors", "FedSim's index without either dependence"),
    "gradient_coherence": Index("gradients", "squared length of the mean gradient over the mean squared length: 1 alike, 1/n unrelated"),
    "cosine_spread": Index("gradients", "standard deviation of the cosines between clients' gradients or updates: 0 alike"),
}


def gini(sizes: Ints) -> float:
    """How unequal the numbers of samples are."""
    ordered = np.sort(sizes).astype(np.float64)
    n = len(ordered)
    return float(np.sum((2 * np.arange(1, n + 1) - n - 1) * ordered) / (n * ordered.sum()))


def gradient_coherence(vectors: Floats) -> float:
    """||mean||^2 / mean ||.||^2 of the rows."""
    inner = gram(vectors)
    scale = float(np.trace(inner))
    return float(inner.sum() / (len(inner) * scale)) if scale > 0 else float("nan")


def cosine_spread(vectors: Floats) -> float:
    """The standard deviation of the cosines of different clients."""
    return float(np.std(_pairs(cosines(gram(vectors))))) if len(vectors) > 1 else float("nan")


def from_counts(counts: Ints) -> dict[str, float]:
    """The indices that need label counts (n, C), as means over pairs of clients."""
    distances = {"hellinger": hellinger, "jensen_shannon": jensen_shannon, "earth_mover": earth_mover}
    return {name: float(np.mean(_pairs(of(counts)))) for name, of in distances.items()}


def from_updates(vectors: Floats) -> dict[str, float]:
    """The indices of one probe round: gradients, or updates less the model sent out; one row a client."""
    return {"gradient_coherence": gradient_coherence(vectors), "cosine_spread": cosine_spread(vectors)}


def _pairs(table: Doubles) -> Doubles:
    return np.asarray(table[np.triu_indices(len(table), 1)])
