"""Residual networks: He et al., "Deep Residual Learning for Image Recognition" (2016), Table 1; SimProx judges itself on ResNet-18.

With the stem of 3x3 (for images of 32x32 pixels) there is no pool before the first stage. The stride of a bottleneck is in its 3x3
convolution, as in the published parameters of everyday use.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, max_pool2d

from coterie.models.layers import Norm, Stem, check_image_shape, make_convolution, make_norm, reshape_to_images

STAGES = (64, 128, 256, 512)  # channels
MIN_SIDE = 8  # pixels a side: three strides leave 1


class ResidualBlock(nn.Module):
    """Convolutions beside a shortcut: two of 3x3, or (deep) 1x1, 3x3 and 1x1 with four times the channels."""

    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm, *, deep: bool) -> None:
        super().__init__()
        shapes = [(1, 1), (3, stride), (1, 1)] if deep else [(3, stride), (3, 1)]
        widths = [inputs, channels, channels, 4 * channels] if deep else [inputs, channels, channels]
        self.convolutions = nn.ModuleList(make_convolution(widths[i], widths[i + 1], k, s) for i, (k, s) in enumerate(shapes))
        self.norms = nn.ModuleList(make_norm(norm, width) for width in widths[1:])
        self.shortcut: nn.Module | None = None
        if stride > 1 or inputs != widths[-1]:
            self.shortcut = nn.Sequential(make_convolution(inputs, widths[-1], 1, stride), make_norm(norm, widths[-1]))

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for i, (layer, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            h = norm(layer(h))
            h = h.relu() if i + 1 < len(self.convolutions) else h
        return (h + (x if self.shortcut is None else self.shortcut(x))).relu()


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, the mean over the image, and the logits."""

    def __init__(self, image: tuple[int, int, int], outputs: int, blocks: Sequence[int], stem: Stem, norm: Norm, *, deep: bool) -> None:
        super().__init__()
        self.image, self.pooled = image, stem == "imagenet"
        self.stem = make_convolution(image[0], STAGES[0], 7, 2) if self.pooled else make_convolution(image[0], STAGES[0], 3)
        self.norm = make_norm(norm, STAGES[0])
        stages, inputs = [], STAGES[0]
        for stage, (channels, count) in enumerate(zip(STAGES, blocks, strict=True)):
            for block in range(count):
                stages.append(ResidualBlock(inputs, channels, 2 if stage and not block else 1, norm, deep=deep))
                inputs = 4 * channels if deep else channels
        self.stages = nn.Sequential(*stages)
        self.logits = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.stem(reshape_to_images(x, self.image))).relu()
        h = max_pool2d(h, 3, 2, 1) if self.pooled else h
        logits: Tensor = self.logits(adaptive_avg_pool2d(self.stages(h), 1).flatten(1))
        return logits


def resnet18(_input_shape: tuple[int, ...], _outputs: int, stem: Stem = "cifar", norm: Norm = "batch") -> ResNet:
    """ResNet-18: 11,173,962 parameters for colour images of ten classes with the stem of 3x3."""
    return ResNet(check_image_shape("resnet18", _input_shape, MIN_SIDE), _outputs, (2, 2, 2, 2), stem, norm, deep=False)


def resnet50(_input_shape: tuple[int, ...], _outputs: int, stem: Stem = "imagenet", norm: Norm = "batch") -> ResNet:
    """ResNet-50: 25,557,032 parameters for colour images of a thousand classes."""
    return ResNet(check_image_shape("resnet50", _input_shape, MIN_SIDE), _outputs, (3, 4, 6, 3), stem, norm, deep=True)
