"""Building blocks of image models: input shape, normalisation, convolutions and padding."""

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import pad

from coterie._util.errors import UserError

Norm = Literal["batch", "group"]
Stem = Literal["cifar", "imagenet"]
GROUPS = 32  # channels are divided into so many, as Wu and He (2018) have it


def check_image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """The shape as (C, H, W); a grey image may leave out its channel."""
    if len(shape) not in (2, 3):
        raise UserError(
            f"Model {model!r} needs images of shape (H, W) or (C, H, W), not samples of shape {shape}: reshape them or use mlp."
        )
    depth, height, width = shape if len(shape) == 3 else (1, *shape)
    if min(height, width) < smallest:
        hint = "put the channels first" if len(shape) == 3 and width < smallest <= min(depth, height) else "use mlp for smaller ones"
        raise UserError(f"Model {model!r} needs images of at least {smallest}x{smallest} pixels, not samples of shape {shape}: {hint}.")
    return depth, height, width


def make_norm(norm: Norm, channels: int) -> nn.Module:
    """Batch norm, or group norm, which has no statistics and does not mix samples."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(GROUPS, channels)


def make_convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without a bias (a normalisation follows it, or has gone before) that keeps the size but for its stride; He's values."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def reshape_to_images(x: Tensor, image: tuple[int, int, int]) -> Tensor:
    """(n, C, H, W), also from (n, H, W) and from flat rows."""
    return x.reshape(x.shape[0], *image)


class SamePaddedConv2d(nn.Conv2d):
    """A convolution with a stride whose zeros are as few as its output needs, and of an odd number one more after the image than before."""

    def forward(self, x: Tensor) -> Tensor:
        zeros: list[int] = []
        for side, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):  # the last side first
            needed = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            zeros += [needed // 2, needed - needed // 2]
        made: Tensor = self._conv_forward(pad(x, zeros), self.weight, self.bias)
        return made


def use_same_padding(module: nn.Module) -> None:
    """Let every convolution of a module that has a stride be padded so."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d) and max(part.stride) > 1:
            part.__class__, part.padding = SamePaddedConv2d, (0, 0)


def remove_logits(network: nn.Module) -> nn.Module:
    """The network up to its features."""
    network.logits = nn.Identity()
    return network
