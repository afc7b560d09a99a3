"""Local rules: what a client minimises and how it steps, where that is more than a proximal or a linear term.

A rule is written once, in torch, for one client; the loop engine carries it out client by client, the vectorised route maps it over a stack
of clients. A new one needs no change to an engine:

    @dataclass(frozen=True, kw_only=True)
    class Smoothed(LocalRule):
        share: float = 0.1

        def objective(self, step: Step) -> Tensor:
            outputs = step.outputs()
            return step.loss(outputs) - self.share * step.mean(outputs.log_softmax(-1).mean(-1))

It is given to a training by ``ctx.local.but(rule=Smoothed())``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from coterie.core.local import Local

Weights = Mapping[str, "Tensor"]  # the tensors of a model by name: parameters and buffers
MODEL = "model"  # the loop whose result is sent back as the client's model


class Step(Protocol):
    """What a rule sees at one step of one client."""

    @property
    def loop(self) -> str:
        """Which of the rule's loops this is."""

    @property
    def weights(self) -> Weights:
        """The model being trained, as it stands."""

    @property
    def trained(self) -> Sequence[str]:
        """The names in `weights` that are trained: neither statistics nor frozen parts."""

    @property
    def received(self) -> Weights:
        """The model that the client was sent."""

    @property
    def extra(self) -> Mapping[str, Weights]:
        """What the ask brings along for this client, by name."""

    @property
    def x(self) -> "Tensor":
        """The batch: features."""

    @property
    def y(self) -> "Tensor":
        """The batch: labels."""

    def outputs(self, weights: Weights | None = None) -> "Tensor":
        """(B, C) what a model makes of the batch: the one being trained, or another."""

    def features(self, weights: Weights | None = None) -> "Tensor":
        """(B, f) what enters the last dense layer."""

    def loss(self, outputs: "Tensor") -> "Tensor":
        """The study's loss, averaged over the batch."""

    def mean(self, values: "Tensor") -> "Tensor":
        """The mean of values (B,) over the samples of the batch that are real: stacked batches may be padded."""


@dataclass(frozen=True, kw_only=True)
class LocalRule(ABC):
    """A frozen dataclass of numbers, with the loss of a step."""

    loops: ClassVar[Sequence[str]] = (MODEL,)  # trained one after the other: from `extra[loop]` where there is one, else the model received
    needs: ClassVar[Sequence[str]] = ()  # the names in `extra` that an ask must bring along

    @abstractmethod
    def objective(self, step: Step) -> "Tensor":
        """What the client minimises at this step: one number."""

    def epochs(self, loop: str, epochs: int) -> int:
        """How many epochs a loop takes where local training takes so many."""
        return epochs

    def optimizer(self, weights: "list[Tensor]", local: "Local") -> "torch.optim.Optimizer":
        """The optimiser of one loop. One that treats every number by itself can be stacked; another is carried out client by client."""
        return plain_optimizer(weights, local)


def plain_optimizer(weights: "list[Tensor]", local: "Local") -> "torch.optim.Optimizer":
    """The optimiser that the settings of local training name."""
    import torch

    if local.optimizer != "sgd":
        kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
        return kind(weights, lr=local.lr, weight_decay=local.weight_decay)
    return torch.optim.SGD(weights, lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay)
