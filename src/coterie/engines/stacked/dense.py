"""Dense layers of many trainings: inputs (k, B, I), weights (k, O, I)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.engines.precision import Precision
from coterie.engines.stacked.kernels import kernels_for
from coterie.engines.stacked.layer import Descent, Stacked, StackedLayer

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
    first: bool = False  # nobody asks for its inputs' slopes
    after_relu: bool = False  # whether a ReLU made the inputs

    def arranged(self, name: str, rows: Tensor) -> Tensor:
        if name != self.weight or self.image is None:
            return rows
        return rows.view(len(rows), self.outputs, *self.image).permute(0, 1, 3, 4, 2).reshape(len(rows), -1)

    def restored(self, name: str, rows: Tensor) -> Tensor:
        if name != self.weight or self.image is None:
            return rows
        channels, height, width = self.image
        return rows.view(len(rows), self.outputs, height, width, channels).permute(0, 1, 4, 2, 3).reshape(len(rows), -1)

    def forward(self, own: Stacked, x: Tensor, precision: Precision) -> tuple[Tensor, Any]:
        x = x.reshape(*x.shape[:2], self.inputs)
        if (kernels := self._kernels(x)) is not None:
            y = kernels.dense_forward(x, own[self.weight], self._bias(own), self.outputs, relu=self.relu, precision=precision)
            return y, x
        weight = own[self.weight].view(-1, self.outputs, self.inputs)
        y = x @ weight.transpose(1, 2)
        if self.bias is not None:
            y += own[self.bias][:, None]
        return (y.relu_() if self.relu else y), x

    def backward(self, own: Stacked, kept: Any, slope: Tensor, descent: Descent, precision: Precision) -> Tensor | None:
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

    def _bias(self, own: Stacked) -> Tensor | None:
        return None if self.bias is None else own[self.bias]

    def _kernels(self, x: Tensor) -> Any:
        return kernels_for(x, "dense") if x.shape[1] <= WIDEST_BATCH else None
