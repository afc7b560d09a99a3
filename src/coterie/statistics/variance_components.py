"""How much of the variance of paired differences is from draws, how much from seeds, how much from neither.

The model of a table, draws x seeds, any of them missing: difference = mean + draw + seed + rest. Seeds have effects of their own where
every draw has the same (`shared`); otherwise they are part of the rest. Variances are found by fitting constants (Henderson's method III).
"""

from dataclasses import dataclass
from math import nan

import numpy as np

from coterie.core.arrays import Doubles

NOTHING = 1e-12  # spread of differences of accuracies that is rounding


@dataclass(frozen=True)
class VarianceComponents:
    """Variances of one run's difference, by where they come from; nan for a part that this table cannot separate from the others."""

    draws: float
    seeds: float  # of seeds that draws share
    rest: float  # seeds within a draw: interaction and residual

    @property
    def shares(self) -> dict[str, float]:
        """Each known part's share of the sum, none of them negative."""
        known = {name: max(value, 0.0) for name, value in vars(self).items() if np.isfinite(value)}
        total = sum(known.values())
        return {name: value / total if total else 0.0 for name, value in known.items()}


@dataclass(frozen=True)
class VarianceFit:
    """A table's sums of squares, and what is made of them."""

    means: Doubles  # (B,) of each draw over the seeds that it has
    counts: Doubles  # (B,) seeds that it has
    between: float  # variance of the draws' means
    seed_squares: float  # mean square of seeds beyond draws
    seed_degrees: int
    seed_factor: float  # how often a seed's variance is in their sum of squares
    rest_squares: float  # mean square of what neither explains
    rest_degrees: int
    mixed: float  # how often a seed's variance is in `between`: 0 without gaps, since all draws then have the same seeds
    weight: float  # how often it is in the variance of the mean over draws: 1 / S without gaps

    @property
    def spread(self) -> VarianceComponents:
        seeds = self.seed_degrees / self.seed_factor * (self.seed_squares - self.rest_squares) if self.seed_degrees else nan
        shared = self.mixed * seeds if self.seed_degrees else 0.0
        return VarianceComponents(self.between - self.rest_squares * float((1 / self.counts).mean()) - shared, seeds, self.rest_squares)


def fit_variances(table: Doubles, shared: bool) -> VarianceFit:
    """Fit draws, and seeds where they are shared, to a table (draws, seeds) in which every draw has a value; nan is missing."""
    known = np.isfinite(table)
    counts = known.sum(axis=1).astype(np.float64)
    filled = np.where(known, table, 0.0)
    means = filled.sum(axis=1) / counts
    within = np.where(known, table - means[:, None], 0.0)
    squares, degrees = _sum_squares(within), int((counts - 1).sum())
    between = float(means.var(ddof=1)) if len(means) > 1 else nan
    places = known / counts[:, None]  # (B, S) how much a seed counts in a draw's mean
    left, seed_degrees = _fit_seeds(within, known) if shared and len(table) > 1 else (squares, 0)
    rest_degrees = degrees - seed_degrees
    if seed_degrees and not rest_degrees:  # no degrees are left to separate seeds from the rest
        left, seed_degrees, rest_degrees = squares, 0, degrees
    return VarianceFit(
        means=means,
        counts=counts,
        between=0.0 if between <= NOTHING**2 else between,  # of one draw there is none: not a number
        seed_squares=(squares - left) / seed_degrees if seed_degrees else nan,
        seed_degrees=seed_degrees,
        seed_factor=float((known * (1 - 1 / counts)[:, None]).sum()),
        rest_squares=left / rest_degrees if rest_degrees else nan,
        rest_degrees=rest_degrees,
        mixed=float(((places - places.mean(axis=0)) ** 2).sum() / max(len(table) - 1, 1)),
        weight=float((places.mean(axis=0) ** 2).sum()),
    )


def _fit_seeds(within: Doubles, known: Doubles) -> tuple[float, int]:
    """The sum of squares that is left when seeds are fitted beside draws, and how many constants that took."""
    rows, seeds = np.nonzero(known)
    columns = np.zeros((len(rows), known.shape[1]))
    columns[np.arange(len(rows)), seeds] = 1.0
    for draw in np.unique(rows):  # seeds' columns without the draws' means: fitting them then fits both
        columns[rows == draw] -= columns[rows == draw].mean(axis=0)
    values = within[rows, seeds]
    found, _, rank, _ = np.linalg.lstsq(columns, values, rcond=None)
    return _sum_squares(values - columns @ found), int(rank)


def _sum_squares(values: Doubles) -> float:
    """The sum of squares, 0 where it is rounding."""
    total = float((values**2).sum())
    return total if total > values.size * NOTHING**2 else 0.0


def estimate_variance_components(differences: Doubles, *, shared: bool = True) -> VarianceComponents:
    """The variances of a table of differences, draws x seeds; nan is missing, and so is a part that cannot be separated."""
    table = drop_missing(differences)
    if not table.size:
        return VarianceComponents(nan, nan, nan)
    return fit_variances(table, shared).spread


def drop_missing(differences: Doubles) -> Doubles:
    """The table without draws and seeds that have no value at all."""
    table = np.atleast_2d(np.asarray(differences, dtype=np.float64))
    known = np.isfinite(table)
    return table[known.any(axis=1)][:, known.any(axis=0)]
