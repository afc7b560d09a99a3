"""Forward and backward of a ReLU network on one chunk of a batch, and the step of gradient descent, from the tiles.

Buffers are flat and padded (see `tiles`). A row of `plan` describes a layer by the columns below; activations and deltas share one
layout, of which layer l's outputs are the part at ACTS. A delta is the gradient of the batch's mean loss by a layer's outputs.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

from coterie.core.arrays import Floats, Ints
from coterie.engines.fused.cpu.primitives import copy
from coterie.engines.fused.cpu.tiles import (
    ADD,
    DESCEND,
    DESCEND_TO,
    DOT_ROWS,
    DOT_SAMPLES,
    STORE,
    SUM_ROWS,
    dots,
    softmax,
    sums,
)
from coterie.engines.fused.cpu.vectors import LANES, row_length

IN, OUT, WEIGHT, BIAS, FLAT, ACTS = range(6)  # inputs, outputs, places of weight and bias, place in the flat model, place of outputs
NONE, ONE, ZERO = cast(int, np.int64(0)), cast(int, np.int64(1)), np.float32(0)  # typed, as STORE and the like
PADDING = np.float32(-1e30)  # of the logits: a class that is not there
F = TypeVar("F", bound=Callable[..., Any])


def kernel_part(function: F) -> F:
    """Machine code without the GIL. Sums keep the order in which they are written, and NaN and infinity mean what they do elsewhere."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # only other kernels call it
    return cast(F, njit(nogil=True, error_model="numpy", fastmath={"contract"}, **options)(function))


padded = kernel_part(row_length)


@kernel_part
def dense(
    count: int, inputs: int, outputs: int, x: Floats, x_at: int, w: Floats, w_at: int, bias_at: int, out: Floats, out_at: int
) -> None:
    """out[s] = x[s] @ w.T + bias for `count` samples; the rows of a tile of w are read once for all samples."""
    stride, out_stride = padded(inputs), padded(outputs)
    row = 0
    while row < outputs:
        rows = DOT_ROWS if outputs - row >= DOT_ROWS else 1
        sample = 0
        while sample < count:
            samples = DOT_SAMPLES if count - sample >= DOT_SAMPLES else 1
            dots(
                samples, rows, stride // LANES, x, x_at + sample * stride, w, w_at + row * stride, stride,
                bias_at + row, out, out_at + sample * out_stride + row, out_stride,
            )  # fmt: skip
            sample += samples
        row += rows


@kernel_part
def combine(
    rows: int, length: int, terms: int, x: Floats, x_at: int, factors: Floats, factor_at: int, term_stride: int, row_stride: int,
    out: Floats, out_at: int, then: int, lr: np.float32, decay: np.float32, mu: np.float32, anchor: Floats,
) -> None:  # fmt: skip
    """g[r] = sum_t factors[t, r] * x[t] for all rows, and what `then` says of it (see `tiles.sums`)."""
    row, stride = 0, padded(length)
    while row < rows:
        strip = SUM_ROWS if rows - row >= SUM_ROWS else 1
        sums(
            strip, stride // LANES, terms, x, x_at, stride, factors, factor_at + row * row_stride, term_stride, row_stride,
            out, out_at + row * stride, then, lr, decay, mu, anchor,
        )  # fmt: skip
        row += strip


@kernel_part
def gather(x: Floats, samples: Ints, batch: Floats) -> None:
    """Copy the rows of a chunk to where the vector units can read them."""
    width = x.shape[1]
    for s in range(len(samples)):
        copy(x, samples[s] * width, batch, s * padded(width), width)


@kernel_part
def forward(plan: Ints, count: int, batch: Floats, weights: Floats, acts: Floats) -> None:
    """Logits, and on the way the hidden activations."""
    for layer in range(len(plan)):
        inputs, outputs, at = plan[layer, IN], plan[layer, OUT], plan[layer, ACTS]
        x, x_at = (batch, 0) if layer == 0 else (acts, plan[layer - 1, ACTS])
        dense(count, inputs, outputs, x, x_at, weights, plan[layer, WEIGHT], plan[layer, BIAS], acts, at)
        if layer < len(plan) - 1:
            hidden = acts[at : at + count * padded(outputs)]
            for j in range(len(hidden)):
                hidden[j] = ZERO if hidden[j] <= 0 else hidden[j]


@kernel_part
def output_deltas(classes: int, at: int, labels: Ints, samples: Ints, scale: np.float32, acts: Floats, deltas: Floats) -> None:
    """Softmax minus one at the label, over the size of the batch."""
    stride = padded(classes)
    for s in range(len(samples)):
        row = at + s * stride
        softmax(stride // LANES, acts, row, scale, deltas, row)
        deltas[row + labels[samples[s]]] -= scale


@kernel_part
def hidden_deltas(plan: Ints, layer: int, count: int, weights: Floats, acts: Floats, deltas: Floats) -> None:
    """Pull the deltas of a layer back to the one below it, before the layer's weights move."""
    inputs, outputs, source, target = plan[layer, IN], plan[layer, OUT], plan[layer, ACTS], plan[layer - 1, ACTS]
    size = count * padded(inputs)
    combine(
        count, inputs, outputs, weights, plan[layer, WEIGHT], deltas, source, ONE, padded(outputs),
        deltas, target, STORE, ZERO, ZERO, ZERO, deltas,
    )  # fmt: skip
    pulled, hidden = deltas[target : target + size], acts[target : target + size]
    for j in range(len(pulled)):
        pulled[j] = ZERO if hidden[j] <= 0 else pulled[j]


@kernel_part
def collect(
    plan: Ints, layer: int, count: int, batch: Floats, acts: Floats, deltas: Floats, ones: Floats, out: Floats, then: int,
    lr: np.float32, decay: np.float32, mu: np.float32, anchor: Floats,
) -> None:  # fmt: skip
    """The gradient of a layer's weight and bias over a chunk, and what `then` says of it (see `tiles.sums`)."""
    inputs, outputs, source = plan[layer, IN], plan[layer, OUT], plan[layer, ACTS]
    x, x_at = (batch, 0) if layer == 0 else (acts, plan[layer - 1, ACTS])
    combine(outputs, inputs, count, x, x_at, deltas, source, padded(outputs), ONE, out, plan[layer, WEIGHT], then, lr, decay, mu, anchor)
    combine(ONE, outputs, count, deltas, source, ones, NONE, NONE, NONE, out, plan[layer, BIAS], then, lr, decay, mu, anchor)


@kernel_part
def descend(
    weights: Floats, gradient: Floats, velocity: Floats, anchor: Floats, linear: Floats,
    lr: np.float32, momentum: np.float32, decay: np.float32, mu: np.float32,
) -> None:  # fmt: skip
    """The whole of torch.optim.SGD's step, where the gradient had to be kept."""
    if decay != 0 or mu != 0:
        for j in range(len(weights)):
            gradient[j] += decay * weights[j] + mu * (weights[j] - anchor[j])
    if len(linear):
        for j in range(len(weights)):
            gradient[j] += linear[j]
    if momentum != 0:
        for j in range(len(weights)):
            velocity[j] = momentum * velocity[j] + gradient[j]
            weights[j] -= lr * velocity[j]
    else:
        for j in range(len(weights)):
            weights[j] -= lr * gradient[j]


@kernel_part
def step(
    plan: Ints, x: Floats, y: Ints, samples: Ints, chunk: int, batch: Floats, acts: Floats, deltas: Floats, ones: Floats,
    weights: Floats, gradient: Floats, velocity: Floats, anchor: Floats, linear: Floats,
    lr: np.float32, momentum: np.float32, decay: np.float32, mu: np.float32,
) -> None:  # fmt: skip
    """One step on one batch. A batch of one chunk without momentum and linear terms moves the weights as it goes."""
    last, size = len(plan) - 1, len(samples)
    direct = size <= chunk and momentum == 0 and len(linear) == 0
    moving = DESCEND if decay == 0 and mu == 0 else DESCEND_TO
    for begin in range(0, size, chunk):
        part = samples[begin : begin + chunk]
        gather(x, part, batch)
        forward(plan, len(part), batch, weights, acts)
        output_deltas(plan[last, OUT], plan[last, ACTS], y, part, np.float32(1.0 / size), acts, deltas)
        then = moving if direct else (STORE if begin == 0 else ADD)
        for layer in range(last, -1, -1):
            if layer:
                hidden_deltas(plan, layer, len(part), weights, acts, deltas)
            collect(plan, layer, len(part), batch, acts, deltas, ones, weights if direct else gradient, then, lr, decay, mu, anchor)
    if not direct:
        descend(weights, gradient, velocity, anchor, linear, lr, momentum, decay, mu)
