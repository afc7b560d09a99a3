"""The test of structure, step 1: gradients of two halves of each client's data, and two views of the clients as points.

Clients send mean gradients at one random model, class by class where they may. No sample moves, and no client trains. A mean gradient
is the average of its class means, so asking class by class gives the gradient of a half as well, and how many samples of each class it
holds. Where label counts must not leave the client, a half is asked as a whole and takes the place of a single class.

The view `all` is the half's mean gradient. `beyond labels` is what is left of it when the class means of the whole federation, in the
client's own proportions, are removed: groups with other features, or other class names, stand out there without the noise of labels.
Directions are scaled so that single samples scatter alike in all of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg

from coterie.core.arrays import Doubles, Ids, Ints

WIDE = 2048  # longer gradients are projected to SKETCH numbers: distances stay, to about 1/sqrt(SKETCH)
SKETCH = 512
MIN_SAMPLES = 2  # samples in each half, below which a client is left out


@dataclass(frozen=True)
class Probes:
    """Mean gradients (2 halves, n clients, C classes, q) and the samples they are means of; zero where there are none."""

    clients: Ids  # (n,)
    vectors: Doubles
    counts: Ints  # (2, n, C)
    labels: bool  # whether the classes are classes, or one stands for everything
    left_out: Ids  # clients that did not answer, or have fewer than FEWEST samples in a half

    def take(self, rows: Ints) -> "Probes":
        """The same with only these rows of clients."""
        return replace(self, clients=self.clients[rows], vectors=self.vectors[:, rows], counts=self.counts[:, rows])

    @property
    def sizes(self) -> Ints:
        """(2, n) samples in each half."""
        return np.asarray(self.counts.sum(axis=2))

    @property
    def halves(self) -> Doubles:
        """(2, n, q) the mean gradient of each half."""
        return np.asarray(np.einsum("hncq,hnc->hnq", self.vectors, self.counts) / self.sizes[..., None])


def has_enough_clients(probes: Probes) -> bool:
    """Whether there is anything to compare."""
    return len(probes.clients) >= 2


DIRECTIONS = 40  # principal directions kept: what one population is drawn in, too
ROWS_A_DIRECTION = 2  # that show how noise lies, at least: with fewer, directions are not scaled at all
FEWEST_ROWS = 5  # clients that show how a class scatters
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
    shrink_factors: tuple[Doubles, ...]  # one a view: (n,) what clients far out were multiplied by, see `structure_points`


def make_views(probes: Probes) -> Views:
    """The points of each view. Without labels there is one: `all`."""
    counts, sizes = probes.counts.astype(np.float64), probes.sizes.astype(np.float64)
    whole = probes.halves
    centre = np.average(whole.reshape(-1, whole.shape[2]), axis=0, weights=sizes.ravel())
    means = np.einsum("hncq,hnc->cq", probes.vectors, counts) / np.maximum(counts.sum(axis=(0, 1)), 1)[:, None]
    expected = np.einsum("hnc,cq->hnq", counts / sizes[..., None], means)
    scaled = np.sqrt(sizes)[..., None] * np.stack([expected - centre, whole - expected])
    basis = compute_principal_directions(scaled.reshape(-1, scaled.shape[-1]), DIRECTIONS)
    scatter = compute_scatter(np.moveaxis(probes.vectors @ basis, 2, 0), counts)
    points = ((whole - centre) @ basis, (whole - expected) @ basis)
    even = compute_whitening(scatter, counts.sum(axis=(0, 1)))
    named = ("all", "beyond labels") if probes.labels else ("all",)
    noise = _scale_noise(tuple(map(_compute_factor, scatter)), points[1], counts)
    return Views(
        names=named,
        points=tuple(view @ even for view in points[: len(named)]),
        sizes=sizes,
        counts=counts,
        means=(means - centre) @ basis,
        noise=noise,
        shrink_factors=(np.ones(sizes.shape[1]),) * len(named),
    )


def compute_principal_directions(rows: Doubles, most: int) -> Doubles:
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


def compute_scatter(vectors: Iterable[Doubles], counts: Doubles) -> list[Doubles]:
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


def compute_whitening(scatter: list[Doubles], totals: Doubles) -> Doubles:
    """(p, p) what makes single samples scatter nearly alike in every direction.

    It fits the noise it is made of: directions in which halves happen to agree are made loud. So variances are drawn towards their mean,
    the more the fewer rows there are; and it is made again in every draw of the reference, where the same happens.
    """
    shares = totals / totals.sum()
    covariance = sum((share / len(rows) * (rows.T @ rows) for share, rows in zip(shares, scatter, strict=True)), np.zeros(()))
    values, directions = np.linalg.eigh(covariance)
    if values[-1] <= 0:  # no noise at all
        return np.eye(len(values))
    ridge = min(1.0, ROWS_A_DIRECTION * len(values) / sum(map(len, scatter)))
    return np.asarray(directions / np.sqrt((1 - ridge) * np.maximum(values, 0) + ridge * values.mean()) @ directions.T)


def _scale_noise(noise: tuple[Doubles, ...], points: Doubles, counts: Doubles) -> tuple[Doubles, ...]:
    """The noise made as loud as halves differ: principal directions were chosen where these very points are loudest, noise included."""
    sizes = counts.sum(axis=2)
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    power = np.array([np.sum(factor**2) for factor in noise])
    expected = np.sum(weight * np.sum((counts @ power) / sizes**2, axis=0))
    found = np.sum(weight[:, None] * (points[0] - points[1]) ** 2)
    scale = np.sqrt(found / expected) if expected > 0 else 1.0
    return tuple(scale * factor for factor in noise)


def _compute_factor(rows: Doubles) -> Doubles:
    """F with F'F = the mean of outer products of the rows, and no more rows than it needs."""
    _, values, directions = np.linalg.svd(rows / np.sqrt(len(rows)), full_matrices=False)
    return np.asarray(values[:, None] * directions)
