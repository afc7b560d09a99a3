"""Two views of the clients as points, each seen twice: once from each half of their data.

`all` is the half's mean gradient. `beyond labels` is what is left of it when the class means of the whole federation, in the client's own
proportions, are taken away: groups that see other features, or name classes otherwise, stand out there without the noise of who happened to
draw which labels.

Directions are scaled so that single samples scatter alike in all of them: what sets clients apart counts by how well it can be seen, not by
how loud it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from coterie.core.arrays import Doubles
from coterie.grouping.choice.structure.probes import Probes

DIRECTIONS = 40  # principal directions kept: what one population is drawn in, too
ROWS_A_DIRECTION = 2  # that tell how noise lies, at least: with fewer, directions are not scaled at all
FEWEST_ROWS = 5  # clients that tell how a class scatters
SAME = 1e-10  # of the highest variance, below which nothing varies: gradients are single precision


@dataclass(frozen=True)
class Views:
    """Clients in the principal directions of all they sent, and what the one-population reference needs to know of them."""

    names: tuple[str, ...]
    points: tuple[Doubles, ...]  # one a view: (2 halves, n, p), scaled
    sizes: Doubles  # (2, n) samples
    counts: Doubles  # (2, n, C)
    means: Doubles  # (C, p) the class means of the federation, not scaled
    noise: tuple[Doubles, ...]  # one a class: (r, p), a factor F of the covariance F'F of a single sample of the class, not scaled
    reins: tuple[Doubles, ...]  # one a view: (n,) what clients far out were multiplied by, see `placing.reins`


def views_of(probes: Probes) -> Views:
    """The points of each view. Without labels there is one: `all`."""
    counts, sizes = probes.counts.astype(np.float64), probes.sizes.astype(np.float64)
    whole = probes.halves
    centre = np.average(whole.reshape(-1, whole.shape[2]), axis=0, weights=sizes.ravel())
    means = np.einsum("hncq,hnc->cq", probes.vectors, counts) / np.maximum(counts.sum(axis=(0, 1)), 1)[:, None]
    expected = np.einsum("hnc,cq->hnq", counts / sizes[..., None], means)
    scaled = np.sqrt(sizes)[..., None] * np.stack([expected - centre, whole - expected])
    basis = principal(scaled.reshape(-1, scaled.shape[-1]), DIRECTIONS)
    scatter = scatter_of(np.moveaxis(probes.vectors @ basis, 2, 0), counts)
    points = ((whole - centre) @ basis, (whole - expected) @ basis)
    even = evening(scatter, counts.sum(axis=(0, 1)))
    named = ("all", "beyond labels") if probes.labels else ("all",)
    noise = _as_loud(tuple(map(_factor, scatter)), points[1], counts)
    return Views(
        names=named,
        points=tuple(view @ even for view in points[: len(named)]),
        sizes=sizes,
        counts=counts,
        means=(means - centre) @ basis,
        noise=noise,
        reins=(np.ones(sizes.shape[1]),) * len(named),
    )


def principal(rows: Doubles, most: int) -> Doubles:
    """(q, p) the principal directions of rows (m, q), the first first: at most so many, and none in which nothing varies.

    From the smaller of the two matrices of inner products: only the highest variances are wanted, and these lose nothing by being squared.
    """
    wide = len(rows) < rows.shape[1]
    products = rows @ rows.T if wide else rows.T @ rows
    size = len(products)
    values, vectors = linalg.eigh(products, subset_by_index=[max(size - most, 0), size - 1])
    kept = values > SAME * max(values[-1], 1e-300)
    kept[-1] = True  # one in any case
    values, vectors = values[kept][::-1], vectors[:, kept][:, ::-1]
    return np.asarray(rows.T @ vectors / np.sqrt(np.maximum(values, 1e-300)) if wide else vectors)


def scatter_of(vectors: Iterable[Doubles], counts: Doubles) -> list[Doubles]:
    """Of every class, (m, p) rows that scatter as its single samples do, from the differences between halves.

    `vectors` has (2, n, p) means of halves for each class. A class seldom seen takes the rows of all classes.
    """
    differences = []
    for c, own in enumerate(vectors):
        m = counts[:, :, c]
        both = (m > 0).all(axis=0)
        weight = np.sqrt(m[0, both] * m[1, both] / (m[0, both] + m[1, both]))  # then the variance is that of one sample
        differences.append(weight[:, None] * (own[0, both] - own[1, both]))
    pooled = np.concatenate(differences)
    if not len(pooled):
        pooled = np.zeros((1, pooled.shape[1]))
    return [own if len(own) >= FEWEST_ROWS else pooled for own in differences]


def evening(scatter: list[Doubles], totals: Doubles) -> Doubles:
    """(p, p) what makes single samples scatter nearly alike in every direction.

    It fits the noise it is made of: directions in which halves happen to agree are made loud. So variances are drawn towards their mean,
    the more the fewer rows there are; and it is made anew in every draw of the reference, where the same happens.
    """
    shares = totals / totals.sum()
    covariance = sum((share / len(rows) * (rows.T @ rows) for share, rows in zip(shares, scatter, strict=True)), np.zeros(()))
    values, directions = np.linalg.eigh(covariance)
    if values[-1] <= 0:  # no noise at all
        return np.eye(len(values))
    ridge = min(1.0, ROWS_A_DIRECTION * len(values) / sum(map(len, scatter)))
    return np.asarray(directions / np.sqrt((1 - ridge) * np.maximum(values, 0) + ridge * values.mean()) @ directions.T)


def _as_loud(noise: tuple[Doubles, ...], points: Doubles, counts: Doubles) -> tuple[Doubles, ...]:
    """The noise made as loud as halves differ: principal directions were chosen where these very points are loudest, noise included."""
    sizes = counts.sum(axis=2)
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    power = np.array([np.sum(factor**2) for factor in noise])
    expected = np.sum(weight * np.sum((counts @ power) / sizes**2, axis=0))
    found = np.sum(weight[:, None] * (points[0] - points[1]) ** 2)
    scale = np.sqrt(found / expected) if expected > 0 else 1.0
    return tuple(scale * factor for factor in noise)


def _factor(rows: Doubles) -> Doubles:
    """F with F'F = the mean of outer products of the rows, and no more rows than it needs."""
    _, values, directions = np.linalg.svd(rows / np.sqrt(len(rows)), full_matrices=False)
    return np.asarray(values[:, None] * directions)
