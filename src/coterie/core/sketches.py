"""Sketches and clipping: what leaves a client instead of a whole gradient or update.

The subsampled randomised Hadamard transform (Ailon and Chazelle, 2006; Tropp, 2011): a vector is padded with zeros to a power of two, D,
each number gets a random sign, the vector is multiplied by a Hadamard matrix, and r of its numbers, drawn without replacement, are kept and
multiplied by sqrt(D / r). Inner products survive on average, with a deviation of about sqrt((||x||^2 ||y||^2 + <x, y>^2) / r), and
distances to a factor of about 1 +- 1/sqrt(r): Johnson and Lindenstrauss' lemma. The transform takes D log D additions; there is no d x r
matrix. The vector itself is not in its sketch: r equations do not determine d > r unknowns.

Signs and positions are keyed, so they are the same on every machine and under every version of every library. Methods key them by the seed
alone, so that one projection serves the whole run: sketches of different rounds can be compared, and a client that is asked again reveals
the same r directions again. With a new projection in every round the server would have seen T * r directions after T rounds.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.rng import make_key, make_words


def clip_rows(rows: Doubles, bound: float) -> Doubles:
    """Each row cut to an L2 norm of at most `bound`; a row with a number that is not finite has no direction, and becomes zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt((rows**2).sum(axis=1))
    whole = np.where(np.isfinite(norms)[:, None], rows, 0.0)
    factors = np.minimum(1.0, bound / np.maximum(norms, np.finfo(np.float64).tiny, where=np.isfinite(norms), out=np.ones_like(norms)))
    return np.asarray(whole * factors[:, None], dtype=np.float64)


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
    signs, places = _draw_signs(sketch, d), _draw_positions(sketch, length)
    start: Any = np.broadcast_to(np.zeros(1) if origin is None else origin, vectors.shape)
    made, together = np.empty((n, sketch.size)), max(1, TOGETHER // length)
    for begin in range(0, n, together):
        part = slice(begin, begin + together)
        turned = np.zeros((len(vectors[part]), length))
        turned[:, :d] = signs * (vectors[part].astype(np.float64) - start[part])
        made[part] = _transform_rows(turned)[:, places]
    made /= np.sqrt(sketch.size)  # the turn is by a matrix of ones: sqrt(D) is in it
    return made


def _draw_signs(sketch: Sketch, d: int) -> Doubles:
    """(d,) the bits of keyed words, the lowest first."""
    drawn = make_words(make_key(sketch.key, "signs"), -(-d // 64)).astype("<u8").view(np.uint8)
    return np.asarray(1.0 - 2.0 * np.unpackbits(drawn, count=d, bitorder="little"), dtype=np.float64)


def _draw_positions(sketch: Sketch, length: int) -> Ints:
    """(size,) the places that are kept: those with the lowest keyed words."""
    return np.argsort(make_words(make_key(sketch.key, "places"), length), kind="stable")[: sketch.size].astype(np.int64)


def _transform_rows(rows: Doubles) -> Doubles:
    """The rows times the Hadamard matrix of ones and minus ones; the rows are overwritten.

    That matrix is the Kronecker product of two smaller ones: each row is laid out as a rectangle and turned along either side, so that
    what is added lies side by side in memory.
    """
    n, length = rows.shape
    tall = 1 << (length.bit_length() // 2)
    once = _transform_columns(rows.reshape(n, tall, -1)).transpose(0, 2, 1).copy()
    return _transform_columns(once).transpose(0, 2, 1).reshape(n, length)


def _transform_columns(boxes: Doubles) -> Doubles:
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
