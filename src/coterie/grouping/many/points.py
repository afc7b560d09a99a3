"""Many clients as points of a few numbers: in the principal directions of a keyed sample of them, the landmarks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.threads import cores, in_order, one_thread

MANY = 4096  # clients up to which all pairs are compared
LANDMARKS, FEWEST = 2048, 256  # clients whose directions stand for everybody's; fewer of models so long that they would fill the memory
HELD = 1 << 27  # numbers of landmarks held in float64: one GiB
LENGTH = 32  # directions at most
PIECE = 1 << 21  # numbers in float64 at a time
EPS = float(np.finfo(np.float64).eps)


def landmarks(n: int, rng: np.random.Generator, most: int = LANDMARKS) -> Ints:
    """Some of n clients, ascending; all of them where they are no more than that."""
    return np.sort(rng.permutation(n)[:most]) if n > most else np.arange(n)


def affordable(columns: int) -> int:
    """How many landmarks of so many numbers each fit what is held."""
    return max(FEWEST, min(LANDMARKS, HELD // max(columns, 1)))


def short_points(
    vectors: Floats,
    origin: Floats | None,
    rng: np.random.Generator,
    *,
    variance: float | None = None,
    centred: bool = True,
    unit: bool = False,
) -> Doubles:
    """(n, r) the rows (or their differences from `origin`, scaled to length one where `unit`) in at most LENGTH principal directions."""
    return short_points_of(lambda rows: laid_out(rows, origin, unit), vectors, rng, variance=variance, centred=centred)


def short_points_of(
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
    some = landmarks(len(vectors), rng, affordable(vectors.shape[1]))
    sample = made(vectors[some])
    floor = float(np.max(np.einsum("ij,ij->i", sample, sample), initial=0.0))
    middle: Doubles = sample.mean(axis=0) if centred else np.zeros(sample.shape[1])
    directions = _directions(sample - middle, variance, floor)
    return by_rows(lambda block: (made(block) - middle) @ directions, vectors)


def laid_out(rows: Floats | Doubles, origin: Floats | Doubles | None, unit: bool = False) -> Doubles:
    """Rows in float64, as they are compared."""
    made = rows.astype(np.float64)
    if origin is not None:
        made -= np.ravel(origin)
    if unit:
        norms = np.sqrt(np.einsum("ij,ij->i", made, made))
        made /= np.where(norms > 0, norms, 1.0)[:, None]
    return made


def by_rows(work: Callable[[Any], Array], vectors: Floats | Doubles, width: int = 1) -> Array:
    """What `work` makes of the rows, a piece of them at a time; pieces are of one shape, so bits depend on no number of cores.

    `width` is how many numbers it makes of a row on its way, where these are more than the row has.
    """
    together = max(1, PIECE // max(vectors.shape[1], width))
    with one_thread():
        pieces = in_order(lambda at: work(vectors[at : at + together]), range(0, len(vectors), together), cores())
        return np.concatenate(list(pieces))


def _directions(rows: Doubles, variance: float | None, floor: float) -> Doubles:
    """(d, r) the principal directions of the rows, from the smaller of their two matrices of products."""
    wide = rows.shape[1] > len(rows)
    with one_thread():
        values, vectors = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = int(np.sum(values > 4 * len(rows) * EPS * max(floor, float(np.max(values, initial=0.0)))))
    if variance is not None and kept:
        kept = min(kept, int(np.searchsorted(np.cumsum(values[:kept]) / values[:kept].sum(), variance - 1e-12)) + 1)
    values, vectors = values[: min(kept, LENGTH)], vectors[:, : min(kept, LENGTH)]
    return np.asarray((rows.T @ vectors) / np.sqrt(values) if wide else vectors)
