"""SimProx's similarities of many clients, in time that grows with their number: mean cosines from one sum, the rest from landmarks."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coterie.core.arrays import Doubles, Floats
from coterie.grouping.many.points import by_rows, laid_out, landmarks

COMPARED = 1024  # landmarks: a mean over so many is off by 3 % of what it is taken of varies


class Company(NamedTuple):
    """How alike a client is to the others, on average, and how far it moved."""

    cosine: Doubles  # (n,) the mean cosine with the others
    gaussian: Doubles  # (n,) the mean of exp(-distance^2 / 2 sigma^2) over the landmarks other than itself
    sigma: float  # the mean distance of pairs, from those with landmarks
    norms: Doubles  # (n,)
    agreement: float  # the mean cosine with the common direction


def company_of_many(models: Floats, origin: Floats, rng: np.random.Generator, *, updates: bool) -> Company:
    """Eq. 7-11 of clients that were sent `origin`; `updates` compares what they moved by, otherwise cosines are of the models."""
    start = None if not updates else origin
    norms = np.sqrt(by_rows(lambda block: np.einsum("ij,ij->i", *[laid_out(block, origin)] * 2), models))
    total = np.sum([laid_out(models[at : at + 4096], start, unit=True).sum(axis=0) for at in range(0, len(models), 4096)], axis=0)
    cosine = (by_rows(lambda block: laid_out(block, start, unit=True) @ total, models) - 1) / (len(models) - 1)
    common = np.ravel(origin).astype(np.float64) if not updates else _mean(models, origin)
    length = float(np.linalg.norm(common))
    along = by_rows(lambda block: laid_out(block, start, unit=True) @ common, models) / length if length > 0 else np.zeros(len(models))
    chosen = landmarks(len(models), rng, COMPARED)
    some = laid_out(models[chosen], origin)
    sigma = float(_summed(lambda apart: apart, models, origin, some).sum() / (len(some) * (len(models) - 1)))
    near = (
        _summed(lambda apart: np.exp(-(apart**2) / (2 * sigma**2)), models, origin, some) if sigma > 0 else np.full(len(models), len(some))
    )
    own = np.isin(np.arange(len(models)), chosen)
    return Company(cosine, (near - own) / (len(some) - own), sigma, norms, float(along.mean()))


def _mean(models: Floats, origin: Floats) -> Doubles:
    return np.asarray(models.mean(axis=0, dtype=np.float64) - np.ravel(origin))


def _summed(of: Callable[[Doubles], Doubles], models: Floats, origin: Floats, some: Doubles) -> Doubles:
    """(n,) a function of a client's distances from the landmarks, summed over these."""
    squares = np.einsum("ij,ij->i", some, some)

    def sums(block: Floats) -> Doubles:
        rows = laid_out(block, origin)
        apart = np.einsum("ij,ij->i", rows, rows)[:, None] + squares - 2 * rows @ some.T
        return np.asarray(of(np.sqrt(np.maximum(apart, 0.0))).sum(axis=1))

    return by_rows(sums, models)
