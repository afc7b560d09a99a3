"""A step of one client, as a local rule sees it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.errors import UserError
from coterie.core.rules import Weights
from coterie.engines.loss import Loss


@dataclass(frozen=True)
class RuleStep:
    """`core.rules.Step`, carried out by torch."""

    module: nn.Module
    sample_loss: Loss
    loop: str
    weights: Weights
    received: Weights
    extra: Mapping[str, Weights]
    x: Tensor
    y: Tensor
    share: Tensor | None = None  # (B,) how much each sample counts in a mean: all alike unless some are padding

    @property
    def trained(self) -> list[str]:
        return [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]

    def outputs(self, weights: Weights | None = None) -> Tensor:
        result: Tensor = functional_call(self.module, self._tensors(weights), (self.x,))
        return result

    def features(self, weights: Weights | None = None) -> Tensor:
        with features_of(self.module) as seen:
            functional_call(self.module, self._tensors(weights), (self.x,))
        return seen[-1]

    def loss(self, outputs: Tensor) -> Tensor:
        return self.mean(self.sample_loss(outputs, self.y))

    def mean(self, values: Tensor) -> Tensor:
        return values.mean() if self.share is None else (values * self.share).sum()

    def _tensors(self, weights: Weights | None) -> dict[str, Tensor]:
        """The model's own tensors, whose statistics move; another's are copied, so that looking at it does not change it."""
        if weights is None or weights is self.weights:
            return dict(self.weights)
        return {name: tensor.clone() for name, tensor in weights.items()}


@contextmanager
def features_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Within the block, every pass through the module leaves the inputs of its last dense layer in the list."""
    dense = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not dense:
        raise UserError("The model has no dense layer whose inputs could be its representation: choose a method that compares none.")
    seen: list[Tensor] = []

    def look(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    handle = dense[-1].register_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()
