"""Batch norm of images in channels-last order, with the addition and the ReLU that follow it: Triton kernels forward and backward.

An image tensor is rows (pixels of all images) x channels. Sums over rows are taken in parts, and the parts in a fixed order: how many there
are follows from the shape alone, so the bits are the same every time. Means are summed around themselves (Chan, Golub and LeVeque, 1983),
since the mean of squares less the squared mean loses the digits of a variance that is small beside the mean.
"""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

jit: Callable[[Callable[..., Any]], Any] = triton.jit
TILE, WARPS = 4096, 4  # numbers of a program's tile, and the warps that share it
PROGRAMS = 512  # programs that sum, about: a few for each processor of a large GPU
MOST_PARTS = 256
FEW_CHANNELS = 16  # a program's, where parts are put together


class Cut(NamedTuple):
    """How a tensor of rows x channels is cut."""

    rows: int
    channels: int
    wide: int  # channels of a tile
    high: int  # rows of a tile
    per: int  # rows of a part
    parts: int

    @classmethod
    def of(cls, x: Tensor) -> "Cut":
        rows, channels = x.numel() // x.shape[1], x.shape[1]
        wide = 64 if channels % 64 == 0 else 32
        high = TILE // wide
        across = triton.cdiv(channels, wide)
        parts = max(1, min(MOST_PARTS, triton.cdiv(PROGRAMS, across), triton.cdiv(rows, high)))
        per = triton.cdiv(triton.cdiv(rows, parts), high) * high
        return cls(rows, channels, wide, high, per, triton.cdiv(rows, per))

    @property
    def part_grid(self) -> tuple[int, int]:
        return triton.cdiv(self.channels, self.wide), self.parts

    @property
    def tile_grid(self) -> tuple[int, int]:
        return triton.cdiv(self.rows, self.high), triton.cdiv(self.channels, self.wide)

    @property
    def few_grid(self) -> tuple[int]:
        return (triton.cdiv(self.channels, FEW_CHANNELS),)


class Running(NamedTuple):
    """What a batch norm keeps: buffers that are written in place, and how."""

    mean: Tensor
    variance: Tensor
    counter: Tensor
    momentum: float
    epsilon: float


def normalize(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, running: Running, *, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of x, plus the residual, cut at zero; and by channel the mean and one over the deviation, for the way back."""
    cut, kind = Cut.of(x), _kind(weight)
    sums = weight.new_empty(2, cut.parts, cut.channels)
    moments = weight.new_empty(2, cut.channels)
    y = torch.empty_like(x)
    _sum_moments[cut.part_grid](
        x, sums[0], sums[1], cut.rows, cut.channels, cut.per, HIGH=cut.high, WIDE=cut.wide, KIND=kind, num_warps=WARPS
    )
    _join_moments[cut.few_grid](
        sums[0],
        sums[1],
        moments[0],
        moments[1],
        running.mean,
        running.variance,
        running.counter,
        cut.rows,
        cut.channels,
        cut.per,
        cut.parts,
        MOMENTUM=running.momentum,
        EPSILON=running.epsilon,
        PARTS=triton.next_power_of_2(cut.parts),
        WIDE=FEW_CHANNELS,
        KIND=kind,
    )
    _apply[cut.tile_grid](
        x,
        x if residual is None else residual,
        y,
        moments[0],
        moments[1],
        weight,
        bias,
        cut.rows,
        cut.channels,
        HIGH=cut.high,
        WIDE=cut.wide,
        RELU=relu,
        ADDS=residual is not None,
        KIND=kind,
        num_warps=WARPS,
    )
    return y, moments[0], moments[1]


def differentiate(
    dy: Tensor, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, *, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients by x, the residual, the weight and the bias.

    Args:
        dy: The gradient by what `normalize` gave.
        x: What was normalised.
        y: What `normalize` gave, where a residual was added before the ReLU; without one the ReLU's zeros follow from x.
        weight, bias: The norm's.
        mean, scale: What `normalize` found.
        relu: Whether it cut at zero.
    """
    cut, kind = Cut.of(x), _kind(weight)
    sums = weight.new_empty(2, cut.parts, cut.channels)
    slopes = weight.new_empty(2, cut.channels)
    dx = torch.empty_like(x)
    adds = relu and y is not None
    passed = torch.empty_like(x) if adds else dy  # the gradient behind the ReLU, which is the residual's
    _sum_slopes[cut.part_grid](
        dy,
        x,
        x if y is None else y,
        passed,
        mean,
        scale,
        weight,
        bias,
        sums[0],
        sums[1],
        cut.rows,
        cut.channels,
        cut.per,
        HIGH=cut.high,
        WIDE=cut.wide,
        RELU=relu,
        ADDS=adds,
        KIND=kind,
        num_warps=WARPS,
    )
    _join_slopes[cut.few_grid](
        sums[0],
        sums[1],
        slopes[0],
        slopes[1],
        cut.channels,
        cut.parts,
        PARTS=triton.next_power_of_2(cut.parts),
        WIDE=FEW_CHANNELS,
        KIND=kind,
    )
    _apply_slopes[cut.tile_grid](
        passed,
        x,
        dx,
        mean,
        scale,
        weight,
        bias,
        slopes[0],
        slopes[1],
        cut.rows,
        cut.channels,
        HIGH=cut.high,
        WIDE=cut.wide,
        RELU=relu and not adds,
        KIND=kind,
        num_warps=WARPS,
    )
    return dx, passed, slopes[1], slopes[0]


def _kind(weight: Tensor) -> Any:
    return tl.float64 if weight.dtype == torch.float64 else tl.float32


@jit
def _sum_moments(
    x: tl.tensor,
    means: tl.tensor,
    scatters: tl.tensor,
    rows: int,
    channels: int,
    per: int,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    """Of one part of the rows: the mean, and the sum of squares about it."""
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    part = tl.program_id(1)
    begin = part * per
    mean = tl.zeros((WIDE,), KIND)
    scatter = tl.zeros((WIDE,), KIND)
    for offset in range(0, per, HIGH):
        here = begin + offset
        row = here + tl.arange(0, HIGH)
        there = (row < rows)[:, None] & (channel < channels)[None, :]
        v = tl.load(x + row.to(tl.int64)[:, None] * channels + channel[None, :], mask=there, other=0.0).to(KIND)
        before = (tl.minimum(here, rows) - tl.minimum(begin, rows)).to(KIND)
        new = (tl.minimum(here + HIGH, rows) - tl.minimum(here, rows)).to(KIND)
        own = tl.sum(v, 0) / tl.maximum(new, 1.0)
        apart = tl.where(there, v - own[None, :], 0.0)
        share = new / tl.maximum(before + new, 1.0)
        delta = own - mean
        mean += delta * share
        scatter += tl.sum(apart * apart, 0) + delta * delta * (before * share)
    tl.store(means + part * channels + channel, mean, mask=channel < channels)
    tl.store(scatters + part * channels + channel, scatter, mask=channel < channels)


@jit
def _join_moments(
    means: tl.tensor,
    scatters: tl.tensor,
    mean: tl.tensor,
    scale: tl.tensor,
    running_mean: tl.tensor,
    running_variance: tl.tensor,
    counter: tl.tensor,
    rows: int,
    channels: int,
    per: int,
    parts: int,
    MOMENTUM: tl.constexpr,
    EPSILON: tl.constexpr,
    PARTS: tl.constexpr,
    WIDE: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    part = tl.arange(0, PARTS)
    there = (part < parts)[:, None] & (channel < channels)[None, :]
    place = part[:, None] * channels + channel[None, :]
    counts = (tl.minimum((part + 1) * per, rows) - tl.minimum(part * per, rows)).to(KIND)
    own = tl.load(means + place, mask=there, other=0.0)
    total = (tl.program_id(0) * 0 + rows).to(KIND)
    found = tl.sum(own * counts[:, None], 0) / total
    apart = own - found[None, :]
    scatter = tl.sum(tl.load(scatters + place, mask=there, other=0.0) + tl.where(there, counts[:, None] * apart * apart, 0.0), 0)
    inside = channel < channels
    tl.store(mean + channel, found, mask=inside)
    tl.store(scale + channel, 1.0 / tl.sqrt(scatter / total + EPSILON), mask=inside)
    old_mean = tl.load(running_mean + channel, mask=inside, other=0.0)
    old_variance = tl.load(running_variance + channel, mask=inside, other=0.0)
    tl.store(running_mean + channel, old_mean * (1 - MOMENTUM) + found * MOMENTUM, mask=inside)
    tl.store(running_variance + channel, old_variance * (1 - MOMENTUM) + scatter / (total - 1) * MOMENTUM, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(counter, tl.load(counter) + 1)


@jit
def _apply(
    x: tl.tensor,
    residual: tl.tensor,
    y: tl.tensor,
    mean: tl.tensor,
    scale: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    rows: int,
    channels: int,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    RELU: tl.constexpr,
    ADDS: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    row = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    channel = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    inside = channel < channels
    there = (row < rows)[:, None] & inside[None, :]
    place = row.to(tl.int64)[:, None] * channels + channel[None, :]
    middle, by = tl.load(mean + channel, mask=inside, other=0.0), tl.load(scale + channel, mask=inside, other=0.0)
    slope, level = tl.load(weight + channel, mask=inside, other=0.0), tl.load(bias + channel, mask=inside, other=0.0)
    v = (tl.load(x + place, mask=there, other=0.0).to(KIND) - middle[None, :]) * by[None, :] * slope[None, :] + level[None, :]
    if ADDS:
        v += tl.load(residual + place, mask=there, other=0.0).to(KIND)
    if RELU:
        v = tl.maximum(v, 0.0)
    tl.store(y + place, v.to(y.dtype.element_ty), mask=there)


@jit
def _sum_slopes(
    dy: tl.tensor,
    x: tl.tensor,
    y: tl.tensor,
    passed: tl.tensor,
    mean: tl.tensor,
    scale: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    plain: tl.tensor,
    scaled: tl.tensor,
    rows: int,
    channels: int,
    per: int,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    RELU: tl.constexpr,
    ADDS: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    """Of one part of the rows: the sum of the gradients behind the ReLU, and of their products with the normalised numbers."""
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    part = tl.program_id(1)
    inside = channel < channels
    middle, by = tl.load(mean + channel, mask=inside, other=0.0), tl.load(scale + channel, mask=inside, other=0.0)
    slope, level = tl.load(weight + channel, mask=inside, other=0.0), tl.load(bias + channel, mask=inside, other=0.0)
    sums = tl.zeros((WIDE,), KIND)
    products = tl.zeros((WIDE,), KIND)
    for offset in range(0, per, HIGH):
        row = part * per + offset + tl.arange(0, HIGH)
        there = (row < rows)[:, None] & inside[None, :]
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        g = tl.load(dy + place, mask=there, other=0.0).to(KIND)
        normal = (tl.load(x + place, mask=there, other=0.0).to(KIND) - middle[None, :]) * by[None, :]
        if ADDS:
            g = tl.where(tl.load(y + place, mask=there, other=0.0) > 0, g, 0.0)
            tl.store(passed + place, g.to(passed.dtype.element_ty), mask=there)
        elif RELU:
            g = tl.where(normal * slope[None, :] + level[None, :] > 0, g, 0.0)
        sums += tl.sum(g, 0)
        products += tl.sum(g * normal, 0)
    tl.store(plain + part * channels + channel, sums, mask=inside)
    tl.store(scaled + part * channels + channel, products, mask=inside)


@jit
def _join_slopes(
    plain: tl.tensor,
    scaled: tl.tensor,
    by_bias: tl.tensor,
    by_weight: tl.tensor,
    channels: int,
    parts: int,
    PARTS: tl.constexpr,
    WIDE: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    part = tl.arange(0, PARTS)
    there = (part < parts)[:, None] & (channel < channels)[None, :]
    place = part[:, None] * channels + channel[None, :]
    tl.store(by_bias + channel, tl.sum(tl.load(plain + place, mask=there, other=0.0), 0), mask=channel < channels)
    tl.store(by_weight + channel, tl.sum(tl.load(scaled + place, mask=there, other=0.0), 0), mask=channel < channels)


@jit
def _apply_slopes(
    dy: tl.tensor,
    x: tl.tensor,
    dx: tl.tensor,
    mean: tl.tensor,
    scale: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    by_bias: tl.tensor,
    by_weight: tl.tensor,
    rows: int,
    channels: int,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    RELU: tl.constexpr,
    KIND: tl.constexpr,
) -> None:
    row = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    channel = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    inside = channel < channels
    there = (row < rows)[:, None] & inside[None, :]
    place = row.to(tl.int64)[:, None] * channels + channel[None, :]
    middle, by = tl.load(mean + channel, mask=inside, other=0.0), tl.load(scale + channel, mask=inside, other=0.0)
    slope, level = tl.load(weight + channel, mask=inside, other=0.0), tl.load(bias + channel, mask=inside, other=0.0)
    total = (tl.program_id(0) * 0 + rows).to(KIND)
    sums = tl.load(by_bias + channel, mask=inside, other=0.0) / total
    products = tl.load(by_weight + channel, mask=inside, other=0.0) / total
    g = tl.load(dy + place, mask=there, other=0.0).to(KIND)
    normal = (tl.load(x + place, mask=there, other=0.0).to(KIND) - middle[None, :]) * by[None, :]
    if RELU:
        g = tl.where(normal * slope[None, :] + level[None, :] > 0, g, 0.0)
    found = (slope * by)[None, :] * (g - sums[None, :] - normal * products[None, :])
    tl.store(dx + place, found.to(dx.dtype.element_ty), mask=there)
