"""Convolutional models for images: McMahan's, which FedEx uses, and FedSim's two readings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from coterie._util.errors import UserError, suggest_names
from coterie.models.layers import check_image_shape, initialise_glorot, reshape_to_images

MIN_SIDE = 8  # pixels a side: two pools leave 2, and a 5x5 kernel still sees more image than padding


@dataclass(frozen=True)
class Architecture:
    """What sets the published networks apart; all are conv-pool-conv-pool-dense-dense."""

    kernel: int
    channels: tuple[int, int]
    dense: int


ARCHITECTURES: Mapping[str, Architecture] = {
    "mcmahan": Architecture(kernel=5, channels=(32, 64), dense=512),  # 1,663,370 parameters on 28x28 with 10 classes
    "fedsim": Architecture(kernel=5, channels=(32, 64), dense=2048),  # the released code
    "fedsim_table": Architecture(kernel=3, channels=(64, 64), dense=2048),  # Table 5 as printed
}


class Cnn(nn.Module):
    """Two convolutions, each with ReLU and a 2x2 max pool, then a dense layer with ReLU and the logits.

    The convolutions keep the image's size (McMahan's parameter count implies it); a pool of an odd side drops the last row or column.
    """

    def __init__(self, image: tuple[int, int, int], outputs: int, architecture: Architecture) -> None:
        super().__init__()
        self.image = image  # (C, H, W)
        depth, height, width = image
        first, second = architecture.channels
        margin = architecture.kernel // 2
        self.first = initialise_glorot(nn.Conv2d(depth, first, architecture.kernel, padding=margin))
        self.second = initialise_glorot(nn.Conv2d(first, second, architecture.kernel, padding=margin))
        self.dense = initialise_glorot(nn.Linear(second * (height // 4) * (width // 4), architecture.dense))
        self.logits = initialise_glorot(nn.Linear(architecture.dense, outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = reshape_to_images(x, self.image)
        h = max_pool2d(self.first(h).relu(), 2)
        h = max_pool2d(self.second(h).relu(), 2)
        h = self.dense(h.flatten(1)).relu()
        logits: Tensor = self.logits(h)  # (n, outputs)
        return logits


def cnn(_input_shape: tuple[int, ...], _outputs: int, variant: Literal["mcmahan", "fedsim", "fedsim_table"] = "mcmahan") -> Cnn:
    """Two convolutions with pools and a dense layer, for images (H, W) or (C, H, W)."""
    if variant not in ARCHITECTURES:
        raise UserError(f"Model 'cnn': variant={variant!r} is not known: {suggest_names(str(variant), ARCHITECTURES)}")
    return Cnn(check_image_shape("cnn", _input_shape, MIN_SIDE), _outputs, ARCHITECTURES[variant])
