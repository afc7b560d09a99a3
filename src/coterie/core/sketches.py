"""Sketches: a keyed random projection, so that r numbers leave a client instead of a gradient or an update.

Every number of a vector is multiplied by r signs, and the r sums are divided by sqrt(r). Inner products survive on average, with a
deviation of at most sqrt((||x||^2 ||y||^2 + <x, y>^2) / r), and distances to a factor of about 1 +- 1/sqrt(r) (Johnson and Lindenstrauss'
lemma; with signs, Achlioptas, 2003). The vector itself is not in them: r equations do not tell d > r unknowns.

The signs are the bits of keyed words, 64 to a word, made a block at a time: the d x r matrix never exists, it is the same on every machine
and under every version of every library, and all who know the key project alike. Methods key it by the seed alone, so that one projection
serves the whole run: sketches of different rounds can be compared, and a client that is asked again shows the same r directions again.
With a new projection in every round the server would have seen T * r directions after T rounds.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles, Floats
from coterie.core.rng import extend, words
from coterie.core.threads import one_thread

BLOCK = 4096  # numbers of a vector whose signs are held at a time
BITS = 64


@dataclass(frozen=True)
class Sketch:
    """What is to be made of a vector before it leaves: `size` numbers, clipped and noised where that is asked for.

    A simulation draws the noise from keys. A real site clips and noises by its own policy and from its own secret generator.
    """

    size: int  # r
    key: int  # of the signs
    clip: float | None = None  # the longest sketch (L2 norm) that leaves
    noise: float = 0.0  # deviation of the noise on every number, in clips

    def __post_init__(self) -> None:
        if self.size < 1 or self.noise < 0 or (self.clip is not None and self.clip <= 0) or (self.noise and self.clip is None):
            raise ValueError("a sketch has at least one number, and noise needs a clip above zero")

    @property
    def exact(self) -> "Sketch":
        """The same projection without clipping and noise."""
        return Sketch(self.size, self.key)


def project(vectors: Floats | Doubles, sketch: Sketch, origin: Floats | None = None) -> Doubles:
    """(n, size) the sketches of the rows, or of their differences from `origin`; a row's bits depend on no other row."""
    total = np.zeros((len(vectors), sketch.size))
    start = None if origin is None else np.broadcast_to(origin, vectors.shape)
    with one_thread():
        for number, begin in enumerate(range(0, vectors.shape[1], BLOCK)):
            signs = _signs(sketch, number, min(BLOCK, vectors.shape[1] - begin))
            for i, row in enumerate(vectors):
                part = row[begin : begin + BLOCK].astype(np.float64)
                total[i] += (part if start is None else part - start[i, begin : begin + BLOCK]) @ signs
    return np.asarray(total / np.sqrt(sketch.size))


def _signs(sketch: Sketch, block: int, rows: int) -> Doubles:
    """(rows, size) the signs of a block: the bits of its keyed words, the lowest first."""
    columns = -(-sketch.size // BITS)
    drawn = words(extend(sketch.key, block), rows * columns).astype("<u8").view(np.uint8).reshape(rows, columns * 8)
    bits = np.unpackbits(drawn, axis=1, count=sketch.size, bitorder="little")
    return np.asarray(1.0 - 2.0 * bits, dtype=np.float64)
