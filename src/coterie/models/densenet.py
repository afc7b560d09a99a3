"""DenseNet-121: Huang et al., "Densely Connected Convolutional Networks" (2017), Table 1, with bottlenecks and halving transitions."""

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, max_pool2d

from coterie.models.layers import Norm, Stem, check_image_shape, make_convolution, make_norm, reshape_to_images

GROWTH, BLOCKS = 32, (6, 12, 24, 16)  # channels that a layer adds; layers of each block
MIN_SIDE = 32  # pixels a side: five halvings leave 1


class DenseLayer(nn.Module):
    """Norm, ReLU and 1x1, then norm, ReLU and 3x3: what it finds is put beside what it was given."""

    def __init__(self, inputs: int, norm: Norm) -> None:
        super().__init__()
        self.first_norm, self.first = make_norm(norm, inputs), make_convolution(inputs, 4 * GROWTH, 1)
        self.second_norm, self.second = make_norm(norm, 4 * GROWTH), make_convolution(4 * GROWTH, GROWTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.first_norm(x).relu())
        return torch.cat([x, self.second(self.second_norm(h).relu())], dim=1)


class Transition(nn.Module):
    """Half the channels and half the side."""

    def __init__(self, inputs: int, norm: Norm) -> None:
        super().__init__()
        self.norm, self.halved = make_norm(norm, inputs), make_convolution(inputs, inputs // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(self.halved(self.norm(x).relu()), 2)


class DenseNet(nn.Module):
    """A stem, dense blocks with transitions between them, the mean over the image, and the logits."""

    def __init__(self, image: tuple[int, int, int], outputs: int, stem: Stem, norm: Norm) -> None:
        super().__init__()
        self.image, self.pooled, channels = image, stem == "imagenet", 2 * GROWTH
        self.stem = make_convolution(image[0], channels, 7, 2) if self.pooled else make_convolution(image[0], channels, 3)
        self.norm = make_norm(norm, channels)
        layers: list[nn.Module] = []
        for block, count in enumerate(BLOCKS):
            for _ in range(count):
                layers.append(DenseLayer(channels, norm))
                channels += GROWTH
            if block + 1 < len(BLOCKS):
                layers.append(Transition(channels, norm))
                channels //= 2
        self.layers = nn.Sequential(*layers)
        self.last_norm, self.logits = make_norm(norm, channels), nn.Linear(channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.stem(reshape_to_images(x, self.image))).relu()
        h = max_pool2d(h, 3, 2, 1) if self.pooled else h
        h = self.last_norm(self.layers(h)).relu()
        logits: Tensor = self.logits(adaptive_avg_pool2d(h, 1).flatten(1))
        return logits


def densenet121(_input_shape: tuple[int, ...], _outputs: int, stem: Stem = "cifar", norm: Norm = "batch") -> DenseNet:
    """DenseNet-121: 7,978,856 parameters for colour images of a thousand classes with the stem of 7x7."""
    smallest = MIN_SIDE if stem == "imagenet" else MIN_SIDE // 4
    return DenseNet(check_image_shape("densenet121", _input_shape, smallest), _outputs, stem, norm)
