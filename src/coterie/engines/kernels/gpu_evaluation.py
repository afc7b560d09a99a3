"""Many models judged on one set of samples, on the device.

A product of its own for each model, so that its bits do not depend on how many are judged with it; what follows is done for all at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import torch
from torch.nn import functional

from coterie.arrays import Doubles, Ints

AT_ONCE = 1 << 27  # logits in memory


class Judged(NamedTuple):
    """What k models did on the samples."""

    hits: Ints  # (k, C): by class, the samples told right
    predicted: Ints  # (k, C)
    actual: Ints  # (C,)
    loss: Doubles  # (k,): the mean cross-entropy; nan without samples


def evaluate(sizes: tuple[int, ...], models: torch.Tensor, resident: tuple[torch.Tensor, torch.Tensor]) -> Judged:
    """Counts and loss of the flat models (k, d) of a softmax regression or ReLU network."""
    (x, y), classes = resident, sizes[-1]
    at_once = max(1, AT_ONCE // max(1, len(x) * classes))
    parts = [_judge(sizes, some, x, y.long()) for some in torch.split(models, at_once)] if len(models) else []
    empty = torch.zeros((0, classes), dtype=torch.int64)
    hits, predicted, loss = (torch.cat(part).cpu() for part in zip(*parts, strict=True)) if parts else (empty, empty, torch.zeros(0))
    actual = torch.bincount(y.long(), minlength=classes).cpu()
    return Judged(hits.numpy(), predicted.numpy(), actual.numpy(), loss.double().numpy())


def logits(sizes: tuple[int, ...], model: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """(m, C) of one flat model."""
    at, out = 0, x
    for inputs, outputs in pairwise(sizes):
        out = out if at == 0 else functional.relu(out)
        weight, bias = model[at : at + outputs * inputs].view(outputs, inputs), model[at + outputs * inputs : at + outputs * (inputs + 1)]
        out = functional.linear(out, weight, bias)
        at += outputs * (inputs + 1)
    return out


def _judge(
    sizes: tuple[int, ...], models: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    with _plain_float32():
        scores = torch.stack([logits(sizes, model, x) for model in models])  # (k, m, C)
    guess = scores.argmax(2)
    truth = y.expand_as(guess)
    counts = torch.zeros((2, len(models), sizes[-1]), dtype=torch.int64, device=x.device)
    counts[0].scatter_add_(1, truth, (guess == truth).long())
    counts[1].scatter_add_(1, guess, torch.ones_like(guess))
    losses = functional.cross_entropy(scores.double().flatten(0, 1), truth.flatten(), reduction="none").view(guess.shape)
    return counts[0], counts[1], torch.stack([row.mean() for row in losses])


@contextmanager
def _plain_float32() -> Iterator[None]:
    """Without TF32, whatever the program around us has chosen."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
