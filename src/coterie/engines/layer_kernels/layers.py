"""Layers of many trainings at once, each with its weights' layout, forward pass, backward pass and step.

Dense layers take inputs (k, B, I) and weights (k, O, I). Convolutions take images (k, B, H, W, C), channels last and padded already, each
with its ReLU and max pool; their weights are kept as (k, h w C, O), taps first, so that a tile of them is in one piece. For float32 on a
GPU the Triton kernels of `{layer}_gpu` are used, elsewhere torch's own operations.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coterie.engines.device import Precision, has_triton
from coterie.engines.stacked.step import StepTerms


def load_kernels(x: Tensor, layer: str) -> Any:
    """The module with the layer's kernels for float32 on a GPU; None elsewhere, in float64 too, where torch's own operations do."""
    if x.dtype != torch.float32 or not x.is_cuda or not has_triton():
        return None
    return import_module(f"coterie.engines.layer_kernels.{layer}_gpu")


StackedWeights = Mapping[str, Tensor]  # (k, size) by name: the weights of k trainings, each layer's in the layout that it likes
NO_TERMS = StepTerms()


@dataclass(frozen=True)
class Descent:
    """Where gradients go: straight into the weights, `rates` (k, 1) times, or, without rates, beside them to be used later.

    With rates `terms` by name are added to the gradients; where there is none at all it is empty.
    """

    into: StackedWeights
    rates: Tensor | None
    terms: Mapping[str, StepTerms] = field(default_factory=dict)

    def get_terms(self, name: str) -> StepTerms:
        return self.terms.get(name, NO_TERMS)

    def down(self, name: str, gradient: Tensor) -> None:
        target = self.into[name]
        if self.rates is None:
            target.copy_(gradient.reshape(target.shape))
        else:
            target.addcmul_(self.get_terms(name).add_terms(gradient.reshape(target.shape), target), self.rates, value=-1)


class StackedLayer(ABC):
    """A layer of k trainings at once. Its weights in a stack are flat rows, in an order that it may choose."""

    weight: str
    bias: str | None

    def to_layer_order(self, name: str, rows: Tensor) -> Tensor:
        """(k, size) in the layer's own order, from the module's."""
        return rows

    def to_module_order(self, name: str, rows: Tensor) -> Tensor:
        """(k, size) in the module's order again."""
        return rows

    @abstractmethod
    def forward(self, own: StackedWeights, x: Tensor, precision: Precision) -> tuple[Tensor, Any]:
        """What leaves the layer, and what its way back needs."""

    @abstractmethod
    def backward(self, own: StackedWeights, kept: Any, slope: Tensor, descent: Descent, precision: Precision) -> Tensor | None:
        """Take the step, and give the slope by the inputs at the weights before it; None from the first layer, where it is not needed."""


def get_weight_names(layer: StackedLayer) -> list[str]:
    """The layer's weights, in the module's order."""
    return [layer.weight] if layer.bias is None else [layer.weight, layer.bias]


WIDEST_BATCH = 64  # samples that a kernel holds at a time; larger batches fill a library's products by themselves


@dataclass(frozen=True)
class DenseLayer(StackedLayer):
    """A linear layer, with a ReLU after it or not.

    After a convolution its inputs come with the channels last: `image` is what the module flattened, (C, H, W), and the weights are kept in
    that order.
    """

    weight: str
    bias: str | None
    inputs: int
    outputs: int
    relu: bool
    image: tuple[int, int, int] | None = None
    first: bool = False  # its inputs' slopes are not needed
    after_relu: bool = False  # whether a ReLU made the inputs

    def to_layer_order(self, name: str, rows: Tensor) -> Tensor:
        if name != self.weight or self.image is None:
            return rows
        return rows.view(len(rows), self.outputs, *self.image).permute(0, 1, 3, 4, 2).reshape(len(rows), -1)

    def to_module_order(self, name: str, rows: Tensor) -> Tensor:
        if name != self.weight or self.image is None:
            return rows
        channels, height, width = self.image
        return rows.view(len(rows), self.outputs, height, width, channels).permute(0, 1, 4, 2, 3).reshape(len(rows), -1)

    def forward(self, own: StackedWeights, x: Tensor, precision: Precision) -> tuple[Tensor, Any]:
        x = x.reshape(*x.shape[:2], self.inputs)
        if (kernels := self._kernels(x)) is not None:
            bias = None if self.bias is None else own[self.bias]
            y = kernels.dense_forward(x, own[self.weight], bias, self.outputs, relu=self.relu, precision=precision)
            return y, x
        weight = own[self.weight].view(-1, self.outputs, self.inputs)
        y = x @ weight.transpose(1, 2)
        if self.bias is not None:
            y += own[self.bias][:, None]
        return (y.relu_() if self.relu else y), x

    def backward(self, own: StackedWeights, kept: Any, slope: Tensor, descent: Descent, precision: Precision) -> Tensor | None:
        x: Tensor = kept
        if (kernels := self._kernels(x)) is not None:
            back: Tensor = kernels.dense_backward(self, own, x, slope, descent, precision)
            return None if self.first else back
        weight = own[self.weight].view(-1, self.outputs, self.inputs)
        below = None
        if not self.first:
            below = slope @ weight
            if self.after_relu:
                below.masked_fill_(x <= 0, 0)
        if descent.rates is None:
            torch.bmm(slope.transpose(1, 2), x, out=descent.into[self.weight].view(weight.shape))
        elif descent.terms:
            descent.down(self.weight, slope.transpose(1, 2) @ x)
        else:  # no gradient is stored
            torch.baddbmm(weight, (slope * descent.rates[:, None]).transpose(1, 2), x, alpha=-1, out=weight)
        if self.bias is not None:
            descent.down(self.bias, slope.sum(1))
        return below

    def _kernels(self, x: Tensor) -> Any:
        return load_kernels(x, "dense") if x.shape[1] <= WIDEST_BATCH else None


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

    def to_layer_order(self, name: str, rows: Tensor) -> Tensor:
        if name != self.weight:
            return rows
        return rows.view(len(rows), self.outputs, self.channels, *self.window).permute(0, 3, 4, 2, 1).reshape(len(rows), -1)

    def to_module_order(self, name: str, rows: Tensor) -> Tensor:
        if name != self.weight:
            return rows
        return rows.view(len(rows), *self.window, self.channels, self.outputs).permute(0, 4, 3, 1, 2).reshape(len(rows), -1)

    def forward(self, own: StackedWeights, x: Tensor, precision: Precision) -> tuple[Tensor, Any]:
        if (kernels := load_kernels(x, "convolution")) is not None:
            y, won = kernels.conv_forward(self, own, x, precision)
            return y, (x, won)
        sums = self._columns(x) @ own[self.weight].view(-1, self.taps, self.outputs)  # (k, B places, O)
        if self.bias is not None:
            sums += own[self.bias][:, None]
        best, won = self._pool(sums.view(*x.shape[:2], *self.places, self.outputs))
        best = best.relu_() if self.relu else best
        rows, across = self.margin
        return functional.pad(best, (0, 0, across, across, rows, rows)), (x, won)

    def backward(self, own: StackedWeights, kept: Any, slope: Tensor, descent: Descent, precision: Precision) -> Tensor | None:
        x, won = kept
        slope = slope.reshape(won.shape)
        if (kernels := load_kernels(x, "convolution")) is not None:
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
