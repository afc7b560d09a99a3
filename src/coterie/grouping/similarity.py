"""Similarity of clients, from one Gram matrix of what they sent; clients as points; random projections.

Cosines, distances, principal coordinates and ternary cosines all follow from the n x n inner products, so the d-dimensional rows are read
once. Give `origin` = the model sent out: updates are a thousandth of a model's norm, and a Gram matrix of raw weights loses them.
"""

import numpy as np

from coterie._util.threads import use_one_thread
from coterie.core.arrays import Doubles, Floats
from coterie.core.rng import make_generator
from coterie.core.vectors import BLOCK, Sketch, as_vectors, map_column_blocks, prepare_rows, project

EPS = float(np.finfo(np.float64).eps)


def compute_gram(vectors: Floats, origin: Floats | None = None) -> Doubles:
    """(n, n) inner products of the rows, or of their differences from `origin`; products and sums in float64, linear in d."""
    return as_vectors(vectors).inner_products(None, origin)


def compute_dot_products(vectors: Floats, directions: Floats | Doubles, origin: Floats | None = None) -> Doubles:
    """(n,) the inner product of each row (or of its difference from `origin`) with one direction, or (n, m) with each of m, in float64."""
    return as_vectors(vectors).inner_products(np.asarray(directions, dtype=np.float64), origin)


def compute_norms(vectors: Floats, origin: Floats | Doubles | None = None) -> Doubles:
    """(n,) the Euclidean norm of each row (or of its difference from `origin`), in float64 and linear in n."""
    return as_vectors(vectors).norms(origin)


def estimate_gram(vectors: Floats, origin: Floats | None, sketch: Sketch) -> Doubles:
    """The same inner products from sketches of the rows, each as long as its row: n^2 products of `sketch.size` numbers, not of d."""
    rows, norms = project(np.asarray(vectors), sketch, origin), compute_norms(vectors, origin)
    lengths = np.linalg.norm(rows, axis=1)
    rows *= np.divide(norms, lengths, out=np.zeros_like(norms), where=lengths > 0)[:, None]
    with use_one_thread():
        return np.asarray(rows @ rows.T)


def shift_gram(gram: Doubles, dots: Doubles, square: float) -> Doubles:
    """The Gram matrix of w + u_i from that of the u_i, their products with w, and ||w||^2: rank-one terms, no pass over the rows."""
    return np.asarray(gram + dots[:, None] + dots[None, :] + square)


def compute_cosines(gram: Doubles) -> Doubles:
    """(n, n) cosines. A zero vector has cosine 0 with others and 1 with itself."""
    norms = np.sqrt(np.diag(gram))
    scale = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    result = np.clip(gram * scale[:, None] * scale[None, :], -1.0, 1.0)
    np.fill_diagonal(result, 1.0)
    return np.asarray(result)


def compute_distances(gram: Doubles) -> Doubles:
    """(n, n) Euclidean distances. What is below the rounding of the Gram matrix is zero, so equal clients are exactly equal."""
    squares = np.diag(gram)
    sums = squares[:, None] + squares[None, :]
    result = sums - 2.0 * gram
    result[result <= 64 * EPS * sums] = 0.0
    return np.sqrt((result + result.T) / 2)


def compute_coordinates(gram: Doubles, variance: float | None = None, centred: bool = True) -> Doubles:
    """(n, r) principal coordinates: the rows turned into r numbers each, from the eigenvectors of the Gram matrix.

    Centred, this is PCA. `variance` keeps the fewest directions that hold that share of it; None keeps all, and distances between the
    coordinates then equal those between the rows, so k-means on either is the same. Identical rows have no direction at all (r = 0).
    """
    values, directions = _compute_eigen(_centre_gram(gram) if centred else gram, floor=float(np.max(np.diag(gram), initial=0.0)))
    if variance is not None and len(values):
        share = np.cumsum(values) / values.sum()
        kept = int(np.searchsorted(share, variance - 1e-12)) + 1
        values, directions = values[:kept], directions[:, :kept]
    return np.asarray(directions * np.sqrt(values))


def compute_gaussian(distances: Doubles) -> Doubles:
    """(n, n) exp(-d^2 / 2 sigma^2), sigma the mean pairwise distance (SimProx, Eq. 7-8); all ones where every distance is zero."""
    sigma = compute_mean_distance(distances)
    return np.exp(-(distances**2) / (2 * sigma**2)) if sigma > 0 else np.ones_like(distances)


def compute_mean_distance(distances: Doubles) -> float:
    """The mean over pairs of different clients (SimProx, Eq. 7); 0 for a single one."""
    n = len(distances)
    return float(distances.sum() / (n * (n - 1))) if n > 1 else 0.0


def combine_similarities(cosine: Doubles, gaussian: Doubles, share: float) -> Doubles:
    """(n, n) share * cosine + (1 - share) * gaussian (SimProx, Eq. 10)."""
    return np.asarray(share * cosine + (1.0 - share) * gaussian)


def compute_ternary_cosines(updates: Floats, directions: int, origin: Floats | None = None) -> Doubles:
    """(n, min(directions, rank)) dissimilarity (1 - cos(update_i, v_k)) / 2 to the main singular directions (FedGroup, Eq. 7-8).

    v_k are the left singular vectors of the (d x n) update matrix, uncentred. With G = U L U', <update_i, v_k> = sqrt(L_k) U_ik, so the
    directions themselves are never formed. A zero update is at 1/2 from all of them. The sign of v_k is free, and set.
    """
    inner = compute_gram(updates, origin)
    norms = np.sqrt(np.diag(inner))[:, None]
    products = compute_coordinates(inner, centred=False)[:, :directions]
    cosine = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
    return np.asarray((1.0 - np.clip(cosine, -1.0, 1.0)) / 2)


def _centre_gram(gram: Doubles) -> Doubles:
    means = gram.mean(axis=0)
    return np.asarray(gram - means[:, None] - means[None, :] + means.mean())


def _compute_eigen(gram: Doubles, floor: float) -> tuple[Doubles, Doubles]:
    """Positive eigenvalues, largest first, and their vectors, each with its largest entry positive.

    `floor` is the scale of the numbers before centring: what centring leaves of equal rows is rounding, not a direction.
    """
    with use_one_thread():
        values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > 4 * len(gram) * EPS * max(floor, float(np.max(values, initial=0.0)))
    values, vectors = values[kept], vectors[:, kept]
    signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(len(values))]) if len(values) else np.ones(0)
    return values, vectors * signs


PAIRS = 2000  # clients up to which all pairs are multiplied, however short the rows: as it has ever been


def compute_principal_points(vectors: Floats, origin: Floats | None = None, variance: float | None = None) -> Doubles:
    """`compute_coordinates` of the rows' Gram matrix, to rounding; where many rows are short, from their columns: the rank is at most d."""
    n, d = vectors.shape
    if n <= max(PAIRS, d):
        return compute_coordinates(compute_gram(vectors, origin), variance)
    rows = prepare_rows(vectors, origin)
    floor = float(np.einsum("ij,ij->i", rows, rows).max())
    rows -= rows.mean(axis=0)
    with use_one_thread():
        values, directions = np.linalg.eigh(rows.T @ rows)
        values, directions = values[::-1], directions[:, ::-1]
        kept = int(np.sum(values > 4 * n * EPS * max(floor, float(values[0]))))
        if variance is not None and kept:
            kept = int(np.searchsorted(np.cumsum(values[:kept]) / values[:kept].sum(), variance - 1e-12)) + 1
        found = rows @ directions[:, :kept]
    signs = np.sign(found[np.abs(found).argmax(axis=0), np.arange(kept)])
    return np.asarray(found * signs)


HELD = 1 << 26  # numbers of a projection that are kept from one use to the next: half a GiB


class RandomProjection:
    """A projection from `width` numbers to `size`, by the generator's keys.

    Drawing it costs more than applying it, so it is drawn once and kept for further rows: as much of it as HELD allows, the rest is drawn
    again from the same keys. A row's projection does not depend on what is kept.
    """

    def __init__(self, width: int, size: int, rng: np.random.Generator, held: int = HELD) -> None:
        self.size, self.held = size, held
        self._keys = rng.integers(2**63, size=-(-width // BLOCK))  # one for each block, since blocks may be at work side by side
        self._drawn: dict[int, Doubles] = {}

    def __call__(self, vectors: Floats, origin: Floats | None = None) -> Doubles:
        """(n, size) the rows, or their differences from `origin`, projected."""
        total = np.zeros((len(vectors), self.size))
        for product in map_column_blocks(lambda block, begin: np.asarray(block @ self._matrix(begin, block.shape[1])), vectors, origin):
            total += product
        return np.asarray(total / np.sqrt(self.size))

    def _matrix(self, begin: int, width: int) -> Doubles:
        """(width, size) the part for a block of columns."""
        if begin in self._drawn:
            return self._drawn[begin]
        drawn = make_generator(int(self._keys[begin // BLOCK])).standard_normal((width, self.size))
        if (begin + width) * self.size <= self.held:
            self._drawn[begin] = drawn
        return drawn


def project_randomly(vectors: Floats, size: int, rng: np.random.Generator, origin: Floats | None = None) -> Doubles:
    """(n, size) a Gaussian random projection of the rows: distances survive to about 1/sqrt(size). Equal keys project alike."""
    return RandomProjection(vectors.shape[1], size, rng, held=0)(vectors, origin)


def project_on_simplex(points: Doubles) -> Doubles:
    """(m, n) the nearest point to each row with numbers of at least zero that sum to one; a row that is such a point stays as it is."""
    falling = -np.sort(-points, axis=1)
    above = np.cumsum(falling, axis=1) - 1
    count = np.sum(falling * np.arange(1, points.shape[1] + 1) > above, axis=1, keepdims=True)
    shift = np.take_along_axis(above, count - 1, axis=1) / count
    return np.asarray(np.maximum(points - np.where(np.abs(shift) < 1e-12, 0.0, shift), 0.0))
