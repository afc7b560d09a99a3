"""Sketches: a keyed random projection, so that r numbers leave a client instead of a gradient or an update.

The subsampled randomised Hadamard transform (Ailon and Chazelle, 2006; Tropp, 2011): a vector is filled up with zeros to a power of two, D,
each number gets a random sign, the vector is turned by a Hadamard matrix, and r of its numbers, drawn without replacement, are kept and
multiplied by sqrt(D / r). Inner products survive on average, with a deviation of about sqrt((||x||^2 ||y||^2 + <x, y>^2) / r), and
distances to a factor of about 1 +- 1/sqrt(r): Johnson and Lindenstrauss' lemma. The turn takes D log D additions; there is no d x r
matrix. The vector itself is not in its sketch: r equations do not tell d > r unknowns.

Signs and places are keyed words, so they are the same on every machine and under every version of every library: all who know the key
project alike. Methods key it by the seed alone, so that one projection serves the whole run: sketches of different rounds can be compared,
and a client that is asked again shows the same r directions again. With a new projection in every round the server would have seen T * r
directions after T rounds.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.rng import key as keyed
from coterie.core.rng import words

TOGETHER = 1 << 22  # numbers that are turned at a time


@dataclass(frozen=True)
class Sketch:
    """What is to be made of a vector before it leaves: `size` numbers, clipped and noised where that is asked for.

    A simulation draws the noise from keys. A real site clips and noises by its own policy and from its own secret generator.
    """

    size: int  # r
    key: int  # of signs and places
    clip: float | None = None  # the longest sketch (L2 norm) that leaves
    noise: float = 0.0  # deviation of the noise on every number, in clips

    def __post_init__(self) -> None:
        if self.size < 1 or self.noise < 0 or (self.clip is not None and self.clip <= 0) or (self.noise and self.clip is None):
            raise ValueError("a sketch has at least one number, and noise needs a clip above zero")


def project(vectors: Floats | Doubles, sketch: Sketch, origin: Floats | None = None) -> Doubles:
    """(n, size) the sketches of the rows, or of their differences from `origin`; a row's bits depend on no other row."""
    n, d = vectors.shape
    length = 1 << max(d - 1, 0).bit_length()
    if sketch.size > length:
        raise ValueError(f"{d} numbers cannot be sketched by {sketch.size}: ask for fewer")
    signs, places = _signs(sketch, d), _places(sketch, length)
    start: Any = np.broadcast_to(np.zeros(1) if origin is None else origin, vectors.shape)
    made, together = np.empty((n, sketch.size)), max(1, TOGETHER // length)
    for begin in range(0, n, together):
        part = slice(begin, begin + together)
        turned = np.zeros((len(vectors[part]), length))
        turned[:, :d] = signs * (vectors[part].astype(np.float64) - start[part])
        made[part] = _turned(turned)[:, places]
    made /= np.sqrt(sketch.size)  # the turn is by a matrix of ones: sqrt(D) is in it
    return made


def _signs(sketch: Sketch, d: int) -> Doubles:
    """(d,) the bits of keyed words, the lowest first."""
    drawn = words(keyed(sketch.key, "signs"), -(-d // 64)).astype("<u8").view(np.uint8)
    return np.asarray(1.0 - 2.0 * np.unpackbits(drawn, count=d, bitorder="little"), dtype=np.float64)


def _places(sketch: Sketch, length: int) -> Ints:
    """(size,) the places that are kept: those with the lowest keyed words."""
    return np.argsort(words(keyed(sketch.key, "places"), length), kind="stable")[: sketch.size].astype(np.int64)


def _turned(rows: Doubles) -> Doubles:
    """The rows times the Hadamard matrix of ones and minus ones; the rows are overwritten.

    That matrix is the Kronecker product of two smaller ones: each row is laid out as a rectangle and turned along either side, so that
    what is added lies side by side in memory.
    """
    n, length = rows.shape
    tall = 1 << (length.bit_length() // 2)
    once = _down(rows.reshape(n, tall, -1)).transpose(0, 2, 1).copy()
    return _down(once).transpose(0, 2, 1).reshape(n, length)


def _down(boxes: Doubles) -> Doubles:
    """Each box (n, m, k) turned along its m rows, by sums and differences of halves."""
    n, m, k = boxes.shape
    half = 1
    while half < m:
        pairs = boxes.reshape(n, -1, 2, half, k)
        total = pairs[:, :, 0] + pairs[:, :, 1]
        np.subtract(pairs[:, :, 0], pairs[:, :, 1], out=pairs[:, :, 1])
        pairs[:, :, 0] = total
        half *= 2
    return boxes
