"""One client's local training with plain autograd: by the plain rule, or by a rule of the method's own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.arrays import Ints
from coterie.core.augmentation import augmentation_of
from coterie.core.local import Local
from coterie.core.parameters import sent, write
from coterie.core.rng import extend, word
from coterie.core.rules import MODEL, LocalRule, plain_optimizer
from coterie.engines.augment import draws_for
from coterie.engines.batches import batches
from coterie.engines.precision import passes_in
from coterie.engines.rule_step import RuleStep
from coterie.engines.workspace import Workspace


@dataclass(frozen=True)
class Visit:
    """What one client is asked to train: from where, how long, with which terms."""

    samples: Ints
    key: int
    start: Tensor
    epochs: int
    mu: float
    anchor: Tensor
    linear: Tensor | None = None
    extra: Mapping[str, Tensor] | None = None


def train_client(space: Workspace, visit: Visit, local: Local) -> tuple[int, list[Tensor]]:
    """Train on one client's samples and leave the model in the workspace's module; steps taken, and what further loops have trained."""
    if local.rule is not None:
        return _train_by_rule(space, visit, local, local.rule)
    write(space.module, visit.start)
    space.module.train()
    weights = [w for w in space.module.parameters() if w.requires_grad]
    terms, optimizer = _Terms(space.module, visit), plain_optimizer(list(weights), local)
    how, steps = augmentation_of(local.augment), 0
    for batch in _batches(space, visit, local, visit.key, visit.epochs):
        optimizer.zero_grad()
        x, y = space.batch(batch, draws_for(visit.key, steps, len(batch)) if how is not None else None, how)
        pieces = space.pieces(len(batch))
        for piece in pieces:
            losses = space.loss(space.outputs(x[piece]), y[piece])
            torch.autograd.backward(losses.mean() if len(pieces) == 1 else losses.sum() / len(batch))
        terms.add_to(weights)
        optimizer.step()
        steps += 1
    return steps, []


def _train_by_rule(space: Workspace, visit: Visit, local: Local, rule: LocalRule) -> tuple[int, list[Tensor]]:
    """The loops of a rule, one after the other; what `model` trains is left in the module."""
    received, extra = _named(space, visit.start), {name: _named(space, vector) for name, vector in (visit.extra or {}).items()}
    taken, trained, how = 0, {}, augmentation_of(local.augment)
    space.module.train()
    for loop in rule.loops:
        own = {name: tensor.clone() for name, tensor in extra.get(loop, received).items()}
        weights = [own[name].requires_grad_() for name, w in space.module.named_parameters() if w.requires_grad]
        key = visit.key if loop == MODEL else extend(visit.key, word(loop))
        terms, optimizer = (
            _Terms(space.module, visit if loop == MODEL else replace(visit, mu=0.0, linear=None)),
            rule.optimizer(weights, local),
        )
        for number, batch in enumerate(_batches(space, visit, local, key, rule.epochs(loop, visit.epochs))):
            optimizer.zero_grad()
            x, y = space.batch(batch, draws_for(key, number, len(batch)) if how is not None else None, how)
            with passes_in(space.precision, space.device):
                objective = rule.objective(RuleStep(space.module, space.loss, loop, own, received, extra, x, y))
            torch.autograd.backward(objective)
            terms.add_to(weights)
            optimizer.step()
            taken += loop == MODEL
        trained[loop] = torch.cat([own[name].detach().reshape(-1).to(space.dtype) for name in received])
    write(space.module, trained[MODEL])
    return taken, [vector for loop, vector in trained.items() if loop != MODEL]


class _Terms:
    """The proximal and the linear term of a training, as additions to its gradients."""

    def __init__(self, module: nn.Module, visit: Visit) -> None:
        self.mu = visit.mu
        self.anchors = _pieces(module, visit.anchor)
        self.slopes = _pieces(module, visit.linear) if visit.linear is not None else None

    def add_to(self, weights: list[Any]) -> None:
        for j, w in enumerate(weights):
            if w.grad is None:  # a weight that the loss does not reach
                w.grad = torch.zeros_like(w)
            if self.mu:
                w.grad.add_(w.detach() - self.anchors[j], alpha=self.mu)  # the gradient of mu/2 * ||w - anchor||^2
            if self.slopes is not None:
                w.grad.add_(self.slopes[j])


def _batches(space: Workspace, visit: Visit, local: Local, key: int, epochs: int) -> Iterator[Ints]:
    """The batches of a loop, until it is to end early."""
    for batch in batches(key, visit.samples, local.batch_size, epochs, local.max_steps, space.least):
        if space.closing.is_set():
            return
        yield batch


def _pieces(module: nn.Module, vector: Tensor) -> list[Tensor]:
    """A flat vector cut into the shapes of the module's trained weights, which come first in it."""
    weights = [w for w in module.parameters() if w.requires_grad]
    sizes = [w.numel() for w in weights]
    return [cut.view(w.shape) for cut, w in zip(torch.split(vector[: sum(sizes)], sizes), weights, strict=True)]


def _named(space: Workspace, vector: Tensor) -> dict[str, Tensor]:
    """A flat vector as the module's tensors by name, each in its own type."""
    tensors = dict(sent(space.module))
    cuts = torch.split(vector, [tensor.numel() for tensor in tensors.values()])
    return {
        name: (cut if tensor.is_floating_point() else cut.round()).to(tensor.dtype).view(tensor.shape).detach()
        for (name, tensor), cut in zip(tensors.items(), cuts, strict=True)
    }
