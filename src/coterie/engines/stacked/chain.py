"""Which modules are chains of known layers: the catalogue's dense and convolutional networks, and any `nn.Sequential` of such layers.

Everything else is mapped by torch. Whether a chain was read off a module rightly, a trial against the loop tells, by its numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from coterie.engines.stacked.convolution import ConvLayer
from coterie.engines.stacked.dense import DenseLayer
from coterie.models.cnn import Cnn
from coterie.models.mlp import Mlp

Known = ConvLayer | DenseLayer


@dataclass(frozen=True)
class LayerChain:
    """Layers one after the other; samples enter as images (C, H, W), channels last, or as plain rows."""

    layers: tuple[Known, ...]
    image: tuple[int, int, int] | None  # of the first layer, if it is a convolution


class _UnknownError(Exception):
    """A part that is no known layer."""


def chain_of(module: nn.Module, shape: tuple[int, ...]) -> LayerChain | None:
    """The module as known layers on samples of this shape; None where it is something else."""
    trained = all(w.requires_grad for w in module.parameters())
    if not trained or next(module.buffers(), None) is not None:
        return None
    try:
        layers = _linked(list(_layers(module, shape)))
    except _UnknownError:
        return None
    weights = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
    if not layers or weights != [name for name, _ in module.named_parameters()]:
        return None  # another order, a weight used twice, or one that no layer has
    first = layers[0]
    return LayerChain(tuple(layers), (first.channels, *first.image) if isinstance(first, ConvLayer) else None)


def _linked(layers: list[Known]) -> list[Known]:
    """What a layer must know of its neighbours: whether a ReLU came before, and which padding the next one wants."""
    linked: list[Known] = []
    for place, layer in enumerate(layers):
        before = layers[place - 1] if place else None
        layer = replace(layer, first=before is None, after_relu=before is not None and before.relu)
        after = layers[place + 1] if place + 1 < len(layers) else None
        linked.append(replace(layer, margin=after.padding) if isinstance(layer, ConvLayer) and isinstance(after, ConvLayer) else layer)
    return linked


def _layers(module: nn.Module, shape: tuple[int, ...]) -> Iterator[Known]:
    if type(module) is Mlp:
        yield from _read(_Reader(shape, flat=True), [(f"layers.{i}", part) for i, part in enumerate(module.layers)], between=True)
    elif type(module) is Cnn:
        reader = _Reader(module.image)
        pooled: list[tuple[str, nn.Module]] = [("", nn.ReLU()), ("", nn.MaxPool2d(2))]
        parts = [("first", module.first), *pooled, ("second", module.second), *pooled, ("", nn.Flatten())]
        yield from _read(reader, [*parts, ("dense", module.dense), ("", nn.ReLU()), ("logits", module.logits)])
    elif type(module) is nn.Sequential:
        yield from _read(_Reader(shape), list(_flattened(module)))
    else:
        raise _UnknownError


def _flattened(module: nn.Sequential, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, part in module._modules.items():  # named_children() would leave out one that comes twice
        assert part is not None
        if type(part) is nn.Sequential:
            yield from _flattened(part, f"{prefix}{name}.")
        else:
            yield prefix + name, part


def _read(reader: "_Reader", parts: list[tuple[str, nn.Module]], *, between: bool = False) -> Iterator[Known]:
    """Layers with what follows each of them; `between` puts a ReLU between them."""
    found: list[Known] = []
    for name, part in parts:
        if between and found:
            found[-1] = reader.followed(found[-1], nn.ReLU())
        if isinstance(part, nn.Linear | nn.Conv2d):
            found.append(reader.layer(name, part))
        elif isinstance(part, nn.Flatten) and part.start_dim == 1 and part.end_dim == -1:
            reader.flat = True
        elif found and not reader.flat_after(found[-1]):
            found[-1] = reader.followed(found[-1], part)
        elif type(part) is not nn.Identity:
            raise _UnknownError
    yield from found


class _Reader:
    """Follows the shape of a sample from layer to layer."""

    def __init__(self, shape: tuple[int, ...], *, flat: bool = False) -> None:
        self.shape, self.flat = shape, flat
        self.image: tuple[int, int, int] | None = None  # what a convolution left

    def flat_after(self, layer: Known) -> bool:
        """Whether the sample has been flattened since a convolution: a ReLU would come too late to be its own."""
        return isinstance(layer, ConvLayer) and self.flat

    def layer(self, name: str, part: nn.Linear | nn.Conv2d) -> Known:
        bias = f"{name}.bias" if part.bias is not None else None
        if isinstance(part, nn.Linear):
            if not self.flat and len(self.shape) != 1:
                raise _UnknownError  # a product for each row of a sample
            image, self.image = self.image, None
            self.flat = True
            return DenseLayer(f"{name}.weight", bias, part.in_features, part.out_features, relu=False, image=image)
        image = self.image or (self.shape if len(self.shape) == 3 else None)
        if image is None or self.flat:
            raise _UnknownError
        layer = ConvLayer(
            f"{name}.weight", bias, part.in_channels, part.out_channels, _window(part), image[1:], _padding(part), pool=1, relu=False
        )
        if min(layer.places) < 1:
            raise _UnknownError
        self.image = (layer.outputs, *layer.pooled)
        return layer

    def followed(self, layer: Known, part: nn.Module) -> Known:
        if type(part) is nn.Identity:
            return layer
        if type(part) is nn.ReLU:
            return replace(layer, relu=True)
        if type(part) is nn.MaxPool2d and isinstance(layer, ConvLayer) and layer.pool == 1 and _is_two(part):
            layer = replace(layer, pool=2)
            self.image = (layer.outputs, *layer.pooled)
            if min(layer.pooled) >= 1:
                return layer
        raise _UnknownError


def _is_two(pool: nn.MaxPool2d) -> bool:
    plain = _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1) and not pool.ceil_mode and not pool.return_indices
    return plain and _pair(pool.kernel_size) == (2, 2) and _pair(pool.stride) == (2, 2)


def _window(part: nn.Conv2d) -> tuple[int, int]:
    plain = _pair(part.stride) == (1, 1) and _pair(part.dilation) == (1, 1) and part.groups == 1 and part.padding_mode == "zeros"
    if not plain or type(part) is not nn.Conv2d:
        raise _UnknownError
    return _pair(part.kernel_size)


def _padding(part: nn.Conv2d) -> tuple[int, int]:
    window = _pair(part.kernel_size)
    if part.padding == "same":
        if any(side % 2 == 0 for side in window):
            raise _UnknownError  # it would pad one side more than the other
        return window[0] // 2, window[1] // 2
    padding = (0, 0) if part.padding == "valid" else _pair(part.padding)
    if any(pad >= side for pad, side in zip(padding, window, strict=True)):
        raise _UnknownError  # windows that see no image
    return padding


def _pair(value: Any) -> tuple[int, int]:
    numbers = (value, value) if isinstance(value, int) else tuple(value)
    return int(numbers[0]), int(numbers[-1])
