"""Gaussian random projections of what clients sent: short vectors whose distances are those of the long ones, nearly."""

import numpy as np

from coterie.core.arrays import Doubles, Floats
from coterie.core.rng import generator
from coterie.grouping.similarity import BLOCK, over_blocks

HELD = 1 << 26  # numbers of a projection that are kept from one use to the next: half a GiB


class Projection:
    """A projection from `width` numbers to `size`, by the generator's keys.

    Drawing it costs more than applying it, so it is drawn once and kept for further rows: as much of it as HELD says, the rest is drawn
    anew from the same keys. A row's projection does not depend on what is kept.
    """

    def __init__(self, width: int, size: int, rng: np.random.Generator, held: int = HELD) -> None:
        self.size, self.held = size, held
        self._keys = rng.integers(2**63, size=-(-width // BLOCK))  # one for each block, since blocks may be at work side by side
        self._drawn: dict[int, Doubles] = {}

    def __call__(self, vectors: Floats, origin: Floats | None = None) -> Doubles:
        """(n, size) the rows, or their differences from `origin`, projected."""
        total = np.zeros((len(vectors), self.size))
        for product in over_blocks(lambda block, begin: np.asarray(block @ self._matrix(begin, block.shape[1])), vectors, origin):
            total += product
        return np.asarray(total / np.sqrt(self.size))

    def _matrix(self, begin: int, width: int) -> Doubles:
        """(width, size) the part for a block of columns."""
        if begin in self._drawn:
            return self._drawn[begin]
        drawn = generator(int(self._keys[begin // BLOCK])).standard_normal((width, self.size))
        if (begin + width) * self.size <= self.held:
            self._drawn[begin] = drawn
        return drawn


def sketch(vectors: Floats, size: int, rng: np.random.Generator, origin: Floats | None = None) -> Doubles:
    """(n, size) a Gaussian random projection of the rows: distances survive to about 1/sqrt(size). Equal keys project alike."""
    return Projection(vectors.shape[1], size, rng, held=0)(vectors, origin)
