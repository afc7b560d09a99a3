"""Gradients of the weights of convolutions, and the step: every kernel reads the windows where they lie."""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.precision import Precision
from coterie.engines.stacked.conv_spread_gpu import reach
from coterie.engines.stacked.layer import Descent, Stacked
from coterie.engines.stacked.terms_gpu import term_operands, with_terms
from coterie.engines.stacked.tuning import TILING, power

if TYPE_CHECKING:
    from coterie.engines.stacked.convolution import ConvLayer

LONGEST_SUM = 2048  # places that a program sums over when a weight's gradient has few tiles
jit: Callable[[Callable[..., Any]], Any] = triton.jit


def descend(layer: "ConvLayer", own: Stacked, x: Tensor, whole: Tensor, descent: Descent, precision: Precision) -> None:
    """Weights and biases go their step, or their gradients are stored."""
    k, batch = x.shape[:2]
    tiles, count = TILING[precision].weight, batch * layer.places[0] * layer.places[1]
    rows, columns = min(tiles.rows, power(layer.taps)), min(tiles.columns, power(layer.outputs))
    blocks = triton.cdiv(layer.taps, rows)
    parts = triton.cdiv(count, LONGEST_SUM) if blocks * triton.cdiv(layer.outputs, columns) < 4 else 1
    share = triton.cdiv(triton.cdiv(count, parts), tiles.depth) * tiles.depth
    whole_step = parts == 1 and descent.rates is not None
    weight, bias = own[layer.weight], own[layer.bias or layer.weight]
    into, bias_into = descent.into[layer.weight], descent.into[layer.bias or layer.weight]
    if parts > 1:
        into, bias_into = x.new_empty(k, parts, layer.taps * layer.outputs), x.new_empty(k, parts, layer.outputs)
    _weight[(k * blocks * parts, triton.cdiv(layer.outputs, columns))](
        x, whole, weight, bias, into, bias_into, *term_operands(layer, descent if whole_step else Descent(descent.into, None), into),
        count, blocks, parts, share, batch, *layer.padded, *layer.places, *whole.shape[2:4], reach(layer, 0), reach(layer, 1),
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
        sums = with_terms(sums, w, here, inside, anchor + first, linear + first, mu, shifted, decay, PULLS, SHIFTS, DECAYS)
        sums = w - rate * sums
    tl.store(into + (client * PARTS + part) * (TAPS * OUTPUTS) + here, sums, mask=inside)
    if HAS_BIAS and tl.program_id(0) % BLOCKS == 0:
        if STEPS:
            place, there = client * OUTPUTS + o, o < OUTPUTS
            old = tl.load(bias + place, mask=there, other=0.0)
            total = with_terms(total, old, place, there, bias_anchor, bias_linear, mu, shifted, decay, PULLS, SHIFTS, DECAYS)
            total = old - rate * total
        tl.store(bias_into + (client * PARTS + part) * OUTPUTS + o, total, mask=o < OUTPUTS)
