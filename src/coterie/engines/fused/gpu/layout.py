"""Models as the GPU kernels hold them, and back.

A layer is a matrix (inputs + 1, width): its last row is the bias, met by an input that is always one, so that a step treats it like any
weight; its columns are the outputs, with noughts up to a power of two.
"""

from itertools import pairwise

import torch

NARROWEST = 16  # what a product of tiles takes at least


def width(outputs: int) -> int:
    """The columns of a layer: the outputs, rounded up to a power of two."""
    return max(NARROWEST, 1 << (outputs - 1).bit_length())


def packed(sizes: tuple[int, ...]) -> int:
    """The length of a model in this layout."""
    return sum((inputs + 1) * width(outputs) for inputs, outputs in pairwise(sizes))


def pack(sizes: tuple[int, ...], flat: torch.Tensor) -> torch.Tensor:
    """(k, d) flat models to (k, `packed`)."""
    out = flat.new_zeros((len(flat), packed(sizes)))
    for (weight, bias), layer in zip(_flat_layers(sizes, flat), _packed_layers(sizes, out), strict=True):
        layer[:, :-1, : weight.shape[1]] = weight.transpose(1, 2)
        layer[:, -1, : weight.shape[1]] = bias
    return out


def unpack(sizes: tuple[int, ...], models: torch.Tensor) -> torch.Tensor:
    """(k, `packed`) to (k, d) flat models."""
    out = models.new_empty((len(models), sum(outputs * (inputs + 1) for inputs, outputs in pairwise(sizes))))
    for (weight, bias), layer in zip(_flat_layers(sizes, out), _packed_layers(sizes, models), strict=True):
        weight.copy_(layer[:, :-1, : weight.shape[1]].transpose(1, 2))
        bias.copy_(layer[:, -1, : weight.shape[1]])
    return out


def _flat_layers(sizes: tuple[int, ...], flat: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Views (k, out, in) and (k, out) of the weights and biases."""
    layers, at = [], 0
    for inputs, outputs in pairwise(sizes):
        weight, end = flat[:, at : at + outputs * inputs], at + outputs * (inputs + 1)
        layers.append((weight.view(len(flat), outputs, inputs), flat[:, at + outputs * inputs : end]))
        at = end
    return layers


def _packed_layers(sizes: tuple[int, ...], models: torch.Tensor) -> list[torch.Tensor]:
    """Views (k, in + 1, width)."""
    layers, at = [], 0
    for inputs, outputs in pairwise(sizes):
        end = at + (inputs + 1) * width(outputs)
        layers.append(models[:, at:end].view(len(models), inputs + 1, width(outputs)))
        at = end
    return layers
