"""Convolutions and dense layers of stacked clients as matrix products in the layout that suits them.

Mapped over clients, a convolution becomes one with as many channel groups as clients, and libraries are slow at that, above all in
their backward passes. Within `as_products` a plain 2-d convolution copies its windows side by side and becomes a matrix product for each
image instead: more memory (kernel height x width times the input), but the shape a GPU is built for. On the CPU it does not pay.
Dense layers are products already, but as PyTorch maps them a weight's gradient comes out transposed, and has to be copied.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from coterie.engines.vectorised.windows import Pair, Windows, columns, summed


class as_products(TorchFunctionMode):
    """Within the block, `conv2d` without channel groups or dilation is a matrix product, and `linear` has its weight on the left."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.linear:
            return _dense(*args, **(kwargs or {}))
        if func is torch.conv2d:
            call = _bind(*args, **(kwargs or {}))
            if call is not None:
                x, weight, bias, stride, padding = call
                out = _stacked(x[None], weight[None], stride, padding)[0][0]
                return out if bias is None else out + bias[:, None, None]
        return func(*args, **(kwargs or {}))


def _dense(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if input.ndim != 2:
        return functional.linear(input, weight, bias)
    out = (weight @ input.T).T
    return out if bias is None else out + bias


def _bind(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[Tensor, Tensor, Tensor | None, Pair, Pair] | None:
    """The call's settings in pairs, or None for a convolution that is better left alone."""
    if groups != 1 or _pair(dilation) != (1, 1) or input.ndim != 4:
        return None
    if padding == "same":
        if any(side % 2 == 0 for side in weight.shape[2:]):
            return None  # it would pad one side more than the other
        padding = [side // 2 for side in weight.shape[2:]]
    return input, weight, bias, _pair(stride), _pair(0 if padding == "valid" else padding)


def _pair(value: Any) -> Pair:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return (numbers[0], numbers[-1])


class _Stacked(torch.autograd.Function):
    """Convolutions of k clients at once: x (k, n, C, H, W) with weight (k, O, C, h, w) is (k, n, O, H', W').

    The columns are returned beside the result, to be kept for the backward pass. Mapping over clients makes the stack longer.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
        shape = Windows.of(x, weight, stride, padding)
        aside = columns(x.flatten(0, 1), shape).view(*x.shape[:2], -1, shape.rows * shape.across)  # (k, n, C h w, H' W')
        product = weight.flatten(2)[:, None] @ aside  # (k, n, O, H' W')
        return product.view(*product.shape[:3], shape.rows, shape.across), aside

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, stride, padding = inputs
        ctx.shape, ctx.images = Windows.of(x, weight, stride, padding), x.shape
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
        return summed(for_columns.flatten(0, 1), ctx.shape).view(ctx.images), for_weight, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Any:
        x, weight = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((x, weight), in_dims[:2], strict=True)
        )
        results = _stacked(x.flatten(0, 1), weight.flatten(0, 1), stride, padding)
        return tuple(result.view(info.batch_size, -1, *result.shape[1:]) for result in results), (0, 0)


_stacked: Callable[..., tuple[Tensor, Tensor]] = _Stacked.apply
