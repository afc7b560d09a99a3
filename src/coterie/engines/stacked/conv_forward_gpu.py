"""Convolutions of many trainings forward: pool and ReLU are taken before anything is stored, and only which place has won is kept."""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.precision import Precision
from coterie.engines.stacked.layer import Stacked
from coterie.engines.stacked.tuning import TILING, power

if TYPE_CHECKING:
    from coterie.engines.stacked.convolution import ConvLayer

jit: Callable[[Callable[..., Any]], Any] = triton.jit


def conv_forward(layer: "ConvLayer", own: Stacked, x: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
    """What the next layer reads (k, B, H', W', O), padded as it likes; and which place has won (k, B, H', W', O)."""
    k, batch = x.shape[:2]
    (rows, across), (down, beside) = layer.pooled, layer.margin
    make = x.new_zeros if down or beside else x.new_empty
    y = make(k, batch, rows + 2 * down, across + 2 * beside, layer.outputs)
    won = torch.empty((k, batch, rows, across, layer.outputs), dtype=torch.int8, device=x.device)
    tiles, count = TILING[precision].forward, batch * rows * across
    columns = min(tiles.columns, power(layer.outputs))
    blocks = triton.cdiv(count, tiles.rows)
    bias = own[layer.bias or layer.weight]
    _forward[(k * blocks, triton.cdiv(layer.outputs, columns))](
        x.contiguous(), own[layer.weight], bias, y, won, count, blocks, batch, *layer.padded, layer.channels, layer.window[1], layer.taps,
        layer.outputs, *layer.pooled, *layer.margin, layer.pool, layer.bias is not None, layer.relu,
        M=tiles.rows, N=columns, D=min(tiles.depth, power(layer.taps)), PRECISION=tiles.how,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return y, won


@jit
def _forward(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    won: tl.tensor,
    COUNT: tl.constexpr,
    BLOCKS: tl.constexpr,
    BATCH: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    ACROSS: tl.constexpr,
    TAPS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DOWN: tl.constexpr,
    BESIDE: tl.constexpr,
    POOL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Some pooled places of one training: the sums of all that meet in a pool, the largest, its place."""
    client = (tl.program_id(0) // BLOCKS).to(tl.int64)
    row = tl.program_id(0) % BLOCKS * M + tl.arange(0, M)
    o = tl.program_id(1) * N + tl.arange(0, N)
    image, place = row // (ROWS * COLUMNS), row % (ROWS * COLUMNS)
    top, left = place // COLUMNS, place % COLUMNS
    start = ((image * HIGH + top * POOL) * WIDE + left * POOL) * CHANNELS
    present = (row < COUNT)[:, None]
    x += client * (BATCH * HIGH * WIDE * CHANNELS)
    weight += client * (TAPS * OUTPUTS)
    a = tl.zeros((M, N), tl.float32)
    if POOL == 2:
        b = tl.zeros((M, N), tl.float32)
        c = tl.zeros((M, N), tl.float32)
        d = tl.zeros((M, N), tl.float32)
    for begin in range(0, TAPS, D):
        tap = begin + tl.arange(0, D)
        window = tap // CHANNELS
        at = start[:, None] + ((window // ACROSS * WIDE + window % ACROSS) * CHANNELS + tap % CHANNELS)[None, :]
        inside = present & (tap < TAPS)[None, :]
        w = tl.load(weight + tap[:, None] * OUTPUTS + o[None, :], mask=(tap < TAPS)[:, None] & (o < OUTPUTS)[None, :], other=0.0)
        a = tl.dot(tl.load(x + at, mask=inside, other=0.0), w, a, input_precision=PRECISION)
        if POOL == 2:
            b = tl.dot(tl.load(x + at + CHANNELS, mask=inside, other=0.0), w, b, input_precision=PRECISION)
            c = tl.dot(tl.load(x + at + WIDE * CHANNELS, mask=inside, other=0.0), w, c, input_precision=PRECISION)
            d = tl.dot(tl.load(x + at + (WIDE + 1) * CHANNELS, mask=inside, other=0.0), w, d, input_precision=PRECISION)
    number = tl.zeros((M, N), tl.int32)
    if POOL == 2:
        better = (b > a) | (b != b)
        a, number = tl.where(better, b, a), tl.where(better, 1, number)
        better = (c > a) | (c != c)
        a, number = tl.where(better, c, a), tl.where(better, 2, number)
        better = (d > a) | (d != d)
        a, number = tl.where(better, d, a), tl.where(better, 3, number)
    if HAS_BIAS:
        a += tl.load(bias + client * OUTPUTS + o, mask=o < OUTPUTS, other=0.0)[None, :]
    if RELU:
        a = tl.where(a < 0, 0.0, a)
    stored = present & (o < OUTPUTS)[None, :]
    there = ((image * (ROWS + 2 * DOWN) + top + DOWN) * (COLUMNS + 2 * BESIDE) + left + BESIDE) * OUTPUTS
    tl.store(y + client * (BATCH * (ROWS + 2 * DOWN) * (COLUMNS + 2 * BESIDE) * OUTPUTS) + there[:, None] + o[None, :], a, mask=stored)
    tl.store(won + client * (COUNT * OUTPUTS) + row[:, None] * OUTPUTS + o[None, :], number.to(tl.int8), mask=stored)
