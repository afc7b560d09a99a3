"""Losses, one per sample, and how outputs become probabilities or numbers: by the task."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie._util.errors import UserError
from coterie.core.tasks import MIN_LOG_LIKELIHOOD, Task, TaskName

# outputs (n, C) and class numbers (n,), labels (n, C), targets (n,) or nothing (n,) -> losses (n,), one a sample
Loss = Callable[[Tensor, Tensor], Tensor]


def make_per_sample(loss: Loss) -> Loss:
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


def label_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over a sample's labels of the logistic loss of each."""
    return functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").mean(-1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of the one output and the target, both in units of the target's deviation."""
    return (outputs[..., 0] - targets) ** 2


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Likewise, without the square: far-off targets pull less."""
    return (outputs[..., 0] - targets).abs()


def next_token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over a sample's tokens: its model gives log-likelihoods (n, T) of what stands there, so that there is nothing to look up."""
    return -outputs.mean(-1)


DEFAULT_LOSSES: dict[TaskName, Loss] = {
    "classification": cross_entropy,
    "multilabel": label_cross_entropy,
    "regression": squared_error,
    "next-token": next_token_loss,
}


def get_loss(name: str, task: Task) -> Loss:
    """The loss that a plan names."""
    if name == "absolute" and task.name != "regression":
        raise UserError(f"loss=absolute is for a regression, and this is a {task}: omit it.")
    return absolute_error if name == "absolute" else DEFAULT_LOSSES[task.name]


def compute_scores(outputs: Tensor, task: Task) -> Tensor:
    """(n, C) what a model predicts: probabilities of classes, a probability for each label, the number itself, or the probability (n, T) of
    each token that comes next; experts are averaged in these."""
    if task.name == "regression":
        return outputs
    if task.name == "next-token":
        return outputs.nan_to_num(nan=MIN_LOG_LIKELIHOOD).clamp(min=MIN_LOG_LIKELIHOOD).exp()
    return torch.sigmoid(outputs) if task.name == "multilabel" else compute_probabilities(outputs)


def compute_probabilities(outputs: Tensor) -> Tensor:
    """(n, C) class probabilities from a model's outputs; one output means two classes."""
    if outputs.shape[-1] == 1:
        one = torch.sigmoid(outputs)
        return torch.cat([1 - one, one], dim=-1)
    return torch.softmax(outputs, dim=-1)
