"""Standardising features: what a site subtracts from its own rows, and what it divides them by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Floats


@dataclass(frozen=True)
class Scaling:
    """A mean and a deviation for each feature; a feature that was constant has the deviation 0 and becomes 0, whatever its value."""

    mean: Doubles  # (features,)
    deviation: Doubles  # (features,)

    @classmethod
    def of(cls, rows: Doubles) -> "Scaling":
        """The scaling that these rows ask for."""
        constant = rows.max(axis=0) == rows.min(axis=0)
        return cls(rows.mean(axis=0), np.where(constant, 0.0, rows.std(axis=0)))

    @classmethod
    def read(cls, told: Mapping[str, Sequence[float]]) -> "Scaling":
        """From what `told` wrote."""
        return cls(np.array(told["mean"], dtype=np.float64), np.array(told["deviation"], dtype=np.float64))

    def told(self) -> dict[str, Any]:
        """For a federation's provenance: plain numbers, which keep their bits as JSON."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}

    def apply(self, rows: Doubles) -> Floats:
        """(n, features) rows in the units that a model is trained in."""
        constant = self.deviation == 0
        return np.where(constant, 0.0, (rows - self.mean) / np.where(constant, 1.0, self.deviation)).astype(np.float32)
