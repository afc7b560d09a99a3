"""A number for each seed, their mean and its interval."""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Array, Doubles
from coterie.statistics import interval


@dataclass(frozen=True)
class Estimate:
    """A number for each seed, their mean and its 95 % interval."""

    values: Doubles  # (S',) nan for a run that did not reach the end
    mean: float
    sd: float
    low: float
    high: float


def estimate(values: Array) -> Estimate:
    """The mean over seeds of what is defined, with its interval."""
    values = np.asarray(values, dtype=np.float64)
    defined = values[np.isfinite(values)]
    mean = float(defined.mean()) if len(defined) else float("nan")
    sd = float(defined.std(ddof=1)) if len(defined) >= 2 else float("nan")
    return Estimate(values, mean, sd, *interval(defined))
