"""Whole local trainings of a softmax regression, one program each, the weights and the velocity on the chip from first step to last.

The tile is (features, classes), classes fastest, so that a thread sums many features of a few classes by itself and the threads have
little to exchange. While a sample is worked on, the next one is being fetched. All in plain float32: TF32 would keep three digits.
"""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

jit: Callable[[Callable[..., Any]], Any] = triton.jit


@jit
def _row(rows: tl.tensor, place: tl.tensor, end: tl.tensor) -> tl.tensor:
    """The row of x at a place of the stream, -1 past its end: what lies there is another client's."""
    return tl.load(rows + place, mask=place < end, other=-1).to(tl.int64)


@jit
def _sample(x: tl.tensor, row: tl.tensor, feature: tl.tensor, FEATURES: tl.constexpr) -> tl.tensor:
    """A sample, and a one that meets the bias."""
    values = tl.load(x + row * FEATURES + feature, mask=(feature < FEATURES) & (row >= 0), other=0.0)
    return tl.where(feature == FEATURES, 1.0, values)


@jit
def _delta(logits: tl.tensor, label: tl.tensor, share: tl.tensor, column: tl.tensor, CLASSES: tl.constexpr) -> tl.tensor:
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
    sample = _sample(x, _row(rows, place, end), feature, FEATURES)
    second = _sample(x, _row(rows, place + 1, end), feature, FEATURES)
    row = _row(rows, place + 2, end)
    for _ in range(steps):
        size = tl.minimum(batch, left)
        share = 1.0 / size
        g = tl.where(momentum == 0, 0.0, momentum * g)
        for at in range(0, size):  # from nought: as range(place, place + size), Triton 3.6 made wrong batches from the second on
            third = _sample(x, row, feature, FEATURES)
            row = _row(rows, place + at + 3, end)
            logits = tl.sum(w * sample[:, None], 0)
            g += sample[:, None] * _delta(logits, tl.load(labels + place + at), share, column, CLASSES)[None, :]
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
