"""EfficientNet-lite0: Tan and Le's EfficientNet-B0 (2019) without squeeze-and-excitation and with ReLU6, as released for small devices.

Released weights are read from a file of tensors; none of its code is run.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, relu6

from coterie._util.errors import UserError
from coterie.models.layers import FrozenBody, Stem, check_image_shape, make_convolution, remove_logits, reshape_to_images, use_same_padding
from coterie.models.mlp import Mlp

TITLE = "Model 'efficientnet_lite0'"
TENSORS = 294  # without those of the thousand classes
THEIR_LOGITS = "_fc."
# in a block, and at the two ends, where the count of batch norms starts again
IN_BLOCK = {
    "_expand_conv": "wide.0",
    "_bn0": "wide.1",
    "_depthwise_conv": "apart.0",
    "_bn1": "apart.1",
    "_project_conv": "narrow.0",
    "_bn2": "narrow.1",
}
OUTSIDE = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "last", "_bn1": "last_norm"}
_NAME = re.compile(r"(?:_blocks\.(?P<block>\d+)\.)?(?P<layer>_\w+)\.(?P<tensor>\w+)")


def load_weights(network: nn.Module, file: str) -> None:
    """Give a network all its numbers but those of the logits, which are for classes of its own."""
    stored = read_released_weights(file)
    own = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("logits.")}
    wrong = sorted(own.keys() ^ stored.keys()) or [name for name in own if own[name].shape != stored[name].shape]
    if wrong or len(stored) != TENSORS:
        raise UserError(
            f"{TITLE}: {file!r} does not hold its {TENSORS} tensors ({wrong[0] if wrong else len(stored)}): fetch the weights again."
        )
    network.load_state_dict(stored, strict=False)


@lru_cache(maxsize=1)
def read_released_weights(file: str) -> dict[str, Tensor]:
    """By their names here, the tensors of a file."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(f"{TITLE}: there is no file {file!r} of weights: studies/fetch_efficientnet.py fetches one.")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
        return {_map_name(name): tensor for name, tensor in held.items() if not name.startswith(THEIR_LOGITS)}
    except Exception as error:  # whatever reading a file that is none may raise
        raise UserError(f"{TITLE}: {file!r} holds no weights that can be read: fetch them again.") from error


def _map_name(name: str) -> str:
    found = _NAME.fullmatch(name)
    if found is None:
        return name
    block, layer, tensor = found["block"], found["layer"], found["tensor"]
    if block is None:
        return f"{OUTSIDE.get(layer, layer)}.{tensor}"
    return f"blocks.{block}.{IN_BLOCK.get(layer, layer)}.{tensor}"


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
MIN_SIDE = 8  # pixels a side
ImageTrained = Literal["head", "all"]
TRAINED_EPSILON = 1e-3  # of batch norm, where the released weights were trained


class InvertedResidual(nn.Module):
    """1x1 to more channels, a convolution of each by itself, 1x1 back, beside a shortcut where nothing changes its shape."""

    def __init__(self, inputs: int, stage: InvertedStage, stride: int) -> None:
        super().__init__()
        inner = stage.widen * inputs
        self.short = stride == 1 and inputs == stage.channels
        self.wide: nn.Module | None = None
        if stage.widen > 1:
            self.wide = nn.Sequential(make_convolution(inputs, inner, 1), nn.BatchNorm2d(inner), nn.ReLU6())
        self.apart = nn.Sequential(make_convolution(inner, inner, stage.kernel, stride, groups=inner), nn.BatchNorm2d(inner), nn.ReLU6())
        self.narrow = nn.Sequential(make_convolution(inner, stage.channels, 1), nn.BatchNorm2d(stage.channels))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.narrow(self.apart(x if self.wide is None else self.wide(x)))
        return h + x if self.short else h


class EfficientNetLite(nn.Module):
    """A stem, seven stages of inverted blocks, 1,280 channels, the mean over the image, and the logits."""

    def __init__(self, image: tuple[int, int, int], outputs: int, stem: Stem) -> None:
        super().__init__()
        self.image, inputs = image, FIRST
        self.stem = nn.Sequential(make_convolution(image[0], FIRST, 3, 2 if stem == "imagenet" else 1), nn.BatchNorm2d(FIRST), nn.ReLU6())
        blocks = []
        for stage in STAGES:
            for block in range(stage.blocks):
                blocks.append(InvertedResidual(inputs, stage, 1 if block else stage.stride))
                inputs = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.last, self.last_norm = make_convolution(inputs, LAST, 1), nn.BatchNorm2d(LAST)
        self.logits = nn.Linear(LAST, outputs)
        self.as_trained, self.cache_key = False, f"stem={stem}"

    def use_released_settings(self) -> None:
        """Compute as the network that was released did: it took pixels for (255 x - 127) / 128, had zeros of a stride at the end rather
        than around, and a larger epsilon in its batch norms."""
        self.as_trained = True
        use_same_padding(self)
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eps = TRAINED_EPSILON

    def forward(self, x: Tensor) -> Tensor:
        images = reshape_to_images(x, self.image)
        h = self.blocks(self.stem((255 * images - 127) / 128 if self.as_trained else images))
        h = relu6(self.last_norm(self.last(h)))
        logits: Tensor = self.logits(adaptive_avg_pool2d(h, 1).flatten(1))
        return logits


def efficientnet_lite0(
    _input_shape: tuple[int, ...], _outputs: int, stem: Stem = "cifar", weights: str = "", train: ImageTrained = "all"
) -> nn.Module:
    """EfficientNet-lite0: 4,652,008 parameters for colour images of a thousand classes; its released weights if a file of them is given."""
    image = check_image_shape("efficientnet_lite0", _input_shape, MIN_SIDE)
    if train == "head" and not weights:
        raise UserError("Model 'efficientnet_lite0': train=head freezes all other layers, which are random without weights=FILE: give one.")
    network = EfficientNetLite(image, _outputs, stem)
    if weights:
        if image[0] != 3:
            raise UserError(
                f"Model 'efficientnet_lite0': its weights are for images of three colours, not for samples of shape {_input_shape}."
            )
        network.use_released_settings()
        if torch.get_default_device().type != "meta":
            load_weights(network, weights)
    return FrozenBody(remove_logits(network), Mlp((LAST, _outputs))) if train == "head" else network
