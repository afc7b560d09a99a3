"""An estimate with its error from one source: the one shape in which intervals over seeds, draws and clients are handed on."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from coterie.core.arrays import Doubles
from coterie.statistics.paired import CONFIDENCE


@dataclass(frozen=True)
class Interval:
    """A mean, its standard error, and the degrees of freedom of Student's t that the error is worth.

    Where no value differs from another there is no error to speak of. The interval is then the mean itself, and p-values are those of a
    sign test of `degrees` + 1 equal values, as Wilcoxon's least: three equal differences are not proof.
    """

    mean: float
    error: float
    degrees: float
    over: str  # what was counted: "10 draws x 3 seeds", "149 test samples of 4 clients"
    caveat: str = ""  # what it leaves out although its name might promise it
    bound: bool = False  # it is at least as wide as it should be: nothing is decided by it

    @property
    def low(self) -> float:
        return self.at()[0]

    @property
    def high(self) -> float:
        return self.at()[1]

    @property
    def width(self) -> float:
        return self.high - self.low

    def at(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The interval at some confidence."""
        half = float(stats.t.ppf(0.5 + confidence / 2, self.degrees)) * self.error
        return self.mean - half, self.mean + half

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p of "at most the bound": small where the truth is shown to lie above it."""
        return self._p(self.mean - bound)

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p of "at least the bound": small where the truth is shown to lie below it."""
        return self._p(bound - self.mean)

    def _p(self, beyond: float) -> float:
        if self.error > 0:
            return float(stats.t.sf(beyond / self.error, self.degrees))
        return float(0.5 ** (self.degrees + 1)) if beyond > 0 else 1.0


def student(values: Doubles, over: str, caveat: str = "") -> Interval:
    """Student's interval of the mean of two or more independent values."""
    n = len(values)
    sd = 0.0 if np.ptp(values) <= 1e-12 else float(values.std(ddof=1))
    return Interval(float(values.mean()), sd / n**0.5, n - 1, over, caveat)
