"""Slopes by the inputs of convolutions: a convolution of the slopes spread out, without a mask."""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.precision import Precision
from coterie.engines.stacked.layer import Stacked
from coterie.engines.stacked.tuning import TILING, power

if TYPE_CHECKING:
    from coterie.engines.stacked.convolution import ConvLayer

jit: Callable[[Callable[..., Any]], Any] = triton.jit


def by_inputs(layer: "ConvLayer", own: Stacked, x: Tensor, whole: Tensor, precision: Precision) -> Tensor:
    """(k, B, H, W, C) the slope by the inputs."""
    k, batch = x.shape[:2]
    below = x.new_empty(k, batch, *layer.image, layer.channels)
    tiles, count = TILING[precision].below, batch * layer.image[0] * layer.image[1]
    columns = min(tiles.columns, power(layer.channels))
    blocks = triton.cdiv(count, tiles.rows)
    taps = layer.window[0] * layer.window[1]
    _below[(k * blocks, triton.cdiv(layer.channels, columns))](
        whole, own[layer.weight], x, below, count, blocks, batch, *whole.shape[2:4], *layer.padded, *layer.image, *layer.padding,
        layer.channels, layer.window[1], taps, layer.outputs, layer.after_relu,
        M=tiles.rows, N=columns, D=min(tiles.depth, power(taps * layer.outputs)), PRECISION=tiles.how,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return below


@jit
def _below(
    whole: tl.tensor,
    weight: tl.tensor,
    x: tl.tensor,
    below: tl.tensor,
    COUNT: tl.constexpr,
    BLOCKS: tl.constexpr,
    BATCH: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    X_HIGH: tl.constexpr,
    X_WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ABOVE: tl.constexpr,
    BESIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    ACROSS: tl.constexpr,
    WINDOW: tl.constexpr,
    OUTPUTS: tl.constexpr,
    AFTER_RELU: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Some pixels of one training: a convolution of the slopes with the window turned round."""
    client = (tl.program_id(0) // BLOCKS).to(tl.int64)
    row = tl.program_id(0) % BLOCKS * M + tl.arange(0, M)
    channel = tl.program_id(1) * N + tl.arange(0, N)
    image, place = row // (ROWS * COLUMNS), row % (ROWS * COLUMNS)
    top, left = place // COLUMNS, place % COLUMNS
    start = ((image * HIGH + top) * WIDE + left) * OUTPUTS
    present = (row < COUNT)[:, None]
    whole += client * (BATCH * HIGH * WIDE * OUTPUTS)
    weight += client * (WINDOW * CHANNELS * OUTPUTS)
    sums = tl.zeros((M, N), tl.float32)
    for begin in range(0, WINDOW * OUTPUTS, D):
        term = begin + tl.arange(0, D)
        tap, o = term // OUTPUTS, term % OUTPUTS
        known = term < WINDOW * OUTPUTS
        at = start[:, None] + ((tap // ACROSS * WIDE + tap % ACROSS) * OUTPUTS + o)[None, :]
        slope = tl.load(whole + at, mask=present & known[None, :], other=0.0)
        turned = ((WINDOW - 1 - tap) * CHANNELS * OUTPUTS + o)[:, None] + channel[None, :] * OUTPUTS
        w = tl.load(weight + turned, mask=known[:, None] & (channel < CHANNELS)[None, :], other=0.0)
        sums = tl.dot(slope, w, sums, input_precision=PRECISION)
    stored = present & (channel < CHANNELS)[None, :]
    if AFTER_RELU:
        under = (((client * BATCH + image) * X_HIGH + top + ABOVE) * X_WIDE + left + BESIDE) * CHANNELS
        sums = tl.where(tl.load(x + under[:, None] + channel[None, :], mask=stored, other=0.0) <= 0, 0.0, sums)
    tl.store(below + client * (COUNT * CHANNELS) + row[:, None] * CHANNELS + channel[None, :], sums, mask=stored)
