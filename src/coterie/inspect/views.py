"""Two views of the clients as points, each seen twice: once from each half of their data.

`all` is the half's mean gradient. `beyond labels` is what is left of it when the class means of the whole federation, in the client's own
proportions, are taken away: groups that see other features, or name classes otherwise, stand out there without the noise of who happened to
draw which labels.
"""

from dataclasses import dataclass

import numpy as np

from coterie.arrays import Doubles
from coterie.inspect.probes import Probes

DIRECTIONS = 40  # principal directions kept: what one population is drawn in, too


@dataclass(frozen=True)
class Views:
    """Clients in the principal directions of all they sent, and what the one-population reference needs to know of them."""

    names: tuple[str, ...]
    points: tuple[Doubles, ...]  # one a view: (2 halves, n, p)
    sizes: Doubles  # (2, n) samples
    counts: Doubles  # (2, n, C)
    means: Doubles  # (C, p) the class means of the federation
    noise: tuple[Doubles, ...]  # one a class: (r, p), a factor F of the covariance F'F of a single sample of the class


def views_of(probes: Probes) -> Views:
    """The points of each view. Without labels there is one: `all`."""
    counts, sizes = probes.counts.astype(np.float64), probes.sizes.astype(np.float64)
    whole = probes.halves
    centre = np.average(whole.reshape(-1, whole.shape[2]), axis=0, weights=sizes.ravel())
    means = np.einsum("hncq,hnc->cq", probes.vectors, counts) / np.maximum(counts.sum(axis=(0, 1)), 1)[:, None]
    expected = np.einsum("hnc,cq->hnq", counts / sizes[..., None], means)
    scaled = np.sqrt(sizes)[..., None] * np.stack([whole - centre, whole - expected])
    basis = np.linalg.svd(scaled.reshape(-1, scaled.shape[-1]), full_matrices=False)[2][:DIRECTIONS].T  # (q, p)
    points = ((whole - centre) @ basis, (whole - expected) @ basis)
    named = ("all", "beyond labels") if probes.labels else ("all",)
    means = means - centre
    return Views(named, points[: len(named)], sizes, counts, means @ basis, _noise(probes.vectors @ basis, counts))


def _noise(vectors: Doubles, counts: Doubles) -> tuple[Doubles, ...]:
    """How a single sample of each class scatters, from the differences between halves; a class seldom seen takes that of all classes."""
    differences = []
    for c in range(counts.shape[2]):
        m = counts[:, :, c]
        both = (m > 0).all(axis=0)
        weight = np.sqrt(m[0, both] * m[1, both] / (m[0, both] + m[1, both]))  # then the variance is that of one sample
        differences.append(weight[:, None] * (vectors[0, both, c] - vectors[1, both, c]))
    pooled = np.concatenate(differences)
    if not len(pooled):
        pooled = np.zeros((1, vectors.shape[-1]))
    return tuple(_factor(own if len(own) >= 5 else pooled) for own in differences)


def _factor(rows: Doubles) -> Doubles:
    """F with F'F = the mean of outer products of the rows, and no more rows than it needs."""
    _, values, directions = np.linalg.svd(rows / np.sqrt(len(rows)), full_matrices=False)
    return np.asarray(values[:, None] * directions)
