"""The windows of a convolution side by side, and back: two Triton kernels that only move numbers.

PyTorch's `unfold` launches one kernel for each image of a batch; here it is one for all of them.
"""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.stacked.vmap_rewrites import ConvWindows

BLOCK = 1024
jit: Callable[[Callable[..., Any]], Any] = triton.jit


def unfold_windows(x: Tensor, shape: ConvWindows) -> Tensor:
    """(n, C h w, H' W') from images (n, C, H, W): as `torch.nn.functional.unfold` has it."""
    found = x.new_empty(len(x), shape.channels * shape.high * shape.wide, shape.rows * shape.across)
    blocks = triton.cdiv(found[:1].numel(), BLOCK)
    _move_windows[(len(x) * blocks,)](x.contiguous(), found, found[:1].numel(), blocks, *shape, BLOCK=BLOCK, BACK=False)
    return found


def fold_windows(given: Tensor, shape: ConvWindows) -> Tensor:
    """(n, C, H, W): every pixel the sum of its copies in the columns, as `torch.nn.functional.fold` has it."""
    found = given.new_empty(len(given), shape.channels, shape.height, shape.width)
    blocks = triton.cdiv(found[:1].numel(), BLOCK)
    _move_windows[(len(given) * blocks,)](given.contiguous(), found, found[:1].numel(), blocks, *shape, BLOCK=BLOCK, BACK=True)
    return found


@jit
def _move_windows(
    given: tl.tensor,
    found: tl.tensor,
    size: tl.constexpr,
    blocks: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    ACROSS: tl.constexpr,
    DOWN: tl.constexpr,
    RIGHT: tl.constexpr,
    ABOVE: tl.constexpr,
    BESIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    BACK: tl.constexpr,
) -> None:
    """Pixels into columns, or, `BACK`, columns into pixels, every pixel the sum of its copies."""
    image = (tl.program_id(0) // blocks).to(tl.int64)
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    if BACK:
        left = place % WIDTH + BESIDE
        top = place // WIDTH % HEIGHT + ABOVE
        channel = place // (WIDTH * HEIGHT)
        base = given + image * (CHANNELS * HIGH * WIDE * ROWS * ACROSS)
        values = tl.zeros((BLOCK,), found.dtype.element_ty)
        for i in tl.static_range(HIGH):
            for j in tl.static_range(WIDE):
                row = (top - i) // DOWN
                column = (left - j) // RIGHT
                there = (place < size) & (top >= i) & (left >= j) & (row * DOWN == top - i) & (column * RIGHT == left - j)
                there = there & (row < ROWS) & (column < ACROSS)
                values += tl.load(base + (((channel * HIGH + i) * WIDE + j) * ROWS + row) * ACROSS + column, mask=there, other=0.0)
    else:
        column = place % ACROSS
        row = place // ACROSS % ROWS
        j = place // (ROWS * ACROSS) % WIDE
        i = place // (ROWS * ACROSS * WIDE) % HIGH
        channel = place // (ROWS * ACROSS * WIDE * HIGH)
        top = row * DOWN + i - ABOVE
        left = column * RIGHT + j - BESIDE
        inside = (place < size) & (top >= 0) & (top < HEIGHT) & (left >= 0) & (left < WIDTH)
        values = tl.load(given + image * (CHANNELS * HEIGHT * WIDTH) + (channel * HEIGHT + top) * WIDTH + left, mask=inside, other=0.0)
    tl.store(found + image * size + place, values, mask=place < size)
