"""How well k groups account for what clients have in common with their own other half."""

from dataclasses import dataclass

import numpy as np

from coterie.arrays import Doubles
from coterie.inspect.ward import Ward


@dataclass(frozen=True)
class Structure:
    """The groups of one view at every number of groups from 2 up, found on either half and on all samples."""

    coordinates: Doubles  # (n, r) all samples, shrunken
    halves: Doubles  # (2, n, r)
    tree: Ward  # of all samples
    half_trees: tuple[Ward, Ward]
    common: Doubles  # (most - 1,) the share of the common variance that groups found on one half account for in the other
    within: Doubles  # (most - 1,) the share of the variance that groups found on all samples account for in these


def structure(points: Doubles, sizes: Doubles, most: int) -> Structure:
    """Ward's groups of points (2, n, p), in the directions that both halves share, every client shrunk by its own noise."""
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    points = points - np.einsum("n,hnp->p", weight / weight.sum(), points) / 2
    spread, directions = shared_directions(points, weight)
    scores = points @ directions  # (2, n, r)
    noise = np.mean(weight[:, None] * (scores[0] - scores[1]) ** 2, axis=0)  # (r,) of a single sample
    halves = scores * shrinkage(spread, noise, sizes)
    everything = np.einsum("hnr,hn->nr", scores, sizes) / sizes.sum(axis=0)[:, None] * shrinkage(spread, noise, sizes.sum(axis=0))
    tree, trees = Ward.of(everything, most), [Ward.of(half, most) for half in halves]
    common = [trees[h].explained(halves[h], halves[1 - h]) for h in (0, 1)]
    return Structure(
        coordinates=everything,
        halves=halves,
        tree=tree,
        half_trees=(trees[0], trees[1]),
        common=_share(np.mean(common, axis=0), float(np.sum(halves[0] * halves[1]))),
        within=_share(tree.explained(everything, everything), float(np.sum(everything**2))),
    )


def shared_directions(points: Doubles, weight: Doubles) -> tuple[Doubles, Doubles]:
    """Variances (r,) and directions (p, r) that both halves agree on.

    The covariance across halves has no noise in its mean; noise makes its eigenvalues scatter evenly about zero. So the lowest one tells
    how high noise reaches, and what rises above that is kept; the highest is kept in any case.
    """
    share = weight[:, None] / weight.sum()
    cross = (share * (points[0] - np.sum(share * points[0], axis=0))).T @ points[1]
    values, directions = np.linalg.eigh((cross + cross.T) / 2)  # ascending
    kept = max(int(np.sum(values > max(-values[0], 1e-12 * values[-1]))), 1)
    return np.maximum(values[-kept:], 1e-6 * np.abs(values).max() + 1e-300), directions[:, -kept:]


def shrinkage(spread: Doubles, noise: Doubles, sizes: Doubles) -> Doubles:
    """(..., n, r) how much of a client's score is signal, on average: the best linear prediction."""
    return np.asarray(spread / (spread + noise / sizes[..., None]))


def _share(part: Doubles, whole: float) -> Doubles:
    """Between nothing and all; nothing where the halves have nothing in common."""
    return np.clip(part / whole, 0.0, 1.0) if whole > 0 else np.zeros_like(part)
