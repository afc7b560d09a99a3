"""Local rules that send numbers back beside the model: losses of steps, and responsibilities of a mixture's models for the samples.

`MixtureRule` has the E- and M-step of a client in FedEM (Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions",
2021) and, with class shares, in FedRC (Guo et al., "FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust
Clustering", 2024).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.local import MODEL, WeightedRule

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, CLASS_SHARES = "weights", "class shares"


@dataclass(frozen=True, kw_only=True)
class LossRule(WeightedRule):
    """The study's own loss; sends back that of the first steps, and the mean over the samples of the last epoch.

    Example: ``ctx.local.replace(rule=LossRule(first=7))``; the numbers are in ``trained.losses``.
    """

    first: int = 0  # steps; a client that takes fewer repeats its last
    last: bool = False  # whether the mean over the last epoch follows

    @property
    def loss_count(self) -> int:
        return self.first + self.last

    def reduce_losses(self, losses: Doubles, samples: Ints, epoch: int) -> Doubles:
        steps = np.minimum(np.arange(self.first), len(losses) - 1)
        # steps that no epoch is left for (`max_steps`) begin a last one that is shorter
        length = len(losses) % epoch or epoch
        mean = np.average(losses[-length:], weights=samples[-length:])
        return np.append(losses[steps], [mean] * self.last)


@dataclass(frozen=True, kw_only=True)
class MixtureRule(WeightedRule):
    """Trains K models, each on all samples weighted by its responsibility for them; sends the mean responsibilities back.

    The ask brings the first model as the model, the others in `extra` by their loops, and the client's mixture weights (n, K) as `WEIGHTS`.
    With classes, it brings each model's class shares (n, K * C) as `CLASS_SHARES`, and the summary is by class, which shows how many
    samples of each class there are. Responsibilities are of the models received.

    Example: ``Train(cohort, models[:1], local, extra=MixtureRule(components=3).bring(models, weights), kept=(WEIGHTS,))``.
    """

    components: int  # K
    classes: int = 0  # C, where class shares are brought; else 0
    trains: bool = True  # False: the E-step alone, as a newcomer takes it

    @property
    def loops(self) -> Sequence[str]:
        return (MODEL, *(f"component {k}" for k in range(1, self.components)))

    @property
    def numbers(self) -> Mapping[str, int]:
        return {WEIGHTS: self.components} | ({CLASS_SHARES: self.components * self.classes} if self.classes else {})

    @property
    def needs(self) -> Sequence[str]:
        return (*self.loops[1:], *self.numbers)

    @property
    def summary_size(self) -> int:
        return self.components * max(self.classes, 1)

    @property
    def reveals_labels(self) -> bool:
        return self.classes > 0

    def bring(self, models: Floats, weights: Doubles, shares: Doubles | None = None) -> dict[str, Floats]:
        """What the ask brings along: the models (K, d) but the first, the mixture weights (n, K), and the class shares (K, C)."""
        n = len(weights)
        extra = {loop: np.repeat(models[[k]], n, axis=0) for k, loop in enumerate(self.loops[1:], start=1)}
        extra[WEIGHTS] = weights.astype(np.float32)
        if shares is not None:
            extra[CLASS_SHARES] = np.repeat(shares.astype(np.float32).reshape(1, -1), n, axis=0)
        return extra

    def epochs(self, loop: str, epochs: int) -> int:
        return epochs if self.trains else 0

    @property
    def compared(self) -> Sequence[str]:
        return self.loops

    def weigh(self, losses: "Tensor", labels: "Tensor", numbers: "Mapping[str, Tensor]") -> "Tensor":
        """(B, K) gamma_jk = softmax over k of log w_k - loss_k(x_j, y_j), and - log C_k(y_j) with class shares."""
        logits = numbers[WEIGHTS].log() - losses
        if self.classes:
            shares = numbers[CLASS_SHARES].reshape(-1, self.components, self.classes)  # (B, K, C)
            logits = logits - shares.take_along_dim(labels[:, None, None], dim=-1)[..., 0].log()
        return logits.softmax(dim=-1)

    def get_weight_column(self, loop: str) -> int:
        return list(self.loops).index(loop)

    def summarize_weights(self, weights: "Tensor", labels: "Tensor") -> "Tensor":
        import torch

        if not self.classes:
            return weights
        own = labels[:, None] == torch.arange(self.classes, device=labels.device)  # (B, C)
        return (weights[:, :, None] * own[:, None, :]).flatten(1)
