"""EfficientNet-lite0: Tan and Le's EfficientNet-B0 (2019) without squeeze-and-excitation and with ReLU6, as released for small devices."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, relu6

from coterie._util.errors import UserError
from coterie.models.efficientnet_weights import loaded
from coterie.models.frozen import FrozenBody
from coterie.models.images import Stem, as_images, convolution, image_shape, padded_at_the_end, without_logits
from coterie.models.mlp import Mlp


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
ImageTrained = Literal["head", "all"]
TRAINED_EPSILON = 1e-3  # of batch norm, where the released weights were trained


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
        self.as_trained, self.told = False, f"stem={stem}"

    def as_released(self) -> None:
        """Compute as the network that was released did: it took pixels for (255 x - 127) / 128, had zeros of a stride at the end rather
        than around, and a larger epsilon in its batch norms."""
        self.as_trained = True
        padded_at_the_end(self)
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eps = TRAINED_EPSILON

    def forward(self, x: Tensor) -> Tensor:
        images = as_images(x, self.image)
        h = self.blocks(self.stem((255 * images - 127) / 128 if self.as_trained else images))
        h = relu6(self.last_norm(self.last(h)))
        logits: Tensor = self.logits(adaptive_avg_pool2d(h, 1).flatten(1))
        return logits


def efficientnet_lite0(
    _input_shape: tuple[int, ...], _outputs: int, stem: Stem = "cifar", weights: str = "", train: ImageTrained = "all"
) -> nn.Module:
    """EfficientNet-lite0: 4,652,008 parameters for colour images of a thousand classes; its released weights if a file of them is given."""
    image = image_shape("efficientnet_lite0", _input_shape, SMALLEST)
    if train == "head" and not weights:
        raise UserError("Model 'efficientnet_lite0': train=head freezes all other layers, which are random without weights=FILE: give one.")
    network = EfficientNetLite(image, _outputs, stem)
    if weights:
        if image[0] != 3:
            raise UserError(
                f"Model 'efficientnet_lite0': its weights are for images of three colours, not for samples of shape {_input_shape}."
            )
        network.as_released()
        if torch.get_default_device().type != "meta":
            loaded(network, weights)
    return FrozenBody(without_logits(network), Mlp((LAST, _outputs))) if train == "head" else network
