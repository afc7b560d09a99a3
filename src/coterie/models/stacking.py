"""Layers that many clients can share a batch through, each with weights of its own: adapters on one frozen body.

Given stacked weights (k, ...) such a layer takes the samples of k clients, client after client, and treats each client's with its own.
Everything between these layers is the frozen body, which sees one large batch.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from coterie.core.model import get_sent_tensors


class Stackable(nn.Module, ABC):
    """A layer whose trained weights may be stacked."""

    @property
    @abstractmethod
    def clients(self) -> int:
        """How many clients' weights it has, now: what it is given are equally many samples of each of them."""


def clients_in(module: nn.Module) -> int:
    """How many clients' weights a module's layers have; one where they are not stacked."""
    return next((part.clients for part in module.modules() if isinstance(part, Stackable)), 1)


def stacks_by_itself(module: nn.Module) -> bool:
    """Whether all that is sent of a module is in layers that can be stacked."""
    parts = [(f"{path}." if path else "", part) for path, part in module.named_modules() if isinstance(part, Stackable)]
    held = {begin + name for begin, part in parts for name, _ in part.named_parameters(recurse=False)}
    names = [name for name, _ in get_sent_tensors(module)]
    return bool(names) and held.issuperset(names)


def _stacked(weight: Tensor) -> int:
    return len(weight) if weight.ndim > 2 else 1


def each_with_its_own(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A dense layer: one weight (out, in) for all samples (n, ..., in), or k of them (k, out, in) for the n / k samples of each client."""
    if weight.ndim == 2:
        return linear(x, weight, bias)
    rows = x.reshape(len(weight), -1, x.shape[-1])
    out = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
    return out.reshape(*x.shape[:-1], weight.shape[1])


def beside(onto: Tensor, low: Tensor, up: Tensor, scale: float) -> Tensor:
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
        return _stacked(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return each_with_its_own(x, self.weight, self.bias)


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
        return _stacked(self.down)  # and B goes with A

    def forward(self, x: Tensor) -> Tensor:
        low = each_with_its_own(x, self.down)
        return beside(self.inner(x), low, self.up, self.scale)
