"""Do clients differ more than chance? And beyond their label proportions?

Both tests ask whether a client's two halves resemble each other more than halves of different clients do. Deviations from the mean are
scaled by the square root of the number of samples, so that under the null hypothesis all have the same covariance, large clients or small,
and which half B belongs to which half A is a matter of chance: the permutations say what chance gives.
"""

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.arrays import Doubles, Ints
from coterie.grouping.choice.structure.probes import Probes

PERMUTATIONS = 999


@dataclass(frozen=True)
class Difference:
    """How much of what sets clients apart is seen again in their other half."""

    p: float  # permutation test, one-sided
    agreement: float  # correlation of the halves' deviations: 0 is chance, 1 is no noise at all
    clients: int


def differ(probes: Probes, rng: np.random.Generator) -> Difference:
    """Whether a client's halves have something in common that other clients do not have."""
    return _tested([_products(probes.halves, probes.sizes)], len(probes.clients), rng)


def beyond_labels(probes: Probes, rng: np.random.Generator) -> Difference:
    """The same within each class: whether samples of one class differ from client to client.

    Under the null hypothesis clients differ in their label proportions only, so that within a class their samples are alike.
    """
    blocks = []
    for c in range(probes.counts.shape[2]):
        present = (probes.counts[:, :, c] > 0).all(axis=0)
        if present.sum() >= 2:
            blocks.append(_products(probes.vectors[:, present, c], probes.counts[:, present, c]))
    return _tested(blocks, len(probes.clients), rng)


def any_of(whole: Difference, *others: float) -> Difference:
    """Clients differ if they do as a whole or by any other test (given by its p): within a class, where the chance of drawing labels does
    not drown the rest; in label counts, where few clients can tell.

    So many tests, so many times the smallest p (Bonferroni); the agreement stays that of the whole.
    """
    told = [p for p in (whole.p, *others) if not np.isnan(p)]
    return replace(whole, p=min(1.0, len(told) * min(told)))


@dataclass(frozen=True)
class _Block:
    """Clients that can be exchanged for each other."""

    products: Doubles  # (n, n) of every half A with every half B
    scale: float  # what the trace would be if the halves agreed perfectly


def _products(vectors: Doubles, sizes: Ints) -> _Block:
    first, second = (
        np.sqrt(m)[:, None] * (v - np.average(v, axis=0, weights=m)) for v, m in zip(vectors, sizes.astype(np.float64), strict=True)
    )
    return _Block(first @ second.T, float(np.sqrt(np.sum(first**2) * np.sum(second**2))))


def _tested(blocks: list[_Block], clients: int, rng: np.random.Generator) -> Difference:
    if not blocks:
        return Difference(float("nan"), float("nan"), clients)
    own = sum(float(np.trace(block.products)) for block in blocks)
    drawn = np.zeros(PERMUTATIONS)
    for block in blocks:
        n = len(block.products)
        drawn += [block.products[np.arange(n), rng.permutation(n)].sum() for _ in range(PERMUTATIONS)]
    scale = sum(block.scale for block in blocks)
    p = (1 + np.sum(drawn >= own * (1 - 1e-12))) / (PERMUTATIONS + 1)
    return Difference(float(p), own / scale if scale > 0 else 0.0, clients)
