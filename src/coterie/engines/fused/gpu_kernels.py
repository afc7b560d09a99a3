"""Triton kernels: whole local trainings of softmax regressions and of ReLU networks, one program each.

All products are plain float32: Triton's default, TF32, keeps three digits. A softmax regression keeps weights and velocity on the chip; a
network keeps its weights in the device's memory (most of it in its cache) and works on SAMPLES of a batch at a time.
"""

# ruff: noqa: N803, N806 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

jit: Callable[[Callable[..., Any]], Any] = triton.jit


@jit
def _load_row(rows: tl.tensor, place: tl.tensor, end: tl.tensor) -> tl.tensor:
    """The row of x at a place of the stream, -1 past its end: what lies there is another client's."""
    return tl.load(rows + place, mask=place < end, other=-1).to(tl.int64)


@jit
def _load_sample(x: tl.tensor, row: tl.tensor, feature: tl.tensor, FEATURES: tl.constexpr) -> tl.tensor:
    """A sample, and a one that meets the bias."""
    values = tl.load(x + row * FEATURES + feature, mask=(feature < FEATURES) & (row >= 0), other=0.0)
    return tl.where(feature == FEATURES, 1.0, values)


@jit
def _compute_delta(logits: tl.tensor, label: tl.tensor, share: tl.tensor, column: tl.tensor, CLASSES: tl.constexpr) -> tl.tensor:
    """The gradient of the batch's mean loss by the logits of a sample, which has this share in the mean."""
    logits = tl.where(column < CLASSES, logits, float("-inf"))
    likely = tl.exp(logits - tl.max(logits, 0))
    likely *= 1.0 / tl.sum(likely, 0)  # one division, which is slow, for all classes
    return tl.where(column == label, likely - 1.0, likely) * share


@jit
def train_softmax(
    x: tl.tensor,
    rows: tl.tensor,
    labels: tl.tensor,
    weights: tl.tensor,
    velocity: tl.tensor,
    anchors: tl.tensor,
    linears: tl.tensor,
    integers: tl.tensor,
    reals: tl.tensor,
    FEATURES: tl.constexpr,
    CLASSES: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Training i by the i-th rows of the tables (see `gpu_tables`)."""
    i = tl.program_id(0)
    model = tl.load(integers + i * 7).to(tl.int64) * ((FEATURES + 1) * WIDTH)
    anchor = tl.load(integers + i * 7 + 1).to(tl.int64) * ((FEATURES + 1) * WIDTH)
    samples = tl.load(integers + i * 7 + 2)
    batch = tl.load(integers + i * 7 + 3)
    steps = tl.load(integers + i * 7 + 4)
    place = tl.load(integers + i * 7 + 5)
    end = tl.load(integers + i * 7 + 6)
    lr = tl.load(reals + i * 5)
    momentum = tl.load(reals + i * 5 + 1)
    decay = tl.load(reals + i * 5 + 2)
    mu = tl.load(reals + i * 5 + 3)
    has_linear = tl.load(reals + i * 5 + 4) != 0

    feature, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    here = feature[:, None] * WIDTH + column[None, :]
    inside = (feature <= FEATURES)[:, None] & (column >= 0)[None, :]
    w = tl.load(weights + model + here, mask=inside, other=0.0)
    g = tl.load(velocity + model + here, mask=inside & (momentum != 0), other=0.0)
    left = samples
    # Ahead of the sample at work: two samples, and the row of a third. The stream goes from batch to batch without a seam.
    sample = _load_sample(x, _load_row(rows, place, end), feature, FEATURES)
    second = _load_sample(x, _load_row(rows, place + 1, end), feature, FEATURES)
    row = _load_row(rows, place + 2, end)
    for _ in range(steps):
        size = tl.minimum(batch, left)
        share = 1.0 / size
        g = tl.where(momentum == 0, 0.0, momentum * g)
        for at in range(0, size):  # from 0: as range(place, place + size), Triton 3.6 made wrong batches from the second on
            third = _load_sample(x, row, feature, FEATURES)
            row = _load_row(rows, place + at + 3, end)
            logits = tl.sum(w * sample[:, None], 0)
            g += sample[:, None] * _compute_delta(logits, tl.load(labels + place + at), share, column, CLASSES)[None, :]
            sample = second
            second = third
        if mu != 0:
            g += mu * (w - tl.load(anchors + anchor + here, mask=inside, other=0.0))
        if has_linear:
            g += tl.load(linears + model + here, mask=inside, other=0.0)
        g += decay * w
        w -= lr * g
        place += size
        left = tl.where(left == size, samples, left - size)
    tl.store(weights + model + here, w, mask=inside)
    if momentum != 0:
        tl.store(velocity + model + here, g, mask=inside)


SAMPLES = 16  # of a batch, worked on together
TILE = 1 << 13  # numbers of a layer, worked on together
NETWORK_WARPS = 4


@jit
def _load_inputs(rows: tl.tensor, present: tl.tensor, place: tl.tensor, INPUTS: tl.constexpr) -> tl.tensor:
    """(samples, places) of what a layer is given, its last input the one that meets the bias."""
    value = tl.load(rows[:, None] + place[None, :], mask=present[:, None] & (place < INPUTS)[None, :], other=0.0)
    return tl.where((place == INPUTS)[None, :] & present[:, None], 1.0, value)


@jit
def _compute_sums(
    rows: tl.tensor,
    present: tl.tensor,
    weight: tl.tensor,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    B: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """(B, WIDTH): the inputs times the layer."""
    column = tl.arange(0, WIDTH)
    sums = tl.zeros((B, WIDTH), tl.float32)
    for begin in range(0, INPUTS + 1, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        value = _load_inputs(rows, present, place, INPUTS)
        w = tl.load(weight + place[:, None] * WIDTH + column[None, :], mask=(place <= INPUTS)[:, None], other=0.0)
        sums = tl.dot(value, w, sums, input_precision="ieee")
    return sums


@jit
def _store_hidden(values: tl.tensor, memory: tl.tensor, B: tl.constexpr, WIDTH: tl.constexpr) -> None:
    """Where other threads of the program can read them."""
    tl.store(memory + tl.arange(0, B)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :], values)


@jit
def _backpropagate(
    delta: tl.tensor,
    hidden: tl.tensor,
    weight: tl.tensor,
    INPUTS: tl.constexpr,
    IN_WIDTH: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """(B, IN_WIDTH): the delta of a layer's outputs taken back to its inputs, which a ReLU has made."""
    place, column = tl.arange(0, IN_WIDTH), tl.arange(0, WIDTH)
    w = tl.load(weight + place[:, None] * WIDTH + column[None, :], mask=(place < INPUTS)[:, None], other=0.0)
    return tl.where(hidden <= 0, 0.0, tl.dot(delta, tl.trans(w), input_precision="ieee"))


@jit
def _descend(
    rows: tl.tensor,
    present: tl.tensor,
    delta: tl.tensor,
    at: tl.tensor,
    weights: tl.tensor,
    velocity: tl.tensor,
    anchor: tl.tensor,
    linear: tl.tensor,
    has_linear: tl.tensor,
    first: tl.tensor,
    more: tl.tensor,
    lr: tl.tensor,
    momentum: tl.tensor,
    decay: tl.tensor,
    mu: tl.tensor,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add a part of a batch to the gradient of the layer that begins at `at`, and take the step if it is the batch's last part."""
    column = tl.arange(0, WIDTH)
    carried = tl.where(first, momentum, 1.0)
    for begin in range(0, INPUTS + 1, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        here = at + place[:, None] * WIDTH + column[None, :]
        inside = (place <= INPUTS)[:, None] & (column >= 0)[None, :]
        g = tl.dot(tl.trans(_load_inputs(rows, present, place, INPUTS)), delta, input_precision="ieee")
        if carried != 0:
            g += carried * tl.load(velocity + here, mask=inside, other=0.0)
        if more:
            tl.store(velocity + here, g, mask=inside)
        else:
            w = tl.load(weights + here, mask=inside, other=0.0)
            if mu != 0:
                g += mu * (w - tl.load(anchor + here, mask=inside, other=0.0))
            if has_linear:
                g += tl.load(linear + here, mask=inside, other=0.0)
            g += decay * w
            tl.store(weights + here, w - lr * g, mask=inside)
            if momentum != 0:
                tl.store(velocity + here, g, mask=inside)


@jit
def train_networks(
    x: tl.tensor,
    rows: tl.tensor,
    labels: tl.tensor,
    weights: tl.tensor,
    velocity: tl.tensor,
    anchors: tl.tensor,
    linears: tl.tensor,
    memory: tl.tensor,
    integers: tl.tensor,
    reals: tl.tensor,
    PACKED: tl.constexpr,
    INPUTS: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    CLASSES: tl.constexpr,
    FIRST_WIDTH: tl.constexpr,
    SECOND_WIDTH: tl.constexpr,
    CLASS_WIDTH: tl.constexpr,
    B: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Training i by the i-th rows of the tables (see `gpu_tables`)."""
    i = tl.program_id(0)
    model = tl.load(integers + i * 7).to(tl.int64) * PACKED
    anchor = anchors + tl.load(integers + i * 7 + 1).to(tl.int64) * PACKED
    samples = tl.load(integers + i * 7 + 2)
    batch = tl.load(integers + i * 7 + 3)
    steps = tl.load(integers + i * 7 + 4)
    place = tl.load(integers + i * 7 + 5)
    lr = tl.load(reals + i * 5)
    momentum = tl.load(reals + i * 5 + 1)
    decay = tl.load(reals + i * 5 + 2)
    mu = tl.load(reals + i * 5 + 3)
    has_linear = tl.load(reals + i * 5 + 4) != 0
    weights += model
    velocity += model
    linear = linears + model
    first_kept = memory + i.to(tl.int64) * B * (FIRST_WIDTH + SECOND_WIDTH)
    second_kept = first_kept + B * FIRST_WIDTH
    second_at: tl.constexpr = (INPUTS + 1) * FIRST_WIDTH
    third_at: tl.constexpr = second_at + (FIRST + 1) * SECOND_WIDTH if SECOND > 0 else second_at
    top_at: tl.constexpr = third_at if FIRST > 0 else 0
    TOP: tl.constexpr = SECOND if SECOND > 0 else (FIRST if FIRST > 0 else INPUTS)

    b, column = tl.arange(0, B), tl.arange(0, CLASS_WIDTH)
    left = samples
    for _ in range(steps):
        size = tl.minimum(batch, left)
        for at in range(0, size, B):
            begins, more = at == 0, at + B < size
            present = at + b < size
            row = tl.load(rows + place + at + b, mask=present, other=0).to(tl.int64)
            label = tl.load(labels + place + at + b, mask=present, other=0)
            below = x + row * INPUTS
            top = below
            if FIRST > 0:
                first = _compute_sums(below, present, weights, INPUTS, FIRST_WIDTH, B, BLOCK)
                first = tl.where(first < 0, 0.0, first)
                _store_hidden(first, first_kept, B, FIRST_WIDTH)
                tl.debug_barrier()
                top = first_kept + b * FIRST_WIDTH
            middle = top
            if SECOND > 0:
                second = _compute_sums(middle, present, weights + second_at, FIRST, SECOND_WIDTH, B, BLOCK)
                second = tl.where(second < 0, 0.0, second)
                _store_hidden(second, second_kept, B, SECOND_WIDTH)
                tl.debug_barrier()
                top = second_kept + b * SECOND_WIDTH
            logits = _compute_sums(top, present, weights + top_at, TOP, CLASS_WIDTH, B, BLOCK)
            logits = tl.where((column < CLASSES)[None, :], logits, float("-inf"))
            shares = tl.exp(logits - tl.max(logits, 1)[:, None])
            shares = shares / tl.sum(shares, 1)[:, None]
            delta = tl.where(column[None, :] == label[:, None], shares - 1.0, shares) / size
            delta = tl.where(present[:, None], delta, 0.0)

            if SECOND > 0:
                second_delta = _backpropagate(delta, second, weights + top_at, SECOND, SECOND_WIDTH, CLASS_WIDTH)
                first_delta = _backpropagate(second_delta, first, weights + second_at, FIRST, FIRST_WIDTH, SECOND_WIDTH)
            elif FIRST > 0:
                first_delta = _backpropagate(delta, first, weights + top_at, FIRST, FIRST_WIDTH, CLASS_WIDTH)
            tl.debug_barrier()  # the old weights have been read
            _descend(top, present, delta, top_at, weights, velocity, anchor, linear, has_linear, begins, more,
                     lr, momentum, decay, mu, TOP, CLASS_WIDTH, BLOCK)  # fmt: skip
            if SECOND > 0:
                _descend(middle, present, second_delta, second_at, weights, velocity, anchor, linear, has_linear, begins, more,
                         lr, momentum, decay, mu, FIRST, SECOND_WIDTH, BLOCK)  # fmt: skip
            if FIRST > 0:
                _descend(below, present, first_delta, 0, weights, velocity, anchor, linear, has_linear, begins, more,
                         lr, momentum, decay, mu, INPUTS, FIRST_WIDTH, BLOCK)  # fmt: skip
            tl.debug_barrier()  # the new weights have been written
        place += size
        left = tl.where(left == size, samples, left - size)
