"""Standardising features: what a site subtracts from its own rows, and what it divides them by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints


@dataclass(frozen=True)
class Scaling:
    """A mean and a deviation for each feature; a feature that was constant has the deviation 0 and becomes 0, whatever its value.

    A robust scaling has the median and the interquartile range in their places, and a bound beyond which values are clipped.
    """

    mean: Doubles  # (features,) what is subtracted
    deviation: Doubles  # (features,) what is divided by
    fill: Doubles | None = None  # (features,) what stands for a gap; default: the mean
    bound: float | None = None  # the largest absolute value after scaling; default: none

    @classmethod
    def of(cls, rows: Doubles) -> "Scaling":
        """The scaling that these rows ask for."""
        constant = rows.max(axis=0) == rows.min(axis=0)
        return cls(rows.mean(axis=0), np.where(constant, 0.0, rows.std(axis=0)))

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Scaling":
        """From what `told` wrote."""
        mean, deviation, fill = (np.array(told[name], dtype=np.float64) if name in told else None for name in ("mean", "deviation", "fill"))
        if mean is None or deviation is None:
            raise ValueError("a scaling without a mean or a deviation")
        bound = told.get("bound")
        return cls(mean, deviation, fill, None if bound is None else float(bound))

    def told(self) -> dict[str, Any]:
        """For a federation's provenance: plain numbers, which keep their bits as JSON."""
        made: dict[str, Any] = {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}
        made |= {} if self.fill is None else {"fill": self.fill.tolist()}
        return made if self.bound is None else {**made, "bound": self.bound}

    def fill_gaps(self, rows: Doubles) -> Doubles:
        """(n, features) rows with what stands for a gap in the place of each."""
        return np.where(np.isnan(rows), self.mean if self.fill is None else self.fill, rows)

    def select(self, places: Ints, width: int) -> "Scaling":
        """The scaling of `width` features, of which those at `places` are these; the others stay as they are."""

        def put(values: Doubles, rest: float) -> Doubles:
            made = np.full(width, rest)
            made[places] = values
            return made

        fill = None if self.fill is None else put(self.fill, 0.0)
        return Scaling(put(self.mean, 0.0), put(self.deviation, 1.0), fill, self.bound)

    def apply(self, rows: Doubles) -> Floats:
        """(n, features) rows in the units that a model is trained in."""
        constant = self.deviation == 0
        made = np.where(constant, 0.0, (rows - self.mean) / np.where(constant, 1.0, self.deviation))
        if self.bound is not None:  # of what is scaled: indicators and other features with the deviation 1 lie within it
            made = np.clip(made, -self.bound, self.bound)
        return made.astype(np.float32)
