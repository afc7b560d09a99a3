"""A frozen body under a trained head. Only the head is sent, compared and averaged; what the body makes of a sample never changes."""

from typing import Self

import torch
from torch import Tensor, nn


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
