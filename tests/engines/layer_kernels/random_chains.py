"""Random chains of known layers: odd sides, windows of all shapes, with and without biases, pools and ReLUs."""

import numpy as np
import torch
from torch import nn

from engines.stacked.stacked_oracle import CLASSES

CASES = range(6)


def module_of(case: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    """The module of this number, and the shape of its samples."""
    draw = np.random.default_rng(case)
    channels, height, width = (int(number) for number in (draw.integers(1, 4), draw.integers(7, 15), draw.integers(7, 15)))
    shape, parts = (channels, height, width), list[nn.Module]()
    for _ in range(int(draw.integers(1, 3))):
        window = tuple(int(side) for side in draw.integers(1, 4, 2))
        padding = tuple(int(draw.integers(0, side)) for side in window)
        outputs = int(draw.choice([1, 5, 17, 33]))
        parts.append(nn.Conv2d(channels, outputs, window, padding=padding, bias=bool(draw.random() < 0.7)))  # type: ignore[arg-type]
        height, width = (side + 2 * pad - high + 1 for side, pad, high in zip((height, width), padding, window, strict=True))
        if draw.random() < 0.7:
            parts.append(nn.ReLU())
        if draw.random() < 0.6:
            parts.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        channels = outputs
    inputs = channels * height * width
    parts.append(nn.Flatten())
    for outputs in (int(number) for number in draw.integers(1, 70, int(draw.integers(0, 3)))):
        parts += [nn.Linear(inputs, outputs, bias=bool(draw.random() < 0.7)), nn.ReLU()]
        inputs = outputs
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case)
        module = nn.Sequential(*parts, nn.Linear(inputs, CLASSES))
        for weight in module.parameters():
            torch.nn.init.uniform_(weight, -0.3, 0.3)
    return module, shape
