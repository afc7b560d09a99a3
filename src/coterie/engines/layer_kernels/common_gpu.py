"""What the layers' Triton kernels share: how they cut their work and multiply, and the terms that a step adds to the gradient.

Tile sizes were measured on an H200; only the order of sums depends on them. Float32 by `tf32x3` is three products in TF32, of the numbers'
first and second parts: as near to float64 as plain float32 (`ieee`).
"""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.device import Precision
from coterie.engines.layer_kernels.layers import Descent, StackedLayer


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


def round_to_power(number: int) -> int:
    """The next power of two, at least the smallest tile that can be multiplied."""
    return max(16, 1 << (number - 1).bit_length())


jit: Callable[[Callable[..., Any]], Any] = triton.jit


class TermOperands(NamedTuple):
    """What a kernel is given for the terms of a layer; a tensor that it will not read stands for those that are not there."""

    rates: Tensor  # (k, 1), as the next three
    mus: Tensor
    shifts: Tensor
    decays: Tensor
    anchor: Tensor
    linear: Tensor
    bias_anchor: Tensor
    bias_linear: Tensor
    PULLS: bool
    SHIFTS: bool
    DECAYS: bool


def make_term_operands(layer: StackedLayer, descent: Descent, unread: Tensor) -> TermOperands:
    """The layer's operands, in the order of the kernels' parameters."""
    terms, of_bias = descent.get_terms(layer.weight), descent.get_terms(layer.bias or layer.weight)

    def there(tensor: Tensor | None) -> Tensor:
        return unread if tensor is None else tensor

    return TermOperands(
        rates=there(descent.rates),
        mus=there(terms.mu),
        shifts=there(terms.shifted),
        decays=there(terms.decay),
        anchor=there(terms.anchor),
        linear=there(terms.linear),
        bias_anchor=there(of_bias.anchor),
        bias_linear=there(of_bias.linear),
        PULLS=terms.anchor is not None,
        SHIFTS=terms.linear is not None,
        DECAYS=terms.decay is not None,
    )


@jit
def add_terms(
    gradient: tl.tensor,
    w: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    anchor: tl.tensor,
    linear: tl.tensor,
    mu: tl.tensor,
    shifted: tl.tensor,
    decay: tl.tensor,
    PULLS: tl.constexpr,
    SHIFTS: tl.constexpr,
    DECAYS: tl.constexpr,
) -> tl.tensor:
    """The gradient at some weights of one training with mu (w - anchor) + linear + decay w; without a term nothing is read for it."""
    if PULLS and mu != 0:
        gradient += mu * (w - tl.load(anchor + at, mask=inside, other=0.0))
    if SHIFTS and shifted != 0:
        gradient += tl.load(linear + at, mask=inside, other=0.0)
    if DECAYS:
        gradient += decay * w
    return gradient
