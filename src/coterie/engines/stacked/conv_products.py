"""Convolutions and dense layers of stacked clients as matrix products in the layout that suits them.

Mapped over clients, a convolution becomes one with as many channel groups as clients, and libraries are slow at that, above all in their
backward passes. Within `ConvAsProducts` a plain 2-d convolution copies its windows side by side and becomes a matrix product for each
image: more memory (kernel height x width times the input), but the shape a GPU is built for. On the CPU it does not pay.
Dense layers are products already, but as PyTorch maps them a weight's gradient comes out transposed, and has to be copied.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Pair = tuple[int, int]


class ConvWindows(NamedTuple):
    """Windows that slide over images (n, channels, height, width)."""

    channels: int
    height: int
    width: int
    high: int  # of a window
    wide: int
    rows: int  # of places where a window can be
    across: int
    down: int  # from one place to the next
    right: int
    above: int  # padding
    beside: int

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> "ConvWindows":
        """For images (..., C, H, W) and weights (..., h, w)."""
        channels, height, width = x.shape[-3:]
        high, wide = weight.shape[-2:]
        rows, across = (
            (side + 2 * pad - window) // step + 1
            for side, pad, window, step in zip((height, width), padding, (high, wide), stride, strict=True)
        )
        return cls(channels, height, width, high, wide, rows, across, *stride, *padding)

    @property
    def settings(self) -> tuple[Pair, Pair, Pair, Pair]:
        """As PyTorch wants them: window, dilation, padding, stride."""
        return (self.high, self.wide), (1, 1), (self.above, self.beside), (self.down, self.right)


def unfold_windows(x: Tensor, windows: ConvWindows) -> Tensor:
    """(n, C h w, H' W') from images (n, C, H, W)."""
    if x.is_cuda and _has_triton():
        from coterie.engines.stacked import windows_gpu

        return windows_gpu.unfold_windows(x, windows)
    return functional.unfold(x, *windows.settings)


def fold_windows(given: Tensor, windows: ConvWindows) -> Tensor:
    """(n, C, H, W): every pixel the sum of its copies in the columns."""
    if given.is_cuda and _has_triton():
        from coterie.engines.stacked import windows_gpu

        return windows_gpu.fold_windows(given, windows)
    return functional.fold(given, (windows.height, windows.width), *windows.settings)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


class ConvAsProducts(TorchFunctionMode):
    """Within the block, `conv2d` without channel groups or dilation is a matrix product, and `linear` has its weight on the left."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.linear:
            return _apply_dense(*args, **(kwargs or {}))
        if func is torch.conv2d:
            call = _bind_conv(*args, **(kwargs or {}))
            if call is not None:
                x, weight, bias, stride, padding = call
                out = _apply_stacked_conv(x[None], weight[None], stride, padding)[0][0]
                return out if bias is None else out + bias[:, None, None]
        return func(*args, **(kwargs or {}))


def _apply_dense(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if input.ndim != 2:
        return functional.linear(input, weight, bias)
    out = (weight @ input.T).T
    return out if bias is None else out + bias


def _bind_conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[Tensor, Tensor, Tensor | None, Pair, Pair] | None:
    """The call's settings in pairs, or None for a convolution that is better left alone."""
    if groups != 1 or _to_pair(dilation) != (1, 1) or input.ndim != 4:
        return None
    if padding == "same":
        if any(side % 2 == 0 for side in weight.shape[2:]):
            return None  # it would pad one side more than the other
        padding = [side // 2 for side in weight.shape[2:]]
    return input, weight, bias, _to_pair(stride), _to_pair(0 if padding == "valid" else padding)


def _to_pair(value: Any) -> Pair:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return (numbers[0], numbers[-1])


class _StackedConv(torch.autograd.Function):
    """Convolutions of k clients at once: x (k, n, C, H, W) with weight (k, O, C, h, w) is (k, n, O, H', W').

    The columns are returned beside the result, to be kept for the backward pass. Mapping over clients makes the stack longer.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
        shape = ConvWindows.of(x, weight, stride, padding)
        aside = unfold_windows(x.flatten(0, 1), shape).view(*x.shape[:2], -1, shape.rows * shape.across)  # (k, n, C h w, H' W')
        product = weight.flatten(2)[:, None] @ aside  # (k, n, O, H' W')
        return product.view(*product.shape[:3], shape.rows, shape.across), aside

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, stride, padding = inputs
        ctx.shape, ctx.images = ConvWindows.of(x, weight, stride, padding), x.shape
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _aside: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        weight, aside = ctx.saved_tensors
        by_place = gradient.flatten(3)  # (k, n, O, H' W')
        for_weight = (by_place @ aside.transpose(2, 3)).sum(1).view(weight.shape)
        if not ctx.needs_input_grad[0]:
            return None, for_weight, None, None
        for_columns = weight.flatten(2)[:, None].transpose(2, 3) @ by_place
        return fold_windows(for_columns.flatten(0, 1), ctx.shape).view(ctx.images), for_weight, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Any:
        x, weight = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, weight), in_dims[:2], strict=True)
        )
        results = _apply_stacked_conv(x.flatten(0, 1), weight.flatten(0, 1), stride, padding)
        return tuple(result.view(info.batch_size, -1, *result.shape[1:]) for result in results), (0, 0)


_apply_stacked_conv: Callable[..., tuple[Tensor, Tensor]] = _StackedConv.apply
