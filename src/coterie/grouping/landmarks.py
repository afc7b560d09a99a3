"""Grouping of more clients than a matrix of all pairs can hold.

Above `MANY` clients nothing takes the square of their number: principal directions are those of a keyed sample of clients, the landmarks,
and k-means, spectral clustering, trees, SimProx's similarities, CFL's bipartitions and NeighbourProx's neighbours start from there. Up to
`MANY` clients the exact forms are used, and nothing here.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coterie._util.threads import use_one_thread
from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.vectors import map_row_chunks, prepare_rows

MANY = 4096  # clients up to which all pairs are compared
LANDMARKS, MIN_LANDMARKS = (
    2048,
    256,
)  # clients whose directions stand for those of all; fewer of models so long that they would fill the memory
HELD = 1 << 27  # numbers of landmarks held in float64: one GiB
MAX_DIRECTIONS = 32  # directions at most
EPS = float(np.finfo(np.float64).eps)


def sample_landmarks(n: int, rng: np.random.Generator, most: int = LANDMARKS) -> Ints:
    """Some of n clients, ascending; all of them where they are no more than that."""
    return np.sort(rng.permutation(n)[:most]) if n > most else np.arange(n)


def count_affordable_landmarks(columns: int) -> int:
    """How many landmarks of so many numbers each fit what is held."""
    return max(MIN_LANDMARKS, min(LANDMARKS, HELD // max(columns, 1)))


def compute_short_points(
    vectors: Floats,
    origin: Floats | None,
    rng: np.random.Generator,
    *,
    variance: float | None = None,
    centred: bool = True,
    unit: bool = False,
) -> Doubles:
    """(n, r) the rows (or their differences from `origin`, scaled to length one where `unit`) in at most LENGTH principal directions."""
    return compute_short_points_of(lambda rows: prepare_rows(rows, origin, unit), vectors, rng, variance=variance, centred=centred)


def compute_short_points_of(
    made: Callable[[Floats], Doubles],
    vectors: Floats,
    rng: np.random.Generator,
    *,
    variance: float | None = None,
    centred: bool = True,
) -> Doubles:
    """(n, r) the same of what `made` makes of the rows, which is made a piece of them at a time and never held of all.

    Centred, this is PCA as `similarity.coordinates` does it, with the landmarks' mean and directions. `variance` keeps the fewest that hold
    that share of the landmarks'. What lies in further directions is lost: for groups that are apart it is noise.
    """
    some = sample_landmarks(len(vectors), rng, count_affordable_landmarks(vectors.shape[1]))
    sample = made(vectors[some])
    floor = float(np.max(np.einsum("ij,ij->i", sample, sample), initial=0.0))
    middle: Doubles = sample.mean(axis=0) if centred else np.zeros(sample.shape[1])
    directions = _compute_directions(sample - middle, variance, floor)
    return map_row_chunks(lambda block: (made(block) - middle) @ directions, vectors)


def _compute_directions(rows: Doubles, variance: float | None, floor: float) -> Doubles:
    """(d, r) the principal directions of the rows, from the smaller of their two matrices of products."""
    wide = rows.shape[1] > len(rows)
    with use_one_thread():
        values, vectors = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = int(np.sum(values > 4 * len(rows) * EPS * max(floor, float(np.max(values, initial=0.0)))))
    if variance is not None and kept:
        kept = min(kept, int(np.searchsorted(np.cumsum(values[:kept]) / values[:kept].sum(), variance - 1e-12)) + 1)
    values, vectors = values[: min(kept, MAX_DIRECTIONS)], vectors[:, : min(kept, MAX_DIRECTIONS)]
    return np.asarray((rows.T @ vectors) / np.sqrt(values) if wide else vectors)


COMPARED = 1024  # landmarks: a mean over so many is off by 3 % of what it is taken of varies


class MeanSimilarity(NamedTuple):
    """How alike a client is to the others, on average, and how far it moved."""

    cosine: Doubles  # (n,) the mean cosine with the others
    gaussian: Doubles  # (n,) the mean of exp(-distance^2 / 2 sigma^2) over the landmarks other than itself
    sigma: float  # the mean distance of pairs, from those with landmarks
    norms: Doubles  # (n,)
    agreement: float  # the mean cosine with the common direction


def compute_mean_similarity(
    models: Floats, origin: Floats, rng: np.random.Generator, *, updates: bool, most: int = COMPARED
) -> MeanSimilarity:
    """Eq. 7-11 of clients that were sent `origin`; `updates` compares what they moved by, otherwise cosines are of the models.

    `most` is the number of landmarks; with as many as clients all is exact.
    """
    start = None if not updates else origin
    norms = np.sqrt(map_row_chunks(lambda block: np.einsum("ij,ij->i", *[prepare_rows(block, origin)] * 2), models))
    total = np.sum([prepare_rows(models[at : at + 4096], start, unit=True).sum(axis=0) for at in range(0, len(models), 4096)], axis=0)
    cosine = map_row_chunks(lambda block: _sum_cosines(prepare_rows(block, start, unit=True), total), models) / (len(models) - 1)
    common = models.mean(axis=0, dtype=np.float64) - np.ravel(origin) if updates else np.ravel(origin).astype(np.float64)
    length = float(np.linalg.norm(common))
    along = (
        map_row_chunks(lambda block: prepare_rows(block, start, unit=True) @ common, models) / length
        if length > 0
        else np.zeros(len(models))
    )
    chosen = sample_landmarks(len(models), rng, most)
    some = prepare_rows(models[chosen], origin)
    sigma = float(_sum_over_landmarks(lambda apart: apart, models, origin, some).sum() / (len(some) * (len(models) - 1)))
    near = (
        _sum_over_landmarks(lambda apart: np.exp(-(apart**2) / (2 * sigma**2)), models, origin, some)
        if sigma > 0
        else np.full(len(models), len(some))
    )
    own = np.isin(np.arange(len(models)), chosen)
    return MeanSimilarity(cosine, (near - own) / (len(some) - own), sigma, norms, float(along.mean()))


def _sum_cosines(rows: Doubles, total: Doubles) -> Doubles:
    """(n,) of rows of length one, the cosines with all other rows, from the sum of all; a zero row has none, with itself neither."""
    return np.asarray(rows @ total - np.einsum("ij,ij->i", rows, rows))


def _sum_over_landmarks(of: Callable[[Doubles], Doubles], models: Floats, origin: Floats, some: Doubles) -> Doubles:
    """(n,) a function of a client's distances from the landmarks, summed over these."""
    squares = np.einsum("ij,ij->i", some, some)

    def sums(block: Floats) -> Doubles:
        rows = prepare_rows(block, origin)
        apart = np.einsum("ij,ij->i", rows, rows)[:, None] + squares - 2 * rows @ some.T
        return np.asarray(of(np.sqrt(np.maximum(apart, 0.0))).sum(axis=1))

    return map_row_chunks(sums, models)
