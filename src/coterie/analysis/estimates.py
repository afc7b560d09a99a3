"""A number for each run, their mean and its interval."""

from dataclasses import dataclass

import numpy as np

from coterie.analysis.repetitions import by_unit
from coterie.core.arrays import Array, Doubles
from coterie.statistics import interval


@dataclass(frozen=True)
class Estimate:
    """A number for each run, their mean and its 95 % interval: over draws where there are several, else over seeds."""

    values: Doubles  # (runs,) nan for a run that did not reach the end
    mean: float
    sd: float  # of the runs
    low: float
    high: float


def estimate(values: Array) -> Estimate:
    """From numbers of the seeds of one draw, or a table (draws, seeds); of draws every one counts alike, however many seeds it has."""
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    runs, units = table.ravel(), by_unit(table)
    units, known = units[np.isfinite(units)], runs[np.isfinite(runs)]
    mean = float(units.mean()) if len(units) else float("nan")
    sd = float(known.std(ddof=1)) if len(known) >= 2 else float("nan")
    return Estimate(runs, mean, sd, *interval(units))
