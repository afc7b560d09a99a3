"""Losses, one per sample, and how outputs become probabilities or numbers: by the task."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie._util.errors import UserError
from coterie.core.tasks import MIN_LOG_LIKELIHOOD, Task, TaskName

# outputs (n, C) and class numbers (n,), labels (n, C), targets (n,), times and events (n, 2) or nothing (n,) -> losses (n,), one a sample
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


@cache
def get_baseline_logits(reference: tuple[float, ...], device: torch.device) -> Tensor:
    """(K,) logits of the hazards that a Kaplan-Meier curve has in its intervals: what outputs of zero stand for."""
    curve = torch.tensor((1.0, *reference), dtype=torch.float64)
    hazards = torch.nan_to_num(1 - curve[1:] / curve[:-1], nan=0.0)
    return torch.logit(hazards.clamp(MIN_HAZARD, 1 - MIN_HAZARD)).float().to(device)


MIN_HAZARD = 0.01  # of an interval without events, and of one that nobody survives


@dataclass(frozen=True)
class SurvivalLoss:
    """`survival_loss` of outputs on top of the Kaplan-Meier curve of all training samples: an untrained model predicts about that curve."""

    reference: tuple[float, ...]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return survival_loss(outputs + get_baseline_logits(self.reference, outputs.device), targets)


def survival_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The negative log-likelihood of positions and events (n, 2), where outputs (n, K) are logits of hazards.

    Kvamme and Borgan (2021), Eq. 2: the intervals that a sample completes count as survived; where it has the event, the next one as the
    event. A time beyond the grid survives all intervals.
    """
    position, event = targets[..., :1], targets[..., 1:] > 0
    begin = torch.arange(outputs.shape[-1], dtype=targets.dtype, device=outputs.device)
    died = event & (begin < position) & (position <= begin + 1)
    survived = torch.where(event, begin + 1 < position, begin + 1 <= position)
    return (functional.softplus(outputs) * survived + functional.softplus(-outputs) * died).sum(-1)


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
    return absolute_error if name == "absolute" else get_default_loss(task)


def get_default_loss(task: Task) -> Loss:
    """The loss of a task."""
    return SurvivalLoss(task.reference) if task.name == "survival" else DEFAULT_LOSSES[task.name]


def compute_scores(outputs: Tensor, task: Task) -> Tensor:
    """(n, C) what a model predicts: probabilities of classes, a probability for each label, the number itself, the probability (n, T) of
    each token that comes next, or that (n, K) of no event by the end of each interval; experts are averaged in these."""
    if task.name == "regression":
        return outputs
    if task.name == "next-token":
        return outputs.nan_to_num(nan=MIN_LOG_LIKELIHOOD).clamp(min=MIN_LOG_LIKELIHOOD).exp()
    if task.name == "survival":
        logits = outputs + get_baseline_logits(task.reference, outputs.device)
        return torch.exp(-torch.cumsum(functional.softplus(logits), dim=-1))  # 1 - hazard = exp(-softplus(logit))
    return torch.sigmoid(outputs) if task.name == "multilabel" else compute_probabilities(outputs)


def compute_probabilities(outputs: Tensor) -> Tensor:
    """(n, C) class probabilities from a model's outputs; one output means two classes."""
    if outputs.shape[-1] == 1:
        one = torch.sigmoid(outputs)
        return torch.cat([1 - one, one], dim=-1)
    return torch.softmax(outputs, dim=-1)
