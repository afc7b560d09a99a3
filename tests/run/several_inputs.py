"""Models of several inputs, for tests and for specs."""

import torch
from torch import Tensor, nn

WORDS = 12


class Fused(nn.Module):
    """Words and numbers, each read by itself and then put together."""

    def __init__(self, input_shape: dict[str, tuple[int, ...]] | tuple[tuple[int, ...], ...], outputs: int) -> None:
        super().__init__()
        words, numbers = input_shape.values() if isinstance(input_shape, dict) else input_shape
        self.embedding = nn.Embedding(WORDS, 3)
        self.first = nn.Linear(numbers[0], 4)
        self.last = nn.Linear(3 * words[0] + 4, outputs)

    def forward(self, words: Tensor, numbers: Tensor) -> Tensor:
        assert not words.is_floating_point()
        read = self.embedding(words).flatten(-2)
        out: Tensor = self.last(torch.cat([read, torch.tanh(self.first(numbers))], dim=-1))
        return out
