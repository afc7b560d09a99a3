"""What a stacked layer is: it knows its weights' layout, and how to go forward, back, and a step down."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coterie.engines.precision import Precision
from coterie.engines.vectorised.state import StepTerms

Stacked = Mapping[str, Tensor]  # (k, size) by name: the weights of k trainings, each layer's in the layout that it likes
NO_TERMS = StepTerms()


@dataclass(frozen=True)
class Descent:
    """Where gradients go: straight into the weights, `rates` (k, 1) times, or, without rates, beside them to be used later.

    With rates `terms` by name are added to the gradients; where there is none at all it is empty.
    """

    into: Stacked
    rates: Tensor | None
    terms: Mapping[str, StepTerms] = field(default_factory=dict)

    def terms_of(self, name: str) -> StepTerms:
        return self.terms.get(name, NO_TERMS)

    def down(self, name: str, gradient: Tensor) -> None:
        target = self.into[name]
        if self.rates is None:
            target.copy_(gradient.reshape(target.shape))
        else:
            target.addcmul_(self.terms_of(name).added(gradient.reshape(target.shape), target), self.rates, value=-1)


class StackedLayer(ABC):
    """A layer of k trainings at once. Its weights in a stack are flat rows, in an order that it may choose."""

    weight: str
    bias: str | None

    def arranged(self, name: str, rows: Tensor) -> Tensor:
        """(k, size) in the layer's own order, from the module's."""
        return rows

    def restored(self, name: str, rows: Tensor) -> Tensor:
        """(k, size) in the module's order again."""
        return rows

    @abstractmethod
    def forward(self, own: Stacked, x: Tensor, precision: Precision) -> tuple[Tensor, Any]:
        """What leaves the layer, and what its way back needs."""

    @abstractmethod
    def backward(self, own: Stacked, kept: Any, slope: Tensor, descent: Descent, precision: Precision) -> Tensor | None:
        """Take the step, and give the slope by the inputs at the weights before it; None from the first layer, which nobody asks."""


def names_of(layer: StackedLayer) -> list[str]:
    """The layer's weights, in the module's order."""
    return [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
