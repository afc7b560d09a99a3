"""The interval of a mean difference over seeds: what other seeds would show on these very draws.

Draws are fixed here, so what lies between them does not count. With one draw this is Student's t over its seeds. With seeds that draws
share, a seed's mean over the draws is one value, whatever draws and seeds do to each other: Student's t over seeds, S - 1 degrees, every
draw counting alike. With seeds of its own in every draw each draw has a variance of its own, and Welch's degrees are those of their sum.
"""

import numpy as np

from coterie.core.arrays import Doubles
from coterie.statistics.intervals import Interval, student
from coterie.statistics.spread import NOTHING, present

ONE_SEED = "one seed: this says nothing about other seeds"


def over_seeds(differences: Doubles, *, shared: bool = True) -> Interval | str:
    """The interval from differences (draws, seeds), nan for a pair that is missing; a sentence where it cannot be had."""
    table = present(differences)
    draws, seeds = table.shape
    if not table.size:
        return "no pair of runs reached the end"
    if draws == 1:
        return student(table[0], f"{seeds} seeds") if seeds > 1 else ONE_SEED
    return _shared(table) if shared else _own(table)


def _shared(table: Doubles) -> Interval | str:
    """Each seed's part in how far the mean would move: without gaps its mean over draws, less the mean of all, by the seeds."""
    draws, seeds = table.shape
    if seeds < 2:
        return ONE_SEED
    known = np.isfinite(table)
    counts = known.sum(axis=1)
    means = np.where(known, table, 0.0).sum(axis=1) / counts
    if (counts < 2).any():  # a lone seed has no deviation from its draw's mean: it would count as certain
        return "some draws have one seed only: what other seeds would do there is not known"
    parts = (np.where(known, table - means[:, None], 0.0) / counts[:, None]).sum(axis=0) / draws  # (S,)
    variance = seeds / (seeds - 1) * float((parts**2).sum())
    error = variance**0.5 if variance > NOTHING**2 else 0.0
    return Interval(float(means.mean()), error, seeds - 1, f"{seeds} seeds on these {draws} draws")


def _own(table: Doubles) -> Interval | str:
    """Sum of the draws' variances by their seeds; a draw with one seed has that of the others together.

    Degrees by Welch (1947): with few seeds a draw the squares of variances are too large by 1 + 2 / d, which his form takes out, so that
    equal variances of d degrees come to B d on average.
    """
    known = np.isfinite(table)
    counts = known.sum(axis=1)
    draws, several = len(table), counts > 1
    if not several.any():
        return "one seed a draw: what is from seeds and what from draws cannot be told apart"
    means = np.where(known, table, 0.0).sum(axis=1) / counts
    squares = (np.where(known, table - means[:, None], 0.0) ** 2).sum(axis=1)
    total = float((counts - 1).sum())
    degrees = np.where(several, counts - 1, total)
    variances = np.where(several, squares / np.maximum(counts - 1, 1), squares.sum() / total) / counts / draws**2
    variance, over = float(variances.sum()), f"{int(counts.sum())} runs on these {draws} draws"
    if variance <= NOTHING**2:
        return Interval(float(means.mean()), 0.0, total, over)
    welch = variance**2 / float((variances**2 / (degrees + 2)).sum()) - 2
    return Interval(float(means.mean()), variance**0.5, min(max(welch, float(degrees.min())), total), over)
