"""How well k groups account for what clients have in common with their own other half."""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles
from coterie.grouping.choice.ward import Ward

# Directions with much variance are toned down to this power of it, so that the last groups to part are heard beside the first. Chosen on
# other seeds than docs/inspect.md reports.
EVENED = 0.4
PAIRINGS = 39


@dataclass(frozen=True)
class Structure:
    """The groups of one view at every number of groups from 2 up, found on either half and on all samples."""

    coordinates: Doubles  # (n, r) all samples, shrunken
    halves: Doubles  # (2, n, r)
    tree: Ward  # of all samples
    half_trees: tuple[Ward, Ward]
    common: Doubles  # (most - 1,) the share of the common variance that groups found on one half account for in the other
    within: Doubles  # (most - 1,) the share of the variance that groups found on all samples account for in these


def structure(points: Doubles, sizes: Doubles, most: int, kept: int) -> Structure:
    """Ward's groups of points (2, n, p), in the `kept` directions that both halves share most, every client shrunk by its own noise."""
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    points = points - np.einsum("n,hnp->p", weight / weight.sum(), points) / 2
    spread, directions = shared_directions(points, weight, kept)
    scores = points @ directions  # (2, n, r)
    noise = np.mean(weight[:, None] * (scores[0] - scores[1]) ** 2, axis=0)  # (r,) of a single sample
    everything = np.einsum("hnr,hn->nr", scores, sizes) / sizes.sum(axis=0)[:, None] * shrinkage(spread, noise, sizes.sum(axis=0))
    evened = np.maximum(np.mean(everything**2, axis=0), 1e-300) ** (-EVENED / 2)
    halves, everything = scores * shrinkage(spread, noise, sizes) * evened, everything * evened
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


def shared_directions(points: Doubles, weight: Doubles, kept: int) -> tuple[Doubles, Doubles]:
    """Variances (r,) and directions (p, r) that both halves agree on most, the last one most of all.

    The covariance across halves has no noise in its mean.
    """
    values, directions = np.linalg.eigh(common_covariance(points, weight))  # ascending
    return np.maximum(values[-kept:], 1e-6 * np.abs(values).max() + 1e-300), directions[:, -kept:]


def noise_reach(points: Doubles, sizes: Doubles, rng: np.random.Generator) -> float:
    """How high noise alone raises the highest eigenvalue of the covariance across halves, on average.

    The difference of a client's halves is noise only. Paired with the difference of another client it shows what noise makes of nothing.
    """
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    noise = (points[0] - points[1]) / np.sqrt(2)
    scale = np.sqrt(weight)[:, None]
    drawn = []
    for _ in range(PAIRINGS):
        order, signs = rng.permutation(len(weight)), rng.choice([-1.0, 1.0], size=(len(weight), 1))
        other = scale[order] * noise[order] / scale  # as noisy as that of a client of this size
        drawn.append(np.linalg.eigvalsh(common_covariance(np.stack([signs * noise, other]), weight))[-1])
    return float(np.mean(drawn))


def how_many(points: Doubles, sizes: Doubles, reach: float) -> int:
    """The number of directions that rise above the reach of noise, and one in any case."""
    values = np.linalg.eigvalsh(common_covariance(points, sizes[0] * sizes[1] / sizes.sum(axis=0)))
    return max(int(np.sum(values > max(reach, 1e-12 * values[-1]))), 1)


def common_covariance(points: Doubles, weight: Doubles) -> Doubles:
    """(p, p) the covariance of one half with the other, made symmetric."""
    share = weight[:, None] / weight.sum()
    cross = (share * (points[0] - np.sum(share * points[0], axis=0))).T @ points[1]
    return np.asarray((cross + cross.T) / 2)


def agreement(points: Doubles, sizes: Doubles) -> float:
    """The correlation of the halves over all clients and directions: 0 is chance, 1 no noise at all."""
    weight = sizes[0] * sizes[1] / sizes.sum(axis=0)
    own = [np.trace(common_covariance(np.stack([half, half]), weight)) for half in points]
    return float(np.trace(common_covariance(points, weight)) / max(np.sqrt(own[0] * own[1]), 1e-300))


def shrinkage(spread: Doubles, noise: Doubles, sizes: Doubles) -> Doubles:
    """(..., n, r) how much of a client's score is signal, on average: the best linear prediction."""
    return np.asarray(spread / (spread + noise / sizes[..., None]))


def _share(part: Doubles, whole: float) -> Doubles:
    """Between nothing and all; nothing where the halves have nothing in common."""
    return np.clip(part / whole, 0.0, 1.0) if whole > 0 else np.zeros_like(part)
