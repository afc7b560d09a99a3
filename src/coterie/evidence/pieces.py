"""Large arrays in pieces of whole rows, each known by its content, so that what has not changed is not written again.

Of a state that holds a model for every client, only the rows of those that trained change from one checkpoint to the next.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.core.arrays import Array
from coterie.core.threads import cores, in_order

PIECES = "pieces.bin"
DIGEST = 32  # bytes of a SHA-256
SMALLEST = 1 << 12  # bytes of a piece, at least: what is said of each takes 48
MOST = 1 << 16  # pieces of an array
WORTH_A_THREAD = 1 << 22  # bytes of pieces that are hashed beside others

Bytes = NDArray[np.uint8]


class Location(NamedTuple):
    """Where a piece lies: in the file of which segment, from which byte on."""

    segment: int
    first: int


@dataclass(frozen=True)
class Cutting:
    """How an array lies in pieces."""

    dtype: str
    shape: tuple[int, ...]
    rows: int  # of a piece; the last may have fewer

    @classmethod
    def of(cls, array: Array) -> "Cutting | None":
        """The same for every array of this kind and shape; None where it is too small to be cut."""
        if array.ndim == 0 or array.nbytes < 2 * SMALLEST:
            return None
        row = array.nbytes // len(array)
        return cls(array.dtype.str, array.shape, -(-max(SMALLEST, -(-array.nbytes // MOST)) // row))

    @classmethod
    def from_json(cls, tree: Sequence[Any]) -> "Cutting":
        dtype, shape, rows = tree
        return cls(str(dtype), tuple(map(int, shape)), int(rows))

    @property
    def lengths(self) -> list[int]:
        """Bytes of each piece."""
        total = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        step = self.rows * (total // self.shape[0])
        return [min(step, total - first) for first in range(0, total, step)]

    def apart(self, array: Array) -> list[Bytes]:
        """The pieces, without a copy."""
        ends = np.cumsum(self.lengths)[:-1]
        return np.split(np.ascontiguousarray(array).reshape(-1).view(np.uint8), ends)

    def together(self, pieces: Iterable[Bytes]) -> Array:
        """The array that was cut."""
        made = np.empty(self.shape, self.dtype)
        flat, first = made.reshape(-1).view(np.uint8), 0
        for piece, length in zip(pieces, self.lengths, strict=True):
            flat[first : first + length] = piece
            first += length
        return made


def digests_of(pieces: Sequence[Bytes]) -> list[bytes]:
    """The content of each, as a hash: of small ones, a run of them at a time for each core."""
    if not pieces:
        return []
    run = -(-WORTH_A_THREAD // max(1, pieces[0].nbytes))
    runs = [pieces[begin : begin + run] for begin in range(0, len(pieces), run)]
    found = in_order(lambda some: [sha256(piece.data).digest() for piece in some], runs, cores() if len(runs) > 1 else 1)
    return [digest for some in found for digest in some]
