"""EfficientNet-lite0: Tan and Le's EfficientNet-B0 (2019) without squeeze-and-excitation and with ReLU6, as released for small devices."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, relu6

from coterie.models.images import Stem, as_images, convolution, image_shape


class InvertedStage(NamedTuple):
    """Blocks of one shape, of which the first has the stride."""

    widen: int
    kernel: int
    stride: int
    channels: int
    blocks: int


STAGES = (
    InvertedStage(1, 3, 1, 16, 1),
    InvertedStage(6, 3, 2, 24, 2),
    InvertedStage(6, 5, 2, 40, 2),
    InvertedStage(6, 3, 2, 80, 3),
    InvertedStage(6, 5, 1, 112, 3),
    InvertedStage(6, 5, 2, 192, 4),
    InvertedStage(6, 3, 1, 320, 1),
)
FIRST, LAST = 32, 1280  # channels
SMALLEST = 8  # pixels a side


class Inverted(nn.Module):
    """1x1 to more channels, a convolution of each by itself, 1x1 back, beside a shortcut where nothing changes its shape."""

    def __init__(self, inputs: int, stage: InvertedStage, stride: int) -> None:
        super().__init__()
        inner = stage.widen * inputs
        self.short = stride == 1 and inputs == stage.channels
        self.wide: nn.Module | None = None
        if stage.widen > 1:
            self.wide = nn.Sequential(convolution(inputs, inner, 1), nn.BatchNorm2d(inner), nn.ReLU6())
        self.apart = nn.Sequential(convolution(inner, inner, stage.kernel, stride, groups=inner), nn.BatchNorm2d(inner), nn.ReLU6())
        self.narrow = nn.Sequential(convolution(inner, stage.channels, 1), nn.BatchNorm2d(stage.channels))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.narrow(self.apart(x if self.wide is None else self.wide(x)))
        return h + x if self.short else h


class EfficientNetLite(nn.Module):
    """A stem, seven stages of inverted blocks, 1,280 channels, the mean over the image, and the logits."""

    def __init__(self, image: tuple[int, int, int], outputs: int, stem: Stem) -> None:
        super().__init__()
        self.image, inputs = image, FIRST
        self.stem = nn.Sequential(convolution(image[0], FIRST, 3, 2 if stem == "imagenet" else 1), nn.BatchNorm2d(FIRST), nn.ReLU6())
        blocks = []
        for stage in STAGES:
            for block in range(stage.blocks):
                blocks.append(Inverted(inputs, stage, 1 if block else stage.stride))
                inputs = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.last, self.last_norm = convolution(inputs, LAST, 1), nn.BatchNorm2d(LAST)
        self.logits = nn.Linear(LAST, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.stem(as_images(x, self.image)))
        h = relu6(self.last_norm(self.last(h)))
        logits: Tensor = self.logits(adaptive_avg_pool2d(h, 1).flatten(1))
        return logits


def efficientnet_lite0(_input_shape: tuple[int, ...], _outputs: int, stem: Stem = "cifar") -> EfficientNetLite:
    """EfficientNet-lite0: 4,652,008 parameters for colour images of a thousand classes."""
    return EfficientNetLite(image_shape("efficientnet_lite0", _input_shape, SMALLEST), _outputs, stem)
