"""Dense layers of many trainings in two Triton kernels, and the gradient of the batches' mean cross-entropy in one.

One kernel goes forward; the other goes back and takes the step, so that weights are read twice and written once.
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
    from coterie.engines.layer_kernels.layers import DenseLayer


jit: Callable[[Callable[..., Any]], Any] = triton.jit


def dense_forward(x: Tensor, weight: Tensor, bias: Tensor | None, outputs: int, *, relu: bool, precision: Precision) -> Tensor:
    """(k, B, O) from inputs (k, B, I)."""
    k, batch, inputs = x.shape
    y = x.new_empty(k, batch, outputs)
    tiles = TILING[precision].dense_forward
    columns = min(tiles.columns, round_to_power(outputs))
    blocks = triton.cdiv(outputs, columns)
    _forward[(k * blocks,)](
        x.contiguous(), weight, weight if bias is None else bias, y, batch, inputs, outputs, blocks, bias is not None, relu,
        B=round_to_power(batch), I=min(tiles.depth, round_to_power(inputs)), O=columns, PRECISION=tiles.how,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return y


def dense_backward(layer: "DenseLayer", own: StackedWeights, x: Tensor, slope: Tensor, descent: Descent, precision: Precision) -> Tensor:
    """(k, B, I) the slope by the inputs; the step is taken on the way."""
    k, batch, inputs = x.shape
    below = x.new_empty(0 if layer.first else k, batch, inputs)
    tiles = TILING[precision].dense_terms if descent.terms else TILING[precision].dense_backward
    columns = min(tiles.columns, round_to_power(inputs))
    blocks = triton.cdiv(inputs, columns)
    weight, bias = own[layer.weight], own[layer.bias or layer.weight]
    into, bias_into = descent.into[layer.weight], descent.into[layer.bias or layer.weight]
    _backward[(k * blocks,)](
        x.contiguous(), weight, bias, slope.contiguous(), below, into, bias_into, *make_term_operands(layer, descent, into),
        batch, inputs, layer.outputs, blocks, layer.bias is not None, not layer.first, layer.after_relu, descent.rates is not None,
        B=round_to_power(batch), I=columns, O=min(tiles.depth, round_to_power(layer.outputs)), PRECISION=tiles.how,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return below


@jit
def _forward(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    BATCH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCKS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    B: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    PRECISION: tl.constexpr,
) -> None:
    """A block of the outputs of one training."""
    client = (tl.program_id(0) // BLOCKS).to(tl.int64)
    b, o = tl.arange(0, B), tl.program_id(0) % BLOCKS * O + tl.arange(0, O)
    x += client * (BATCH * INPUTS)
    weight += client * (INPUTS * OUTPUTS)
    sums = tl.zeros((B, O), tl.float32)
    for begin in range(0, INPUTS, I):
        i = begin + tl.arange(0, I)
        value = tl.load(x + b[:, None] * INPUTS + i[None, :], mask=(b < BATCH)[:, None] & (i < INPUTS)[None, :], other=0.0)
        w = tl.load(weight + o[:, None] * INPUTS + i[None, :], mask=(o < OUTPUTS)[:, None] & (i < INPUTS)[None, :], other=0.0)
        sums = tl.dot(value, tl.trans(w), sums, input_precision=PRECISION)
    if HAS_BIAS:
        sums += tl.load(bias + client * OUTPUTS + o, mask=o < OUTPUTS, other=0.0)[None, :]
    if RELU:
        sums = tl.where(sums < 0, 0.0, sums)
    tl.store(y + client * (BATCH * OUTPUTS) + b[:, None] * OUTPUTS + o[None, :], sums, mask=(b < BATCH)[:, None] & (o < OUTPUTS)[None, :])


@jit
def _backward(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    slope: tl.tensor,
    below: tl.tensor,
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
    BATCH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCKS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BELOW: tl.constexpr,
    AFTER_RELU: tl.constexpr,
    STEPS: tl.constexpr,
    B: tl.constexpr,
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    PRECISION: tl.constexpr,
) -> None:
    """A block of the inputs of one training: nobody else reads or writes the weights that meet them."""
    client = (tl.program_id(0) // BLOCKS).to(tl.int64)
    block = tl.program_id(0) % BLOCKS
    b, i = tl.arange(0, B), block * I + tl.arange(0, I)
    here = (b < BATCH)[:, None] & (i < INPUTS)[None, :]
    value = tl.load(x + client * (BATCH * INPUTS) + b[:, None] * INPUTS + i[None, :], mask=here, other=0.0)
    weight += client * (INPUTS * OUTPUTS)
    into += client * (INPUTS * OUTPUTS)
    anchor += client * (INPUTS * OUTPUTS)
    linear += client * (INPUTS * OUTPUTS)
    rate = tl.load(rates + client) if STEPS else 0.0
    mu = tl.load(mus + client) if PULLS else 0.0
    shifted = tl.load(shifts + client) if SHIFTS else 0.0
    decay = tl.load(decays + client) if DECAYS else 0.0
    sums = tl.zeros((B, I), tl.float32)
    for begin in range(0, OUTPUTS, O):
        o = begin + tl.arange(0, O)
        delta = tl.load(
            slope + client * (BATCH * OUTPUTS) + b[:, None] * OUTPUTS + o[None, :],
            mask=(b < BATCH)[:, None] & (o < OUTPUTS)[None, :],
            other=0.0,
        )
        at = o[:, None] * INPUTS + i[None, :]
        inside = (o < OUTPUTS)[:, None] & (i < INPUTS)[None, :]
        gradient = tl.dot(tl.trans(delta), value, input_precision=PRECISION)
        if BELOW or STEPS:
            w = tl.load(weight + at, mask=inside, other=0.0)
            if BELOW:
                sums = tl.dot(delta, w, sums, input_precision=PRECISION)
            if STEPS:
                gradient = add_terms(gradient, w, at, inside, anchor, linear, mu, shifted, decay, PULLS, SHIFTS, DECAYS)
                gradient = w - rate * gradient
        tl.store(into + at, gradient, mask=inside)
        if HAS_BIAS and block == 0:
            total = tl.sum(delta, 0)
            if STEPS:
                place, there = client * OUTPUTS + o, o < OUTPUTS
                old = tl.load(bias + place, mask=there, other=0.0)
                total = add_terms(total, old, place, there, bias_anchor, bias_linear, mu, shifted, decay, PULLS, SHIFTS, DECAYS)
                total = old - rate * total
            tl.store(bias_into + client * OUTPUTS + o, total, mask=o < OUTPUTS)
    if BELOW:
        if AFTER_RELU:
            sums = tl.where(value <= 0, 0.0, sums)
        tl.store(below + client * (BATCH * INPUTS) + b[:, None] * INPUTS + i[None, :], sums, mask=here)


ROWS = 16


def slopes(outputs: Tensor, labels: Tensor, samples: Tensor, counts: Tensor) -> Tensor:
    """(k, B, C) from outputs (k, B, C); of the samples (k, B) the first counts (k,) are real."""
    k, batch, classes = outputs.shape
    found = torch.empty_like(outputs)
    _slopes[(triton.cdiv(k * batch, ROWS),)](
        outputs, labels, samples, counts, found, k * batch, batch, CLASSES=classes, WIDTH=triton.next_power_of_2(classes), ROWS=ROWS
    )
    return found


@jit
def _slopes(
    outputs: tl.tensor,
    labels: tl.tensor,
    samples: tl.tensor,
    counts: tl.tensor,
    found: tl.tensor,
    rows: tl.tensor,
    BATCH: tl.constexpr,
    CLASSES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Some samples of any trainings."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    present = row < rows
    count = tl.load(counts + row // BATCH, mask=present, other=1)
    sample = tl.load(samples + row, mask=present, other=0).to(tl.int64)
    label = tl.load(labels + sample, mask=present, other=0).to(tl.int32)
    inside = present[:, None] & (column < CLASSES)[None, :]
    at = row[:, None] * CLASSES + column[None, :]
    logits = tl.load(outputs + at, mask=inside, other=float("-inf"))
    logits = tl.where(present[:, None], logits, 0.0)
    likely = tl.exp(logits - tl.max(logits, 1)[:, None])
    likely = likely / tl.sum(likely, 1)[:, None]
    slope = tl.where(column[None, :] == label[:, None], likely - 1.0, likely) / count[:, None].to(tl.float32)
    slope = tl.where((row % BATCH < count)[:, None], slope, 0.0)
    tl.store(found + at, slope, mask=inside)
