"""How the kernels cut their work and multiply: measured on an H200. The numbers that come out hang on none of it but the order of sums.

Float32 by `tf32x3` is three products in TF32, of the numbers' first and second parts: as near to float64 as plain float32 (`ieee`).
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from coterie.engines.precision import Precision


class Tiles(NamedTuple):
    """Of one kernel: a program has a tile of rows x columns, and sums over so many terms at a time."""

    rows: int  # the dense kernels have the whole batch instead
    columns: int
    depth: int
    warps: int
    stages: int
    how: Literal["ieee", "tf32x3", "tf32"]


class Tiling(NamedTuple):
    """Of all kernels."""

    forward: Tiles  # places of the pooled image x outputs, over taps
    below: Tiles  # pixels x channels, over taps and outputs
    weight: Tiles  # taps x outputs, over places
    dense_forward: Tiles  # batch x outputs, over inputs
    dense_backward: Tiles  # batch x inputs, over outputs
    dense_terms: Tiles  # the same where the step has terms: smaller, so that anchors find room in the registers


TILING: Mapping[Precision, Tiling] = {
    "float32": Tiling(
        forward=Tiles(32, 64, 32, 2, 3, "tf32x3"),
        below=Tiles(128, 32, 64, 8, 3, "tf32x3"),
        weight=Tiles(64, 64, 32, 2, 3, "tf32x3"),
        dense_forward=Tiles(0, 32, 64, 2, 4, "tf32x3"),
        dense_backward=Tiles(0, 128, 32, 4, 3, "ieee"),
        dense_terms=Tiles(0, 128, 16, 4, 3, "ieee"),
    ),
    "tf32": Tiling(
        forward=Tiles(32, 64, 32, 4, 3, "tf32"),
        below=Tiles(128, 32, 32, 8, 3, "tf32"),
        weight=Tiles(64, 64, 32, 2, 3, "tf32"),
        dense_forward=Tiles(0, 64, 64, 4, 4, "tf32"),
        dense_backward=Tiles(0, 64, 64, 2, 3, "tf32"),
        dense_terms=Tiles(0, 64, 32, 4, 3, "tf32"),
    ),
}


def power(number: int) -> int:
    """The next power of two, at least the smallest tile that can be multiplied."""
    return max(16, 1 << (number - 1).bit_length())
