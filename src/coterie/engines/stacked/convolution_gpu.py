"""Convolutions of many trainings without columns, a kernel a file."""

from typing import TYPE_CHECKING

from torch import Tensor

from coterie.engines.precision import Precision
from coterie.engines.stacked.conv_below_gpu import by_inputs
from coterie.engines.stacked.conv_forward_gpu import conv_forward
from coterie.engines.stacked.conv_spread_gpu import spread_out
from coterie.engines.stacked.conv_weight_gpu import descend
from coterie.engines.stacked.layer import Descent, Stacked

if TYPE_CHECKING:
    from coterie.engines.stacked.convolution import ConvLayer

__all__ = ["conv_backward", "conv_forward"]


def conv_backward(
    layer: "ConvLayer", own: Stacked, x: Tensor, won: Tensor, slope: Tensor, descent: Descent, precision: Precision
) -> Tensor | None:
    """(k, B, H, W, C) the slope by the inputs, read off the old weights; then the step is taken."""
    whole = spread_out(layer, won, slope)
    below = None if layer.first else by_inputs(layer, own, x, whole, precision)
    descend(layer, own, x, whole, descent, precision)
    return below
