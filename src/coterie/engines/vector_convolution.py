"""Convolutions of stacked clients as matrix products.

Mapped over clients, a convolution becomes one with as many channel groups as clients, and libraries are slow at that, above all in
their backward passes. Within `as_products` a plain 2-d convolution copies its windows side by side and becomes one matrix product a
client instead: more memory (kernel height x width times the input), but the shape a GPU is built for. On the CPU it does not pay.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class as_products(TorchFunctionMode):
    """Within the block, `conv2d` without channel groups or dilation is a matrix product."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d:
            call = _bind(*args, **(kwargs or {}))
            if call is not None:
                return _product(*call)
        return func(*args, **(kwargs or {}))


def _bind(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, int], tuple[int, int]] | None:
    """The call's settings in pairs, or None for a convolution that is better left alone."""
    if groups != 1 or _pair(dilation) != (1, 1) or input.ndim != 4:
        return None
    if padding == "same":
        if any(side % 2 == 0 for side in weight.shape[2:]):
            return None  # it would pad one side more than the other
        padding = [side // 2 for side in weight.shape[2:]]
    return input, weight, bias, _pair(stride), _pair(0 if padding == "valid" else padding)


def _pair(value: Any) -> tuple[int, int]:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return (numbers[0], numbers[-1])


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    outputs, _, height, width = weight.shape
    padded = functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    windows = padded.unfold(2, height, stride[0]).unfold(3, width, stride[1])  # (n, C, H', W', height, width), a view
    n, _, rows, columns = windows.shape[:4]
    side_by_side = windows.permute(1, 4, 5, 0, 2, 3).reshape(weight[0].numel(), n * rows * columns)
    product = (weight.reshape(outputs, -1) @ side_by_side).reshape(outputs, n, rows, columns).transpose(0, 1)
    return product if bias is None else product + bias[:, None, None]
