"""Robust averages of weighted vectors, which a few arbitrary rows cannot move far.

Each gives (d,) the average and (n,) how much of it each row made up. Weights are above zero and sum to one.

- trimmed mean: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning" (2018), Definition 2; with weights, the share
  `cut` of the *weight* goes at each end of a coordinate, part of a row's where the cut falls within it
- median: half of the weight is on either side, coordinate by coordinate (their Definition 1)
- Multi-Krum: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries" (2017); its scores count rows alike, and the
  rows that it keeps count by their weights
- geometric median: Weiszfeld's iteration, as in Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning" (2022)
- clipping: rows further from the coordinate-wise median than `bound` times the weighted median of these distances are drawn in to it;
  Karimireddy, He and Jaggi's centred clipping (2021) with a centre that needs no earlier model
"""

import numpy as np
from scipy.spatial.distance import cdist, pdist, squareform

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.rng import make_key, shuffle
from coterie.core.vectors import map_row_chunks
from coterie.grouping.landmarks import MANY
from coterie.grouping.similarity import compute_norms

BLOCK = 1 << 14  # columns at a time
LANDMARKS = 512  # of many rows: landmarks that Krum's scores are taken of
MAX_SORTED = 1 << 24  # numbers of many rows that are sorted at a time
# Weiszfeld's iteration ends after so many, or when it moves by less than this share of the median distance
MAX_STEPS, TOLERANCE = 300, 1e-9


def compute_trimmed_mean(vectors: Floats, weights: Doubles, cut: float) -> tuple[Doubles, Doubles]:
    """The mean of each coordinate without the share `cut` of the weight at each end."""
    n, d = vectors.shape
    mean, counted, columns = np.empty(d), np.zeros(n), _count_columns(n)
    for begin in range(0, d, columns):
        block = vectors[:, begin : begin + columns].astype(np.float64)
        order = np.argsort(block, axis=0, kind="stable")
        upto = np.cumsum(weights[order], axis=0)  # (n, b) weight up to and with each row
        kept = np.clip(np.minimum(upto, 1.0 - cut) - np.maximum(upto - weights[order], cut), 0.0, None)
        kept /= kept.sum(axis=0)
        mean[begin : begin + columns] = (kept * np.take_along_axis(block, order, axis=0)).sum(axis=0)
        counted += np.bincount(order.ravel(), weights=kept.ravel(), minlength=n)
    return mean, counted / d


def compute_median(vectors: Floats | Doubles, weights: Doubles) -> tuple[Doubles, Doubles]:
    """The weighted median of each coordinate: where the weight on both sides is equal, the middle of the two values."""
    n, d = vectors.shape
    middle, counted, together = np.empty(d), np.zeros(n), _count_columns(n)
    for begin in range(0, d, together):
        block = vectors[:, begin : begin + together].astype(np.float64)
        order = np.argsort(block, axis=0, kind="stable")
        upto, columns = np.cumsum(weights[order], axis=0), np.arange(block.shape[1])
        low = (upto < 0.5 - 1e-12).sum(axis=0)
        high = np.minimum((upto <= 0.5 + 1e-12).sum(axis=0), n - 1)
        rows = order[low, columns], order[high, columns]
        middle[begin : begin + together] = (block[rows[0], columns] + block[rows[1], columns]) / 2
        for picked in rows:
            counted += np.bincount(picked, minlength=n) / 2
    return middle, counted / d


def compute_krum(vectors: Floats, weights: Doubles, malicious: int, sites: Ints | None = None) -> tuple[Doubles, Doubles]:
    """The weighted mean of the n - f rows with the lowest scores: the sum of squared distances to the n - f - 2 nearest others.

    With sites, each votes once: the mean of its rows is scored, and its rows are kept or left out together.
    """
    if sites is not None:
        return _compute_krum_of_sites(vectors, weights, malicious, sites)
    n = len(vectors)
    if n > MANY:
        scores = _compute_krum_scores_of_many(vectors, malicious)
    else:
        apart = squareform(pdist(vectors.astype(np.float64), "sqeuclidean"))
        np.fill_diagonal(apart, np.inf)
        scores = np.sort(apart, axis=1)[:, : min(max(n - malicious - 2, 1), n - 1)].sum(axis=1)
    kept = np.zeros(n)
    chosen = np.argsort(scores, kind="stable")[: n - malicious]
    kept[chosen] = weights[chosen] / weights[chosen].sum()
    return _compute_average(vectors, kept), kept


def _compute_krum_of_sites(vectors: Floats, weights: Doubles, malicious: int, sites: Ints) -> tuple[Doubles, Doubles]:
    _, own = np.unique(sites, return_inverse=True)
    shares = np.asarray(np.bincount(own, weights=weights), dtype=np.float64)
    means = np.stack([_compute_average(vectors[own == site], weights[own == site] / shares[site]) for site in range(len(shares))])
    _, kept = compute_krum(means.astype(np.float32), shares, malicious)
    rows = weights * (kept / shares)[own]
    return _compute_average(vectors, rows), rows


def _compute_krum_scores_of_many(vectors: Floats, malicious: int) -> Doubles:
    """The same of the nearest of landmarks, as large a share of these: without a table of pairs."""
    some = vectors[np.sort(shuffle(make_key("krum"), len(vectors))[:LANDMARKS])]
    middle, _ = compute_median(some, np.full(len(some), 1 / len(some)))  # distances from there, so that products lose no digits
    others = some - middle
    near, squares = max(round(len(some) * (1 - malicious / len(vectors))), 1), np.einsum("ij,ij->i", others, others)

    def scores(block: Floats) -> Doubles:
        rows = block - middle
        apart = np.einsum("ij,ij->i", rows, rows)[:, None] + squares - 2 * rows @ others.T
        return np.asarray(np.partition(apart, near - 1, axis=1)[:, :near].sum(axis=1))

    return map_row_chunks(scores, vectors, width=len(some))


def compute_geometric_median(vectors: Floats, weights: Doubles) -> tuple[Doubles, Doubles]:
    """The point whose weighted distances to the rows sum to the least; a row counts by its weight over its distance to it."""
    middle, _ = compute_median(vectors, weights)  # not the mean, which a far row may have drawn anywhere
    apart = _compute_distances(vectors, middle)
    spread = float(compute_median(apart[:, None], weights)[0][0]) or float(apart.max())
    share = weights
    for _ in range(MAX_STEPS if spread else 0):
        share = weights / np.maximum(_compute_distances(vectors, middle), 1e-9 * spread)  # at a row itself, it takes nearly all
        share = share / share.sum()
        before, middle = middle, _compute_average(vectors, share)
        if np.linalg.norm(middle - before) <= TOLERANCE * spread:
            break
    return middle, share


def compute_clipped_mean(vectors: Floats, weights: Doubles, bound: float) -> tuple[Doubles, Doubles]:
    """The mean with far rows drawn in; the shares sum to less than one by what was cut off."""
    centre, _ = compute_median(vectors, weights)
    apart = _compute_distances(vectors, centre)
    typical, _ = compute_median(apart[:, None], weights)
    limit = bound * float(typical[0])
    scale = np.where(apart > limit, np.divide(limit, apart, out=np.zeros_like(apart), where=apart > 0), 1.0)
    shares = weights * scale
    return centre + _compute_average(vectors - centre, shares), shares


def _count_columns(n: int) -> int:
    return BLOCK if n <= MANY else max(8, MAX_SORTED // n)


def _compute_average(vectors: Floats | Doubles, weights: Doubles) -> Doubles:
    if len(vectors) > MANY:  # a piece at a time: in float64 they would be three times what they are
        pieces = range(0, len(vectors), MANY)
        return np.asarray(np.sum([weights[at : at + MANY] @ vectors[at : at + MANY].astype(np.float64) for at in pieces], axis=0))
    return np.asarray(weights @ vectors.astype(np.float64))


def _compute_distances(vectors: Floats, point: Doubles) -> Doubles:
    """(n,) from each row to the point: by differences, so that what is far away costs the near ones no digits."""
    if len(vectors) > MANY:
        return compute_norms(vectors, point)
    return np.asarray(cdist(vectors.astype(np.float64), point[None, :])[:, 0])
