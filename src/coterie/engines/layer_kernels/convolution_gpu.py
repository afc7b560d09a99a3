"""Convolutions of many trainings as Triton kernels without columns: forward, slopes by inputs, gradients by weights and the step.

Forward, pool and ReLU are taken before anything is stored, and only which place has won is kept. Backward, the slopes of pooled places are
spread out to where their pools were won, with a margin, so that the product with the weights is a convolution again, without a mask.
"""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.device import Precision
from coterie.engines.layer_kernels.common_gpu import TILING, add_terms, make_term_operands, round_to_power
from coterie.engines.layer_kernels.layers import Descent, StackedWeights

if TYPE_CHECKING:
    from coterie.engines.layer_kernels.layers import ConvLayer


jit: Callable[[Callable[..., Any]], Any] = triton.jit


def conv_forward(layer: "ConvLayer", own: StackedWeights, x: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
    """What the next layer reads (k, B, H', W', O), padded as it likes; and which place has won (k, B, H', W', O)."""
    k, batch = x.shape[:2]
    (rows, across), (down, beside) = layer.pooled, layer.margin
    make = x.new_zeros if down or beside else x.new_empty
    y = make(k, batch, rows + 2 * down, across + 2 * beside, layer.outputs)
    won = torch.empty((k, batch, rows, across, layer.outputs), dtype=torch.int8, device=x.device)
    tiles, count = TILING[precision].forward, batch * rows * across
    columns = min(tiles.columns, round_to_power(layer.outputs))
    blocks = triton.cdiv(count, tiles.rows)
    bias = own[layer.bias or layer.weight]
    _forward[(k * blocks, triton.cdiv(layer.outputs, columns))](
        x.contiguous(), own[layer.weight], bias, y, won, count, blocks, batch, *layer.padded, layer.channels, layer.window[1], layer.taps,
        layer.outputs, *layer.pooled, *layer.margin, layer.pool, layer.bias is not None, layer.relu,
        M=tiles.rows, N=columns, D=min(tiles.depth, round_to_power(layer.taps)), PRECISION=tiles.how,
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


BLOCK = 1024


def spread_slopes(layer: "ConvLayer", won: Tensor, slope: Tensor) -> Tensor:
    """(k, B, H, W, O) the slope by what the convolution gave, with the margin that a convolution back needs."""
    k, batch = won.shape[:2]
    reach = compute_reach(layer, 0), compute_reach(layer, 1)
    high, wide = (places + 2 * beyond for places, beyond in zip(layer.places, reach, strict=True))
    whole = slope.new_empty(k, batch, high, wide, layer.outputs)
    size = high * wide * layer.outputs
    blocks = triton.cdiv(size, BLOCK)
    _spread[(k * batch * blocks,)](
        slope.contiguous(), won, whole, blocks, high, wide, *reach, *layer.pooled, layer.outputs, layer.pool, BLOCK=BLOCK
    )  # fmt: skip
    return whole


def compute_reach(layer: "ConvLayer", side: int) -> int:
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
    """Every slope to the place that has won its pool, zero elsewhere."""
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


def compute_input_slopes(layer: "ConvLayer", own: StackedWeights, x: Tensor, whole: Tensor, precision: Precision) -> Tensor:
    """(k, B, H, W, C) the slope by the inputs."""
    k, batch = x.shape[:2]
    below = x.new_empty(k, batch, *layer.image, layer.channels)
    tiles, count = TILING[precision].below, batch * layer.image[0] * layer.image[1]
    columns = min(tiles.columns, round_to_power(layer.channels))
    blocks = triton.cdiv(count, tiles.rows)
    taps = layer.window[0] * layer.window[1]
    _below[(k * blocks, triton.cdiv(layer.channels, columns))](
        whole, own[layer.weight], x, below, count, blocks, batch, *whole.shape[2:4], *layer.padded, *layer.image, *layer.padding,
        layer.channels, layer.window[1], taps, layer.outputs, layer.after_relu,
        M=tiles.rows, N=columns, D=min(tiles.depth, round_to_power(taps * layer.outputs)), PRECISION=tiles.how,
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


LONGEST_SUM = 2048  # places that a program sums over when a weight's gradient has few tiles


def descend(layer: "ConvLayer", own: StackedWeights, x: Tensor, whole: Tensor, descent: Descent, precision: Precision) -> None:
    """Weights and biases go their step, or their gradients are stored."""
    k, batch = x.shape[:2]
    tiles, count = TILING[precision].weight, batch * layer.places[0] * layer.places[1]
    rows, columns = min(tiles.rows, round_to_power(layer.taps)), min(tiles.columns, round_to_power(layer.outputs))
    blocks = triton.cdiv(layer.taps, rows)
    parts = triton.cdiv(count, LONGEST_SUM) if blocks * triton.cdiv(layer.outputs, columns) < 4 else 1
    share = triton.cdiv(triton.cdiv(count, parts), tiles.depth) * tiles.depth
    whole_step = parts == 1 and descent.rates is not None
    weight, bias = own[layer.weight], own[layer.bias or layer.weight]
    into, bias_into = descent.into[layer.weight], descent.into[layer.bias or layer.weight]
    if parts > 1:
        into, bias_into = x.new_empty(k, parts, layer.taps * layer.outputs), x.new_empty(k, parts, layer.outputs)
    _weight[(k * blocks * parts, triton.cdiv(layer.outputs, columns))](
        x, whole, weight, bias, into, bias_into, *make_term_operands(layer, descent if whole_step else Descent(descent.into, None), into),
        count, blocks, parts, share, batch, *layer.padded, *layer.places, *whole.shape[2:4],
        compute_reach(layer, 0), compute_reach(layer, 1),
        layer.channels, layer.window[1], layer.taps, layer.outputs, layer.bias is not None, whole_step,
        M=rows, N=columns, D=tiles.depth, PRECISION=tiles.how, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if parts > 1:
        descent.down(layer.weight, into.sum(1))
        if layer.bias is not None:
            descent.down(layer.bias, bias_into.sum(1))


@jit
def _weight(
    x: tl.tensor,
    whole: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    into: tl.tensor,
    bias_into: tl.tensor,
    rates: tl.tensor,
    mus: tl.tensor,
    shifts: tl.tensor,
    decays: tl.tensor,
    anchor: tl.tensor,
    linear: tl.tensor,
    bias_anchor: tl.tensor,
    bias_linear: tl.tensor,
    PULLS: tl.constexpr,
    SHIFTS: tl.constexpr,
    DECAYS: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCKS: tl.constexpr,
    PARTS: tl.constexpr,
    SHARE: tl.constexpr,
    BATCH: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    S_HIGH: tl.constexpr,
    S_WIDE: tl.constexpr,
    DOWN: tl.constexpr,
    BESIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    ACROSS: tl.constexpr,
    TAPS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    STEPS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A tile of one training's weights: the sum over all places (or a part of them) of what lay under the window times the slope."""
    client = (tl.program_id(0) // (BLOCKS * PARTS)).to(tl.int64)
    part = tl.program_id(0) // BLOCKS % PARTS
    tap = tl.program_id(0) % BLOCKS * M + tl.arange(0, M)
    o = tl.program_id(1) * N + tl.arange(0, N)
    window = tap // CHANNELS
    under = (window // ACROSS * WIDE + window % ACROSS) * CHANNELS + tap % CHANNELS
    x += client * (BATCH * HIGH * WIDE * CHANNELS)
    whole += client * (BATCH * S_HIGH * S_WIDE * OUTPUTS)
    sums = tl.zeros((M, N), tl.float32)
    total = tl.zeros((N,), tl.float32)
    for begin in range(0, SHARE, D):
        row = part * SHARE + begin + tl.arange(0, D)
        image, place = row // (ROWS * COLUMNS), row % (ROWS * COLUMNS)
        top, left = place // COLUMNS, place % COLUMNS
        start = ((image * HIGH + top) * WIDE + left) * CHANNELS
        at = ((image * S_HIGH + top + DOWN) * S_WIDE + left + BESIDE) * OUTPUTS
        present = row < COUNT
        value = tl.load(x + under[:, None] + start[None, :], mask=(tap < TAPS)[:, None] & present[None, :], other=0.0)
        slope = tl.load(whole + at[:, None] + o[None, :], mask=present[:, None] & (o < OUTPUTS)[None, :], other=0.0)
        sums = tl.dot(value, slope, sums, input_precision=PRECISION)
        if HAS_BIAS:
            total += tl.sum(slope, 0)
    here = tap[:, None] * OUTPUTS + o[None, :]
    inside = (tap < TAPS)[:, None] & (o < OUTPUTS)[None, :]
    if STEPS:
        rate = tl.load(rates + client)
        mu = tl.load(mus + client) if PULLS else 0.0
        shifted = tl.load(shifts + client) if SHIFTS else 0.0
        decay = tl.load(decays + client) if DECAYS else 0.0
        first = client * (TAPS * OUTPUTS)
        w = tl.load(weight + first + here, mask=inside, other=0.0)
        sums = add_terms(sums, w, here, inside, anchor + first, linear + first, mu, shifted, decay, PULLS, SHIFTS, DECAYS)
        sums = w - rate * sums
    tl.store(into + (client * PARTS + part) * (TAPS * OUTPUTS) + here, sums, mask=inside)
    if HAS_BIAS and tl.program_id(0) % BLOCKS == 0:
        if STEPS:
            place, there = client * OUTPUTS + o, o < OUTPUTS
            old = tl.load(bias + place, mask=there, other=0.0)
            total = add_terms(total, old, place, there, bias_anchor, bias_linear, mu, shifted, decay, PULLS, SHIFTS, DECAYS)
            total = old - rate * total
        tl.store(bias_into + (client * PARTS + part) * OUTPUTS + o, total, mask=o < OUTPUTS)


def conv_backward(
    layer: "ConvLayer", own: StackedWeights, x: Tensor, won: Tensor, slope: Tensor, descent: Descent, precision: Precision
) -> Tensor | None:
    """(k, B, H, W, C) the slope by the inputs, read off the old weights; then the step is taken."""
    whole = spread_slopes(layer, won, slope)
    below = None if layer.first else compute_input_slopes(layer, own, x, whole, precision)
    descend(layer, own, x, whole, descent, precision)
    return below
