"""Initial values: Glorot uniform weights and zero biases, as in the TensorFlow originals of the papers.

The draws come from torch's global generator, which the caller forks and seeds: the same seed gives the same bits.
"""

from typing import TypeVar

from torch import Tensor, nn

Weighted = TypeVar("Weighted", nn.Linear, nn.Conv2d)


def glorot(layer: Weighted) -> Weighted:
    """Give the layer its initial values, and hand it back."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def glorot_limit(fan_in: int, fan_out: int) -> float:
    """The bound of Glorot's uniform distribution."""
    return float((6.0 / (fan_in + fan_out)) ** 0.5)


def fill_uniformly(tensor: Tensor, limit: float) -> Tensor:
    """Fill with draws from [-limit, limit]."""
    return nn.init.uniform_(tensor, -limit, limit)
