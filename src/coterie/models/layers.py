"""Building blocks that several models share: setting checks, initialisation, frozen bodies, adapters, and layers of image models.

Stackable layers hold the weights of many clients, so that one batch can pass through all of them.
"""

from abc import ABC, abstractmethod
from typing import Literal, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from coterie._util.errors import UserError
from coterie.core.model import get_sent_tensors


def check_counts(model: str, **counts: object) -> None:
    """Refuse a width, depth or number of outputs that is not a whole number of at least one."""
    for name, count in counts.items():
        # bool is an int to Python, but `mlp(true)` is a slip
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise UserError(f"Model {model!r}: {name}={count!r} should be a whole number of at least 1.")


Weighted = TypeVar("Weighted", nn.Linear, nn.Conv2d)


def initialise_glorot(layer: Weighted) -> Weighted:
    """Give the layer its initial values, and hand it back."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def compute_glorot_limit(fan_in: int, fan_out: int) -> float:
    """The bound of Glorot's uniform distribution."""
    return float((6.0 / (fan_in + fan_out)) ** 0.5)


def fill_uniform(tensor: Tensor, limit: float) -> Tensor:
    """Fill with draws from [-limit, limit]."""
    return nn.init.uniform_(tensor, -limit, limit)


class FrozenBody(nn.Module):
    """``head(body(x))`` with a body that is never trained, not even its statistics, nor sent.

    Engines compute the body's features once for each sample and then train the head by itself, as the small model that it is.
    """

    fixed_parts = ("body",)

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body.requires_grad_(False).eval(), head

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.body(x)
        logits: Tensor = self.head(features)
        return logits


class Stackable(nn.Module, ABC):
    """A layer whose trained weights may be stacked."""

    @property
    @abstractmethod
    def clients(self) -> int:
        """How many clients' weights it has, now: what it is given are equally many samples of each of them."""


def count_stacked_clients(module: nn.Module) -> int:
    """How many clients' weights a module's layers have; one where they are not stacked."""
    return next((part.clients for part in module.modules() if isinstance(part, Stackable)), 1)


def is_stackable(module: nn.Module) -> bool:
    """Whether all that is sent of a module is in layers that can be stacked."""
    parts = [(f"{path}." if path else "", part) for path, part in module.named_modules() if isinstance(part, Stackable)]
    held = {begin + name for begin, part in parts for name, _ in part.named_parameters(recurse=False)}
    names = [name for name, _ in get_sent_tensors(module)]
    return bool(names) and held.issuperset(names)


def _is_stacked(weight: Tensor) -> int:
    return len(weight) if weight.ndim > 2 else 1


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A dense layer: one weight (out, in) for all samples (n, ..., in), or k of them (k, out, in) for the n / k samples of each client."""
    if weight.ndim == 2:
        return linear(x, weight, bias)
    rows = x.reshape(len(weight), -1, x.shape[-1])
    out = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
    return out.reshape(*x.shape[:-1], weight.shape[1])


def add_low_rank(onto: Tensor, low: Tensor, up: Tensor, scale: float) -> Tensor:
    """What a layer gives (n, ..., out) and beside it scale * B of low (n, ..., r), in one product: B (out, r), or k of them (k, out, r)."""
    clients = up[None] if up.ndim == 2 else up
    rows, small = (x.reshape(len(clients), -1, x.shape[-1]) for x in (onto, low))
    return torch.baddbmm(rows, small, clients.mT, alpha=scale).reshape(onto.shape)


class StackedLinear(Stackable):
    """`nn.Linear` for one client or for many."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        plain = nn.Linear(inputs, outputs)
        self.weight, self.bias = plain.weight, plain.bias

    @property
    def clients(self) -> int:
        return _is_stacked(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return apply_linear(x, self.weight, self.bias)


class LoraLinear(Stackable):
    """A frozen dense layer and beside it a trained one of low rank: Hu et al., "LoRA" (2021), Eq. 3, h = W x + alpha / r * B A x.

    A begins as a dense layer's weight does and B at zero, so that training begins from the frozen layer; with `spread`, B begins at normal
    draws of that deviation, so that two of them differ.
    """

    def __init__(self, inner: nn.Linear, rank: int, alpha: float, spread: float = 0.0) -> None:
        super().__init__()
        self.inner, self.scale = inner.requires_grad_(False), alpha / rank
        self.down = nn.Parameter(nn.Linear(inner.in_features, rank, bias=False).weight.detach())  # A (r, in)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))  # B (out, r)
        if spread:
            nn.init.normal_(self.up, std=spread)

    @property
    def clients(self) -> int:
        return _is_stacked(self.down)  # and B goes with A

    def forward(self, x: Tensor) -> Tensor:
        low = apply_linear(x, self.down)
        return add_low_rank(self.inner(x), low, self.up, self.scale)


Norm = Literal["batch", "group"]


Stem = Literal["cifar", "imagenet"]


GROUPS = 32  # channels are divided into so many, as Wu and He (2018) have it


def check_image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """The shape as (C, H, W); a grey image may leave out its channel."""
    if len(shape) not in (2, 3):
        raise UserError(
            f"Model {model!r} needs images of shape (H, W) or (C, H, W), not samples of shape {shape}: reshape them or use mlp."
        )
    depth, height, width = shape if len(shape) == 3 else (1, *shape)
    if min(height, width) < smallest:
        hint = "put the channels first" if len(shape) == 3 and width < smallest <= min(depth, height) else "use mlp for smaller ones"
        raise UserError(f"Model {model!r} needs images of at least {smallest}x{smallest} pixels, not samples of shape {shape}: {hint}.")
    return depth, height, width


def make_norm(norm: Norm, channels: int) -> nn.Module:
    """Batch norm, or group norm, which has no statistics and does not mix samples."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(GROUPS, channels)


def make_convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without a bias (a normalisation follows it, or has gone before) that keeps the size but for its stride; He's values."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def reshape_to_images(x: Tensor, image: tuple[int, int, int]) -> Tensor:
    """(n, C, H, W), also from (n, H, W) and from flat rows."""
    return x.reshape(x.shape[0], *image)


class SamePaddedConv2d(nn.Conv2d):
    """A convolution with a stride whose zeros are as few as its output needs, and of an odd number one more after the image than before."""

    def forward(self, x: Tensor) -> Tensor:
        zeros: list[int] = []
        for side, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):  # the last side first
            needed = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            zeros += [needed // 2, needed - needed // 2]
        made: Tensor = self._conv_forward(pad(x, zeros), self.weight, self.bias)
        return made


def use_same_padding(module: nn.Module) -> None:
    """Let every convolution of a module that has a stride be padded so."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d) and max(part.stride) > 1:
            part.__class__, part.padding = SamePaddedConv2d, (0, 0)


def remove_logits(network: nn.Module) -> nn.Module:
    """The network up to its features."""
    network.logits = nn.Identity()
    return network
