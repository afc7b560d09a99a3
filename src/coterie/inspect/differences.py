"""Do clients differ more than chance, beyond their label proportions, and in these proportions?"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import random_table

from coterie.core.arrays import Doubles, Ids, Ints
from coterie.grouping.structure_views import Probes

PERMUTATIONS = 999


@dataclass(frozen=True)
class Difference:
    """How much of the difference between clients is found again in their other half."""

    p: float  # permutation test, one-sided
    agreement: float  # correlation of the halves' deviations: 0 is chance, 1 is no noise at all
    clients: int


def compare_halves(probes: Probes, rng: np.random.Generator) -> Difference:
    """Whether a client's halves have something in common that other clients do not have."""
    return _permutation_test([_make_block(probes.halves, probes.sizes)], len(probes.clients), rng)


def compare_halves_by_class(probes: Probes, rng: np.random.Generator) -> Difference:
    """The same within each class: whether samples of one class differ from client to client.

    Under the null hypothesis clients differ in their label proportions only, so that within a class their samples are alike.
    """
    blocks = []
    for c in range(probes.counts.shape[2]):
        present = (probes.counts[:, :, c] > 0).all(axis=0)
        if present.sum() >= 2:
            blocks.append(_make_block(probes.vectors[:, present, c], probes.counts[:, present, c]))
    return _permutation_test(blocks, len(probes.clients), rng)


def combine_tests(whole: Difference, *others: float) -> Difference:
    """Clients differ if they do as a whole or by any other test (given by its p): within a class, where the chance of drawing labels does
    not hide the rest; in label counts, where few clients suffice.

    So many tests, so many times the smallest p (Bonferroni); the agreement stays that of the whole.
    """
    known = [p for p in (whole.p, *others) if not np.isnan(p)]
    return replace(whole, p=min(1.0, len(known) * min(known)))


@dataclass(frozen=True)
class _Block:
    """Clients that can be exchanged for each other."""

    products: Doubles  # (n, n) of every half A with every half B
    scale: float  # what the trace would be if the halves agreed perfectly


def _make_block(vectors: Doubles, sizes: Ints) -> _Block:
    first, second = (
        np.sqrt(m)[:, None] * (v - np.average(v, axis=0, weights=m)) for v, m in zip(vectors, sizes.astype(np.float64), strict=True)
    )
    return _Block(first @ second.T, float(np.sqrt(np.sum(first**2) * np.sum(second**2))))


def _permutation_test(blocks: list[_Block], clients: int, rng: np.random.Generator) -> Difference:
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


PERMUTED_TABLES = 999
BATCH_CELLS = 2_000_000  # numbers of drawn tables held in memory


@dataclass(frozen=True)
class LabelSpread:
    """How label proportions differ from client to client, and the class and the two clients that show it most plainly."""

    p: float  # of counts this far from equal proportions, had all clients drawn from the same labels
    association: float  # Cramer's V: 0 where all have the same proportions, 1 where a client's class is certain
    label: int  # the class whose share differs most
    low: tuple[float, int]  # the smallest share of it, and the row of the client that has it
    high: tuple[float, int]


def compute_label_spread(counts: Ids, rng: np.random.Generator) -> LabelSpread | None:
    """From label counts (n, C) of clients that have samples; None for a single class or a single client.

    Pearson's statistic against tables with the same client sizes and class totals, drawn at random: exact however few the samples are.
    """
    sizes, present = counts.sum(axis=1), counts.sum(axis=0) > 0
    table = counts[:, present]
    totals = table.sum(axis=0)
    if min(table.shape) < 2:
        return None
    own = _pearson_statistic(table[None], sizes, totals)[0]
    drawn = _simulate_statistics(sizes, totals, rng)
    shares = table / sizes[:, None]
    widest = int(np.argmax(np.ptp(shares, axis=0)))
    low, high = shares[:, widest].argmin(), shares[:, widest].argmax()
    return LabelSpread(
        p=float((1 + np.sum(drawn >= own * (1 - 1e-12))) / (PERMUTED_TABLES + 1)),
        association=float(np.sqrt(own / sizes.sum() / (min(table.shape) - 1))),
        label=int(np.flatnonzero(present)[widest]),
        low=(float(shares[low, widest]), int(low)),
        high=(float(shares[high, widest]), int(high)),
    )


def _simulate_statistics(sizes: Ids, totals: Ids, rng: np.random.Generator) -> Doubles:
    """(PERMUTED_TABLES,) Pearson's statistic of tables with these margins."""
    tables = random_table(sizes, totals, seed=rng)
    step = max(BATCH_CELLS // (len(sizes) * len(totals)), 1)
    parts = [_pearson_statistic(tables.rvs(min(step, PERMUTED_TABLES - at)), sizes, totals) for at in range(0, PERMUTED_TABLES, step)]
    return np.concatenate(parts)


def _pearson_statistic(tables: Ids, sizes: Ids, totals: Ids) -> Doubles:
    expected = np.outer(sizes, totals) / sizes.sum()
    return np.asarray(np.sum((tables - expected) ** 2 / expected, axis=(1, 2)))
