"""DenseNet-121: Huang et al., "Densely Connected Convolutional Networks" (2017), Table 1, with bottlenecks and halving transitions."""

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, max_pool2d

from coterie.models.images import Norm, Stem, as_images, convolution, image_shape, normalised

GROWTH, BLOCKS = 32, (6, 12, 24, 16)  # channels that a layer adds; layers of each block
SMALLEST = 32  # pixels a side: five halvings leave 1


class DenselyConnected(nn.Module):
    """Norm, ReLU and 1x1, then norm, ReLU and 3x3: what it finds is put beside what it was given."""

    def __init__(self, inputs: int, norm: Norm) -> None:
        super().__init__()
        self.first_norm, self.first = normalised(norm, inputs), convolution(inputs, 4 * GROWTH, 1)
        self.second_norm, self.second = normalised(norm, 4 * GROWTH), convolution(4 * GROWTH, GROWTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.first_norm(x).relu())
        return torch.cat([x, self.second(self.second_norm(h).relu())], dim=1)


class Transition(nn.Module):
    """Half the channels and half the side."""

    def __init__(self, inputs: int, norm: Norm) -> None:
        super().__init__()
        self.norm, self.halved = normalised(norm, inputs), convolution(inputs, inputs // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(self.halved(self.norm(x).relu()), 2)


class DenseNet(nn.Module):
    """A stem, dense blocks with transitions between them, the mean over the image, and the logits."""

    def __init__(self, image: tuple[int, int, int], outputs: int, stem: Stem, norm: Norm) -> None:
        super().__init__()
        self.image, self.pooled, channels = image, stem == "imagenet", 2 * GROWTH
        self.stem = convolution(image[0], channels, 7, 2) if self.pooled else convolution(image[0], channels, 3)
        self.norm = normalised(norm, channels)
        layers: list[nn.Module] = []
        for block, count in enumerate(BLOCKS):
            for _ in range(count):
                layers.append(DenselyConnected(channels, norm))
                channels += GROWTH
            if block + 1 < len(BLOCKS):
                layers.append(Transition(channels, norm))
                channels //= 2
        self.layers = nn.Sequential(*layers)
        self.last_norm, self.logits = normalised(norm, channels), nn.Linear(channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.stem(as_images(x, self.image))).relu()
        h = max_pool2d(h, 3, 2, 1) if self.pooled else h
        h = self.last_norm(self.layers(h)).relu()
        logits: Tensor = self.logits(adaptive_avg_pool2d(h, 1).flatten(1))
        return logits


def densenet121(_input_shape: tuple[int, ...], _outputs: int, stem: Stem = "cifar", norm: Norm = "batch") -> DenseNet:
    """DenseNet-121: 7,978,856 parameters for colour images of a thousand classes with the stem of 7x7."""
    smallest = SMALLEST if stem == "imagenet" else SMALLEST // 4
    return DenseNet(image_shape("densenet121", _input_shape, smallest), _outputs, stem, norm)
