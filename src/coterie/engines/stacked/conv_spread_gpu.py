"""Slopes of pooled places spread out to where their pools were won, with a margin: the product with the weights is a convolution again."""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from coterie.engines.stacked.convolution import ConvLayer

BLOCK = 1024
jit: Callable[[Callable[..., Any]], Any] = triton.jit


def spread_out(layer: "ConvLayer", won: Tensor, slope: Tensor) -> Tensor:
    """(k, B, H, W, O) the slope by what the convolution gave, with the margin that a convolution back needs."""
    k, batch = won.shape[:2]
    high, wide = (places + 2 * reach(layer, side) for side, places in enumerate(layer.places))
    whole = slope.new_empty(k, batch, high, wide, layer.outputs)
    size = high * wide * layer.outputs
    blocks = triton.cdiv(size, BLOCK)
    _spread[(k * batch * blocks,)](
        slope.contiguous(), won, whole, blocks, high, wide, reach(layer, 0), reach(layer, 1), *layer.pooled, layer.outputs, layer.pool,
        BLOCK=BLOCK,
    )  # fmt: skip
    return whole


def reach(layer: "ConvLayer", side: int) -> int:
    """How far a window that begins at the image's edge reaches beyond it."""
    return max(0, layer.window[side] - 1 - layer.padding[side])


@jit
def _spread(
    slope: tl.tensor,
    won: tl.tensor,
    whole: tl.tensor,
    BLOCKS: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    DOWN: tl.constexpr,
    BESIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Every slope to the place that has won its pool, nought elsewhere."""
    image = (tl.program_id(0) // BLOCKS).to(tl.int64)
    place = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    o = place % OUTPUTS
    left = place // OUTPUTS % WIDE - BESIDE
    top = place // (OUTPUTS * WIDE) - DOWN
    inside = (top >= 0) & (left >= 0) & (top < ROWS * POOL) & (left < COLUMNS * POOL)
    at = image * (ROWS * COLUMNS * OUTPUTS) + (top // POOL * COLUMNS + left // POOL) * OUTPUTS + o
    value = tl.load(slope + at, mask=inside, other=0.0)
    if POOL > 1:
        value = tl.where(tl.load(won + at, mask=inside, other=-1).to(tl.int32) == top % POOL * POOL + left % POOL, value, 0.0)
    tl.store(whole + image * (HIGH * WIDE * OUTPUTS) + place, value, mask=place < HIGH * WIDE * OUTPUTS)
