"""Modules that are chains of known layers, and one step of a stack of their trainings, each layer stepping as it is passed.

Chains are the catalogue's dense and convolutional networks, and any `nn.Sequential` of such layers; torch maps everything else. Whether a
chain was read off a module correctly, a check against the loop decides, by its numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.core.layout import Layout
from coterie.engines.device import Precision
from coterie.engines.layer_kernels.layers import ConvLayer, DenseLayer, Descent, get_weight_names, load_kernels
from coterie.engines.loss import Loss, cross_entropy
from coterie.engines.stacked.step import Shared, Stack, StepRule, update
from coterie.models.cnn import Cnn
from coterie.models.mlp import Mlp

KnownLayer = ConvLayer | DenseLayer


@dataclass(frozen=True)
class LayerChain:
    """Layers one after the other; samples enter as images (C, H, W), channels last, or as plain rows."""

    layers: tuple[KnownLayer, ...]
    image: tuple[int, int, int] | None  # of the first layer, if it is a convolution


class _UnknownError(Exception):
    """A part that is no known layer."""


def read_chain(module: nn.Module, shape: tuple[int, ...]) -> LayerChain | None:
    """The module as known layers on samples of this shape; None where it is something else."""
    trained = all(w.requires_grad for w in module.parameters())
    if not trained or next(module.buffers(), None) is not None:
        return None
    try:
        layers = _link_layers(list(_iterate_layers(module, shape)))
    except _UnknownError:
        return None
    weights = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
    if not layers or weights != [name for name, _ in module.named_parameters()]:
        return None  # another order, a weight used twice, or one that no layer has
    first = layers[0]
    return LayerChain(tuple(layers), (first.channels, *first.image) if isinstance(first, ConvLayer) else None)


def _link_layers(layers: list[KnownLayer]) -> list[KnownLayer]:
    """What a layer must know of its neighbours: whether a ReLU came before, and which padding the next one wants."""
    linked: list[KnownLayer] = []
    for place, layer in enumerate(layers):
        before = layers[place - 1] if place else None
        layer = replace(layer, first=before is None, after_relu=before is not None and before.relu)
        after = layers[place + 1] if place + 1 < len(layers) else None
        linked.append(replace(layer, margin=after.padding) if isinstance(layer, ConvLayer) and isinstance(after, ConvLayer) else layer)
    return linked


def _iterate_layers(module: nn.Module, shape: tuple[int, ...]) -> Iterator[KnownLayer]:
    if type(module) is Mlp:
        yield from _read_layers(_Reader(shape, flat=True), [(f"layers.{i}", part) for i, part in enumerate(module.layers)], between=True)
    elif type(module) is Cnn:
        reader = _Reader(module.image)
        pooled: list[tuple[str, nn.Module]] = [("", nn.ReLU()), ("", nn.MaxPool2d(2))]
        parts = [("first", module.first), *pooled, ("second", module.second), *pooled, ("", nn.Flatten())]
        yield from _read_layers(reader, [*parts, ("dense", module.dense), ("", nn.ReLU()), ("logits", module.logits)])
    elif type(module) is nn.Sequential:
        yield from _read_layers(_Reader(shape), list(_flatten_parts(module)))
    else:
        raise _UnknownError


def _flatten_parts(module: nn.Sequential, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, part in module._modules.items():  # named_children() would leave out one that comes twice
        assert part is not None
        if type(part) is nn.Sequential:
            yield from _flatten_parts(part, f"{prefix}{name}.")
        else:
            yield prefix + name, part


def _read_layers(reader: "_Reader", parts: list[tuple[str, nn.Module]], *, between: bool = False) -> Iterator[KnownLayer]:
    """Layers with what follows each of them; `between` puts a ReLU between them."""
    found: list[KnownLayer] = []
    for name, part in parts:
        if between and found:
            found[-1] = reader.followed(found[-1], nn.ReLU())
        if isinstance(part, nn.Linear | nn.Conv2d):
            found.append(reader.layer(name, part))
        elif isinstance(part, nn.Flatten) and part.start_dim == 1 and part.end_dim == -1:
            reader.flat = True
        elif found and not (isinstance(found[-1], ConvLayer) and reader.flat):  # flattened since: a ReLU would come too late to be its own
            found[-1] = reader.followed(found[-1], part)
        elif type(part) is not nn.Identity:
            raise _UnknownError
    yield from found


class _Reader:
    """Follows the shape of a sample from layer to layer."""

    def __init__(self, shape: tuple[int, ...], *, flat: bool = False) -> None:
        self.shape, self.flat = shape, flat
        self.image: tuple[int, int, int] | None = None  # what a convolution left

    def layer(self, name: str, part: nn.Linear | nn.Conv2d) -> KnownLayer:
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
            f"{name}.weight",
            bias,
            part.in_channels,
            part.out_channels,
            _get_window(part),
            image[1:],
            _get_padding(part),
            pool=1,
            relu=False,
        )
        if min(layer.places) < 1:
            raise _UnknownError
        self.image = (layer.outputs, *layer.pooled)
        return layer

    def followed(self, layer: KnownLayer, part: nn.Module) -> KnownLayer:
        if type(part) is nn.Identity:
            return layer
        if type(part) is nn.ReLU:
            return replace(layer, relu=True)
        if type(part) is nn.MaxPool2d and isinstance(layer, ConvLayer) and layer.pool == 1 and _is_two_by_two(part):
            layer = replace(layer, pool=2)
            self.image = (layer.outputs, *layer.pooled)
            if min(layer.pooled) >= 1:
                return layer
        raise _UnknownError


def _is_two_by_two(pool: nn.MaxPool2d) -> bool:
    plain = _to_pair(pool.padding) == (0, 0) and _to_pair(pool.dilation) == (1, 1) and not pool.ceil_mode and not pool.return_indices
    return plain and _to_pair(pool.kernel_size) == (2, 2) and _to_pair(pool.stride) == (2, 2)


def _get_window(part: nn.Conv2d) -> tuple[int, int]:
    plain = _to_pair(part.stride) == (1, 1) and _to_pair(part.dilation) == (1, 1) and part.groups == 1 and part.padding_mode == "zeros"
    if not plain or type(part) is not nn.Conv2d:
        raise _UnknownError
    return _to_pair(part.kernel_size)


def _get_padding(part: nn.Conv2d) -> tuple[int, int]:
    window = _to_pair(part.kernel_size)
    if part.padding == "same":
        if any(side % 2 == 0 for side in window):
            raise _UnknownError  # it would pad one side more than the other
        return window[0] // 2, window[1] // 2
    padding = (0, 0) if part.padding == "valid" else _to_pair(part.padding)
    if any(pad >= side for pad, side in zip(padding, window, strict=True)):
        raise _UnknownError  # windows that see no image
    return padding


def _to_pair(value: Any) -> tuple[int, int]:
    numbers = (value, value) if isinstance(value, int) else tuple(value)
    return int(numbers[0]), int(numbers[-1])


class ChainStepper:
    """Steps as `StackedStepper` takes them, for a module that is a chain; the weights of a stack are in its layers' own order."""

    def __init__(self, chain: LayerChain, layout: Layout, loss: Loss, x: Tensor, y: Tensor, precision: Precision = "float32") -> None:
        self.chain, self.loss, self.y, self.precision = chain, loss, y, precision
        self._names = [s.name for s in layout.weights]
        self._layer = {name: layer for layer in chain.layers for name in get_weight_names(layer)}
        first = chain.layers[0]
        # channels last; one channel needs no copy
        self.x = x if chain.image is None else x.reshape(len(x), *chain.image).permute(0, 2, 3, 1).contiguous()
        rows, across = first.padding if isinstance(first, ConvLayer) else (0, 0)
        self._pad = (0, 0, across, across, rows, rows)

    def to_layer_order(self, name: str, rows: Tensor) -> Tensor:
        """(k, size) of a weight as its layer has it."""
        return self._layer[name].to_layer_order(name, rows)

    def to_module_order(self, name: str, rows: Tensor) -> Tensor:
        """(k, size) of a weight as the module has it."""
        return self._layer[name].to_module_order(name, rows)

    @torch.no_grad()
    def step(self, stack: Stack, shared: Shared, samples: Tensor, counts: Tensor, clock: Tensor, rule: StepRule) -> None:
        """Every row of the stack steps on its own samples (k, B), of which the first counts (k,) are real and the others weigh nothing."""
        own = dict(zip(self._names, stack.weights, strict=True))
        direct = rule.optimizer == "sgd" and not stack.first
        gradients = own if direct else {name: torch.empty_like(w) for name, w in own.items()}
        more = direct and (rule.decays or stack.anchors or stack.linear)
        terms = {name: stack.terms(j, rule) for j, name in enumerate(self._names)} if more else {}
        descent = Descent(gradients, stack.settings[0] if direct else None, terms)
        kept, signal = [], self.x[samples]  # (k, B, ...)
        signal = functional.pad(signal, self._pad) if any(self._pad) else signal
        for layer in self.chain.layers:
            signal, needed = layer.forward(own, signal, self.precision)
            kept.append(needed)
        slope: Tensor | None = self._slopes(signal, samples, counts)
        for layer, needed in zip(reversed(self.chain.layers), reversed(kept), strict=True):
            assert slope is not None
            slope = layer.backward(own, needed, slope, descent, self.precision)
        if not direct:
            update(stack, [gradients[name] for name in self._names], clock, rule)

    def _slopes(self, outputs: Tensor, samples: Tensor, counts: Tensor) -> Tensor:
        outputs = outputs.reshape(*samples.shape, -1)
        kernels = load_kernels(outputs, "dense") if self.loss is cross_entropy and outputs.shape[-1] > 1 else None
        if kernels is not None and not self.chain.layers[-1].relu:
            found: Tensor = kernels.slopes(outputs, self.y, samples, counts)
            return found
        with torch.enable_grad():
            given = outputs.detach().requires_grad_()
            losses = self.loss(given.flatten(0, 1), self.y[samples].flatten(0, 1)).view(samples.shape)
            real = torch.arange(samples.shape[1], device=samples.device) < counts[:, None]
            [slope] = torch.autograd.grad((losses * (real / counts[:, None])).sum(), given)
        return slope.masked_fill_(outputs <= 0, 0) if self.chain.layers[-1].relu else slope
