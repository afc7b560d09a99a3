"""The windows of a convolution: their shape, and copying them side by side and back."""

from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]


class Windows(NamedTuple):
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
    def of(cls, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> "Windows":
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


def columns(x: Tensor, windows: Windows) -> Tensor:
    """(n, C h w, H' W') from images (n, C, H, W)."""
    if x.is_cuda and _has_triton():
        from coterie.engines.vectorised import windows_gpu

        return windows_gpu.columns(x, windows)
    return functional.unfold(x, *windows.settings)


def summed(given: Tensor, windows: Windows) -> Tensor:
    """(n, C, H, W): every pixel the sum of its copies in the columns."""
    if given.is_cuda and _has_triton():
        from coterie.engines.vectorised import windows_gpu

        return windows_gpu.summed(given, windows)
    return functional.fold(given, (windows.height, windows.width), *windows.settings)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
