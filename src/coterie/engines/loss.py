"""Losses, one a sample, and how outputs become probabilities."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs (n, C) and class numbers (n,) -> losses (n,), one a sample


def per_sample(loss: Loss) -> Loss:
    """A loss with one number a sample. One of torch's own that averages or sums is taken without that: clients' batches are averaged here.

    With class weights a batch counts as the plain mean of the weighted losses, not as their sum over the sum of the weights.
    """
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "none") != "none":
        loss = deepcopy(loss)
        setattr(loss, "reduction", "none")  # noqa: B010 (modules know their attributes at run time only)
    return loss


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy; with a single output, logistic loss of a two-class task."""
    if outputs.shape[-1] == 1:
        return functional.binary_cross_entropy_with_logits(outputs[..., 0], targets.to(outputs.dtype), reduction="none")
    return functional.cross_entropy(outputs, targets, reduction="none")


def probabilities(outputs: Tensor) -> Tensor:
    """(n, C) class probabilities from a model's outputs; one output means two classes."""
    if outputs.shape[-1] == 1:
        one = torch.sigmoid(outputs)
        return torch.cat([1 - one, one], dim=-1)
    return torch.softmax(outputs, dim=-1)
