"""The stacked state of many trainings, and one optimiser step of all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from torch import Tensor

Optimizer = Literal["sgd", "adam"]
BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch.optim.Adam's
RowChoice = slice | Tensor
Shared = dict[str, Tensor]  # parts of the model that all the trainings have in common, by name


@dataclass(frozen=True)
class StepRule:
    """What is the same for every training of a job; terms that no training has are left out of the steps."""

    optimizer: Optimizer
    decays: bool  # whether any training has weight decay


@dataclass(frozen=True)
class StepTerms:
    """What a step adds to the gradient of the loss by one weight: mu (w - anchor) + linear + decay w. None: no training has that term."""

    mu: Tensor | None = None  # (m, 1)
    anchor: Tensor | None = None  # (m, size)
    linear: Tensor | None = None  # (m, size)
    shifted: Tensor | None = None  # (m, 1): nought where the linear term is
    decay: Tensor | None = None  # (m, 1)

    def add_terms(self, g: Tensor, w: Tensor) -> Tensor:
        """The gradient (m, size) at these weights with the terms."""
        if self.anchor is not None and self.mu is not None:
            g = torch.addcmul(g, w - self.anchor, self.mu)
        if self.linear is not None:
            g = g + self.linear
        if self.decay is not None:
            g = torch.addcmul(g, w, self.decay)
        return g


@dataclass(frozen=True)
class Stack:
    """m trainings side by side: each list has one tensor (m, size) a slice of the model, row i being training i's.

    Lists of terms that no training of the stack has are empty.
    """

    weights: list[Tensor]  # trained
    others: list[Tensor]  # buffers, each in its own type, and frozen parts that differ from training to training
    first: list[Tensor]  # momentum's buffer, or Adam's first moment
    second: list[Tensor]  # Adam's second moment
    anchors: list[Tensor]
    linear: list[Tensor]
    settings: list[Tensor]  # lr, momentum, weight_decay, mu, and whether there is a linear term, each (m, 1)
    tables: list[Tensor] = field(default_factory=list)  # (m, 1) which of several tables each reads its tokens in; see `lookups`

    def cut(self, rows: RowChoice) -> "Stack":
        """These rows: views for a range, copies for numbers."""
        return self._map(lambda tensor: tensor[rows])

    def put(self, rows: Tensor, part: "Stack") -> None:
        """Write copied rows back."""
        for name in ("weights", "others", "first", "second"):
            for mine, changed in zip(getattr(self, name), getattr(part, name), strict=True):
                mine[rows] = changed

    def load(self, values: "Stack") -> None:
        """Take over another stack's numbers, in place, so that captured steps find them where they were."""
        for part in fields(self):
            for mine, other in zip(getattr(self, part.name), getattr(values, part.name), strict=True):
                mine.copy_(other)

    def shapes(self) -> tuple[tuple[torch.Size, ...], ...]:
        """What must be alike for captured steps to fit."""
        return tuple(tuple(tensor.shape for tensor in getattr(self, part.name)) for part in fields(self))

    def terms(self, j: int, rule: StepRule) -> StepTerms:
        """What steps add to the gradient by the j-th weight."""
        _, _, weight_decay, mu, shifted = self.settings
        return StepTerms(
            mu=mu if self.anchors else None,
            anchor=self.anchors[j] if self.anchors else None,
            linear=self.linear[j] if self.linear else None,
            shifted=shifted if self.linear else None,
            decay=weight_decay if rule.decays else None,
        )

    def models(self) -> list[Tensor]:
        """What a training leaves behind."""
        return [*self.weights, *self.others]

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Stack":
        return Stack(*([change(tensor) for tensor in getattr(self, part.name)] for part in fields(self)))


@torch.no_grad()
def update(stack: Stack, gradients: Sequence[Tensor | None], clock: Tensor, rule: StepRule) -> None:
    """One step in place from the gradients (m, size) of the batch losses; the clock counts steps from 1, for Adam's correction."""
    lr, momentum = stack.settings[:2]
    for j, w in enumerate(stack.weights):
        raw = gradients[j]
        g = torch.zeros_like(w) if raw is None else raw.reshape(w.shape)  # a weight that the loss does not reach
        g = stack.terms(j, rule).add_terms(g, w)
        if rule.optimizer == "adam":
            _update_adam(w, g, stack.first[j], stack.second[j], lr, clock)
            continue
        if stack.first:
            g = stack.first[j].mul_(momentum).add_(g)
        w.addcmul_(g, lr, value=-1)


def _update_adam(w: Tensor, g: Tensor, first: Tensor, second: Tensor, lr: Tensor, clock: Tensor) -> None:
    first.lerp_(g, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
    # The clock is float64: in float32 the first corrections would lose half their digits.
    root = (second / (1 - BETAS[1] ** clock)).sqrt_().add_(EPSILON)
    w.addcmul_(first / (1 - BETAS[0] ** clock) / root, lr, value=-1)
