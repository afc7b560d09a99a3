"""Convolutions of many trainings, each with its ReLU and max pool: images (k, B, H, W, C), channels last and padded already.

Weights are kept as (k, h w C, O), taps first, so that a tile of them is in one piece.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coterie.engines.precision import Precision
from coterie.engines.stacked.kernels import kernels_for
from coterie.engines.stacked.layer import Descent, Stacked, StackedLayer

Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvLayer(StackedLayer):
    """A convolution of stride one, ReLU or not, and a pool of `pool` x `pool` (1: none).

    `margin` is the padding that the next layer wants.
    """

    weight: str
    bias: str | None
    channels: int
    outputs: int
    window: Pair
    image: Pair  # height and width without the padding
    padding: Pair
    pool: int
    relu: bool
    margin: Pair = (0, 0)
    first: bool = False
    after_relu: bool = False

    @property
    def padded(self) -> Pair:
        return self.image[0] + 2 * self.padding[0], self.image[1] + 2 * self.padding[1]

    @property
    def places(self) -> Pair:
        """Where a window can be."""
        return self.padded[0] - self.window[0] + 1, self.padded[1] - self.window[1] + 1

    @property
    def pooled(self) -> Pair:
        return self.places[0] // self.pool, self.places[1] // self.pool

    @property
    def taps(self) -> int:
        """Numbers of the image under a window."""
        return self.window[0] * self.window[1] * self.channels

    def arranged(self, name: str, rows: Tensor) -> Tensor:
        if name != self.weight:
            return rows
        return rows.view(len(rows), self.outputs, self.channels, *self.window).permute(0, 3, 4, 2, 1).reshape(len(rows), -1)

    def restored(self, name: str, rows: Tensor) -> Tensor:
        if name != self.weight:
            return rows
        return rows.view(len(rows), *self.window, self.channels, self.outputs).permute(0, 4, 3, 1, 2).reshape(len(rows), -1)

    def forward(self, own: Stacked, x: Tensor, precision: Precision) -> tuple[Tensor, Any]:
        if (kernels := kernels_for(x, "convolution")) is not None:
            y, won = kernels.conv_forward(self, own, x, precision)
            return y, (x, won)
        sums = self._columns(x) @ own[self.weight].view(-1, self.taps, self.outputs)  # (k, B places, O)
        if self.bias is not None:
            sums += own[self.bias][:, None]
        best, won = self._pool(sums.view(*x.shape[:2], *self.places, self.outputs))
        best = best.relu_() if self.relu else best
        rows, across = self.margin
        return functional.pad(best, (0, 0, across, across, rows, rows)), (x, won)

    def backward(self, own: Stacked, kept: Any, slope: Tensor, descent: Descent, precision: Precision) -> Tensor | None:
        x, won = kept
        slope = slope.reshape(won.shape)
        if (kernels := kernels_for(x, "convolution")) is not None:
            back: Tensor | None = kernels.conv_backward(self, own, x, won, slope, descent, precision)
            return back
        whole = slope.new_zeros(*x.shape[:2], *self.places, self.outputs)
        for number, view in enumerate(self._views(whole)):
            view.copy_(torch.where(won == number, slope, 0))
        flat = whole.flatten(1, 3)  # (k, B places, O)
        weight = own[self.weight].view(-1, self.taps, self.outputs)
        below = None if self.first else self._below(flat @ weight.transpose(1, 2), x)
        descent.down(self.weight, self._columns(x).transpose(1, 2) @ flat)
        if self.bias is not None:
            descent.down(self.bias, flat.sum(1))
        return below

    def _columns(self, x: Tensor) -> Tensor:
        """(k, B places, h w C): the windows side by side."""
        windows = x.unfold(2, self.window[0], 1).unfold(3, self.window[1], 1)  # (k, B, rows, across, C, h, w)
        return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, self.taps)

    def _views(self, sums: Tensor) -> list[Tensor]:
        """What meets in a pool: the first of every pool's places, the second, ..."""
        rows, across = (side * self.pool for side in self.pooled)
        return [sums[:, :, i : rows : self.pool, j : across : self.pool] for i in range(self.pool) for j in range(self.pool)]

    def _pool(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The largest of every pool, and which place it has: the first of equals, as torch has it."""
        best, *others = self._views(sums)
        best, won = best.clone(), torch.zeros(best.shape, dtype=torch.int8, device=sums.device)
        for number, other in enumerate(others, start=1):
            better = (other > best) | other.isnan()
            best, won = torch.where(better, other, best), won.masked_fill_(better, number)
        return best, won

    def _below(self, columns: Tensor, x: Tensor) -> Tensor:
        """Every pixel the sum of its copies in the columns; without the padding."""
        (rows, across), (down, beside) = self.places, self.padding
        taps = columns.view(*x.shape[:2], rows, across, *self.window, self.channels)
        whole = torch.zeros_like(x)
        for i in range(self.window[0]):
            for j in range(self.window[1]):
                whole[:, :, i : i + rows, j : j + across] += taps[:, :, :, :, i, j]
        inner = (slice(None), slice(None), slice(down, down + self.image[0]), slice(beside, beside + self.image[1]))
        below = whole[inner].contiguous()
        return below.masked_fill_(x[inner] <= 0, 0) if self.after_relu else below
