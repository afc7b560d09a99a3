"""How different the clients are, before any training: indices, and for each what must leave the client to compute it.

Label distances need label counts. The Kolmogorov-Smirnov similarity (FedSim, Figure 1) needs features, or sketches of them; the paper does
not state which numbers are compared: here the feature values, one feature at a time, averaged over features, or any one-dimensional numbers
such as losses at a common model. The privacy-preserving non-IID index PNI (FedSim, Section 3.3) needs errors only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.spatial.distance import pdist, squareform

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.grouping.similarity import compute_cosines, compute_gram


def compute_proportions(counts: Ints) -> Doubles:
    """(n, C) label proportions; a client without samples counts for every class alike."""
    padded = counts + (counts.sum(axis=1, keepdims=True) == 0)
    return np.asarray(padded / padded.sum(axis=1, keepdims=True))


def compute_hellinger(counts: Ints) -> Doubles:
    """(n, n) Hellinger distances: 0 for equal proportions, 1 for classes that never meet."""
    return np.asarray(squareform(pdist(np.sqrt(compute_proportions(counts)))) / np.sqrt(2))


def compute_jensen_shannon(counts: Ints) -> Doubles:
    """(n, n) Jensen-Shannon distances (the root of the divergence, in bits): from 0 to 1."""
    return np.asarray(np.nan_to_num(squareform(pdist(compute_proportions(counts), "jensenshannon")) / np.sqrt(np.log(2))))


def compute_earth_mover(counts: Ints) -> Doubles:
    """(n, n) how much of the labels has to change class to turn one client's proportions into another's: from 0 to 1.

    Class names have no order, so moving from any class to any other costs one, and the earth mover's distance is the total variation.
    """
    return np.asarray(squareform(pdist(compute_proportions(counts), "cityblock")) / 2)


def compute_kolmogorov_smirnov(clients: Sequence[Array]) -> Doubles:
    """(n, n) the two-sample statistic of every pair: the largest gap between their distribution functions, the mean over features.

    `clients[i]` is (m_i,) or (m_i, features). Similarity, as the figure shows it, is one minus this.
    """
    columns = [np.asarray(values, dtype=np.float64).reshape(len(values), -1) for values in clients]
    total = np.zeros((len(clients), len(clients)))
    for feature in range(columns[0].shape[1]):
        total += _compute_largest_gaps([own[:, feature] for own in columns])
    return total / columns[0].shape[1]


def _compute_largest_gaps(values: Sequence[Doubles]) -> Doubles:
    """The largest gap of every pair. SciPy's `ks_2samp` takes one pair at a time; all distribution functions on one grid do them all."""
    grid = np.unique(np.concatenate(values))
    steps = np.stack([np.searchsorted(np.sort(own), grid, side="right") / len(own) for own in values])  # (n, grid)
    return np.stack([np.abs(steps - row).max(axis=1) for row in steps])


@dataclass(frozen=True)
class PNI:
    """The index of a federation, as printed and made comparable; nan where fewer than two clients answered."""

    literal: float
    normalised: float
    clients: int  # how many answered


def compute_pni(errors: Doubles) -> float:
    """Eq. 17-18 as printed: the mean over clients of the L2 norm of (RMSE_i - RMSE_j), j != i; `errors` is (n,).

    With RMSE over class *numbers* (Eq. 15-16) it depends on how the classes are numbered, and it grows like sqrt(n - 1).
    """
    if len(errors) < 2:
        return float("nan")
    return float(np.sqrt(np.square(errors[:, None] - errors[None, :]).sum(axis=1)).mean())


def compute_normalised_pni(errors: Doubles) -> float:
    """The index without either dependence: from errors of probabilities (n, models), over sqrt(n - 1), averaged over the models."""
    if len(errors) < 2:
        return float("nan")
    return float(np.mean([compute_pni(column) for column in np.atleast_2d(errors.T)]) / np.sqrt(len(errors) - 1))


Leaves = Literal["sizes", "label counts", "features", "errors", "gradients"]


@dataclass(frozen=True)
class Index:
    """What an index is, and what clients must give away for it."""

    leaves: Leaves
    meaning: str


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


def compute_gini(sizes: Ints) -> float:
    """How unequal the numbers of samples are."""
    ordered = np.sort(sizes).astype(np.float64)
    n = len(ordered)
    return float(np.sum((2 * np.arange(1, n + 1) - n - 1) * ordered) / (n * ordered.sum()))


def compute_label_indices(counts: Ints) -> dict[str, float]:
    """The indices that need label counts (n, C), as means over pairs of clients."""
    distances = {"hellinger": compute_hellinger, "jensen_shannon": compute_jensen_shannon, "earth_mover": compute_earth_mover}
    return {name: float(np.mean(_take_pairs(of(counts)))) for name, of in distances.items()}


def compute_update_indices(vectors: Floats) -> dict[str, float]:
    """The indices of one probe round: gradients, or updates less the model sent out; one row a client."""
    inner = compute_gram(vectors)
    scale = float(np.trace(inner))
    coherence = float(inner.sum() / (len(inner) * scale)) if scale > 0 else float("nan")  # ||mean||^2 / mean ||.||^2 of the rows
    spread = float(np.std(_take_pairs(compute_cosines(inner)))) if len(vectors) > 1 else float("nan")
    return {"gradient_coherence": coherence, "cosine_spread": spread}


def _take_pairs(table: Doubles) -> Doubles:
    return np.asarray(table[np.triu_indices(len(table), 1)])
