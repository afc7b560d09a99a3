"""Do clients hold their classes in different proportions? A question for label counts alone, which even four clients can answer."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import random_table

from coterie.core.arrays import Doubles, Ids

DRAWS = 999
AT_ONCE = 2_000_000  # numbers of drawn tables held in memory


@dataclass(frozen=True)
class LabelSpread:
    """How label proportions differ from client to client, and the class and the two clients that show it most plainly."""

    p: float  # of counts this far from equal proportions, had all clients drawn from the same labels
    association: float  # Cramer's V: 0 where all have the same proportions, 1 where a client's class is certain
    label: int  # the class whose share differs most
    low: tuple[float, int]  # the smallest share of it, and the row of the client that has it
    high: tuple[float, int]


def label_spread(counts: Ids, rng: np.random.Generator) -> LabelSpread | None:
    """From label counts (n, C) of clients that have samples; nothing to tell of a single class or a single client.

    Pearson's statistic against tables with the same client sizes and class totals, drawn at random: exact however few the samples are.
    """
    sizes, present = counts.sum(axis=1), counts.sum(axis=0) > 0
    table = counts[:, present]
    totals = table.sum(axis=0)
    if min(table.shape) < 2:
        return None
    own = _pearson(table[None], sizes, totals)[0]
    drawn = _drawn(sizes, totals, rng)
    shares = table / sizes[:, None]
    widest = int(np.argmax(np.ptp(shares, axis=0)))
    low, high = shares[:, widest].argmin(), shares[:, widest].argmax()
    return LabelSpread(
        p=float((1 + np.sum(drawn >= own * (1 - 1e-12))) / (DRAWS + 1)),
        association=float(np.sqrt(own / sizes.sum() / (min(table.shape) - 1))),
        label=int(np.flatnonzero(present)[widest]),
        low=(float(shares[low, widest]), int(low)),
        high=(float(shares[high, widest]), int(high)),
    )


def _drawn(sizes: Ids, totals: Ids, rng: np.random.Generator) -> Doubles:
    """(DRAWS,) Pearson's statistic of tables with these margins."""
    tables = random_table(sizes, totals, seed=rng)
    step = max(AT_ONCE // (len(sizes) * len(totals)), 1)
    parts = [_pearson(tables.rvs(min(step, DRAWS - at)), sizes, totals) for at in range(0, DRAWS, step)]
    return np.concatenate(parts)


def _pearson(tables: Ids, sizes: Ids, totals: Ids) -> Doubles:
    expected = np.outer(sizes, totals) / sizes.sum()
    return np.asarray(np.sum((tables - expected) ** 2 / expected, axis=(1, 2)))
