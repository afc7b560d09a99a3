"""One client at a time with autograd: local training, by the plain rule or a method's own, and full-batch gradients."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.core.arrays import Doubles, Ints
from coterie.core.asks import Gradient
from coterie.core.local import MODEL, Local, LocalRule, WeightedRule, Weights, make_optimizer, parse_augmentation
from coterie.core.model import get_sent_tensors, write_vector
from coterie.core.rng import extend_key, hash_word
from coterie.data.federation import Parts
from coterie.engines.device import autocast_pass, choose_storage_device, get_stacked_memory
from coterie.engines.loss import Loss
from coterie.engines.rule_jobs import reduce_losses
from coterie.engines.sampling import iterate_batches
from coterie.engines.workspace import Workspace, capture_features, draw_augmentation


@dataclass(frozen=True)
class RuleStep:
    """`core.rules.Step`, executed by torch."""

    module: nn.Module
    sample_loss: Loss
    loop: str
    weights: Weights
    received: Weights
    extra: Mapping[str, Weights]
    x: Tensor
    y: Tensor
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    share: Tensor | None = None  # (B,) how much each sample counts in a mean: all alike unless some are padding
    weighted: Tensor | None = None  # (B, w) what a `WeightedRule` weighs the samples by

    @property
    def sample_weights(self) -> Tensor:
        assert self.weighted is not None  # a rule that reads them compares models
        return self.weighted

    @property
    def trained(self) -> list[str]:
        return [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]

    def outputs(self, weights: Weights | None = None, *, evaluate: bool = False) -> Tensor:
        was = self.module.training
        self.module.train(was and not evaluate)
        try:
            result: Tensor = functional_call(self.module, self._tensors(weights), (self.x,))
        finally:
            self.module.train(was)
        return result

    def features(self, weights: Weights | None = None) -> Tensor:
        with capture_features(self.module) as seen:
            functional_call(self.module, self._tensors(weights), (self.x,))
        return seen[-1]

    def loss(self, outputs: Tensor) -> Tensor:
        return self.mean(self.losses(outputs))

    def losses(self, outputs: Tensor) -> Tensor:
        return self.sample_loss(outputs, self.y)

    def mean(self, values: Tensor) -> Tensor:
        return values.mean() if self.share is None else (values * self.share).sum()

    def _tensors(self, weights: Weights | None) -> dict[str, Tensor]:
        """The model's own tensors, whose statistics move; another's are copied, so that looking at it does not change it."""
        if weights is None or weights is self.weights:
            return dict(self.weights)
        return {name: tensor.clone() for name, tensor in weights.items()}


def weigh_batch(rule: WeightedRule, step: RuleStep) -> Tensor:
    """(B, w) what a rule weighs the samples of a batch by, at the models received."""
    models = [step.received if name == MODEL else step.extra[name] for name in rule.compared]
    losses = torch.stack([step.losses(step.outputs(model, evaluate=True)) for model in models], dim=-1)
    return rule.weigh(losses, step.y, {name: value.expand(len(step.y), -1) for name, value in step.numbers.items()})


_NO_BATCH = torch.zeros(0), torch.zeros(0)


@dataclass(frozen=True)
class ClientTraining:
    """What one client is asked to train: from where, how long, with which terms."""

    samples: Ints
    key: int
    start: Tensor
    epochs: int
    mu: float
    anchor: Tensor
    linear: Tensor | None = None
    extra: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class VisitResult:
    """What a visit leaves beside the model."""

    steps: int
    further: Sequence[Tensor] = ()  # what further loops of a local rule have trained
    losses: Doubles = field(default_factory=lambda: np.zeros(0))
    summary: Doubles = field(default_factory=lambda: np.zeros(0))


def train_client(space: Workspace, visit: ClientTraining, local: Local) -> VisitResult:
    """Train on one client's samples and leave the model in the workspace's module."""
    if local.rule is not None:
        return _train_by_rule(space, visit, local, local.rule)
    write_vector(space.module, visit.start)
    space.module.train()
    weights = [w for w in space.module.parameters() if w.requires_grad]
    terms, optimizer = _GradientTerms(space.module, visit), make_optimizer(list(weights), local)
    how, steps = parse_augmentation(local.augment), 0
    for batch in _iterate_until_closed(space, visit, local, visit.key, visit.epochs):
        optimizer.zero_grad()
        x, y = space.batch(batch, draw_augmentation(visit.key, steps, len(batch)) if how is not None else None, how)
        pieces = space.pieces(len(batch))
        for piece in pieces:
            losses = space.loss(space.outputs(x[piece]), y[piece])
            torch.autograd.backward(losses.mean() if len(pieces) == 1 else losses.sum() / len(batch))
        terms.add_to(weights)
        optimizer.step()
        steps += 1
    return VisitResult(steps)


def _train_by_rule(space: Workspace, visit: ClientTraining, local: Local, rule: LocalRule) -> VisitResult:
    """The loops of a rule, one after the other; what `model` trains is left in the module."""
    received, brought = _split_by_name(space, visit.start), dict(visit.extra or {})
    numbers = {name: brought.pop(name) for name in rule.numbers}
    extra = {name: _split_by_name(space, vector) for name, vector in brought.items()}
    before = RuleStep(space.module, space.loss, MODEL, received, received, extra, *_NO_BATCH, numbers)
    sample_weights, summary = _weigh_samples(space, visit.samples, rule, before)
    trained, how = {}, parse_augmentation(local.augment)
    losses, counts = list[Tensor](), list[int]()  # of the model's loop
    space.module.train()
    for loop in rule.loops:
        own = {name: tensor.clone() for name, tensor in extra.get(loop, received).items()}
        weights = [own[name].requires_grad_() for name, w in space.module.named_parameters() if w.requires_grad]
        key = visit.key if loop == MODEL else extend_key(visit.key, hash_word(loop))
        terms = _GradientTerms(space.module, visit if loop == MODEL else replace(visit, mu=0.0, linear=None))
        optimizer = rule.optimizer(weights, local)
        numbered = replace(visit, samples=np.arange(len(visit.samples)))  # among the client's own
        for number, places in enumerate(_iterate_until_closed(space, numbered, local, key, rule.epochs(loop, visit.epochs))):
            optimizer.zero_grad()
            batch = visit.samples[places]
            weighted = None if sample_weights is None else sample_weights[torch.as_tensor(places, device=space.device)]
            x, y = space.batch(batch, draw_augmentation(key, number, len(batch)) if how is not None else None, how)
            with autocast_pass(space.precision, space.device):
                objective = rule.objective(RuleStep(space.module, space.loss, loop, own, received, extra, x, y, numbers, weighted=weighted))
            torch.autograd.backward(objective)
            terms.add_to(weights)
            optimizer.step()
            if loop == MODEL:
                losses.append(objective.detach())
                counts.append(len(batch))
        trained[loop] = torch.cat([own[name].detach().reshape(-1).to(space.dtype) for name in received])
    write_vector(space.module, trained[MODEL])
    further = [vector for loop, vector in trained.items() if loop != MODEL]
    found = torch.stack(losses).cpu().double().numpy() if losses and rule.loss_count else np.zeros(0)
    return VisitResult(len(losses), further, reduce_losses(rule, found, np.array(counts), len(visit.samples)), summary)


@torch.no_grad()
def _weigh_samples(space: Workspace, samples: Ints, rule: LocalRule, step: RuleStep) -> tuple[Tensor | None, Doubles]:
    """(n, w) what a rule weighs a client's samples by, if it does, and (r,) the means over them of what it sends back of each."""
    total, weights = np.zeros(rule.summary_size), list[Tensor]()
    weighs = isinstance(rule, WeightedRule) and bool(rule.compared)
    if not (weighs or rule.summary_size):
        return None, total
    space.module.eval()
    for begin in range(0, len(samples), space.chunk):
        x, y = space.batch(samples[begin : begin + space.chunk])
        with autocast_pass(space.precision, space.device):
            seen = replace(step, x=x, y=y)
            if isinstance(rule, WeightedRule) and weighs:
                seen = replace(seen, weighted=weigh_batch(rule, seen))
                weights.append(seen.sample_weights)
            if rule.summary_size:
                total += rule.summarize(seen).cpu().double().sum(dim=0).numpy()
    return torch.cat(weights) if weights else None, total / max(len(samples), 1)


class _GradientTerms:
    """The proximal and the linear term of a training, as additions to its gradients."""

    def __init__(self, module: nn.Module, visit: ClientTraining) -> None:
        self.mu = visit.mu
        self.anchors = _split_by_weight(module, visit.anchor)
        self.slopes = _split_by_weight(module, visit.linear) if visit.linear is not None else None

    def add_to(self, weights: list[Any]) -> None:
        for j, w in enumerate(weights):
            if w.grad is None:  # a weight that the loss does not reach
                w.grad = torch.zeros_like(w)
            if self.mu:
                w.grad.add_(w.detach() - self.anchors[j], alpha=self.mu)  # the gradient of mu/2 * ||w - anchor||^2
            if self.slopes is not None:
                w.grad.add_(self.slopes[j])


def _iterate_until_closed(space: Workspace, visit: ClientTraining, local: Local, key: int, epochs: int) -> Iterator[Ints]:
    for batch in iterate_batches(key, visit.samples, local.batch_size, epochs, local.max_steps, space.smallest_batch):
        if space.closing.is_set():
            return
        yield batch


def _split_by_weight(module: nn.Module, vector: Tensor) -> list[Tensor]:
    """A flat vector cut into the shapes of the module's trained weights, which come first in it."""
    weights = [w for w in module.parameters() if w.requires_grad]
    sizes = [w.numel() for w in weights]
    return [cut.view(w.shape) for cut, w in zip(torch.split(vector[: sum(sizes)], sizes), weights, strict=True)]


def _split_by_name(space: Workspace, vector: Tensor) -> dict[str, Tensor]:
    """A flat vector as the module's tensors by name, each in its own type."""
    tensors = dict(get_sent_tensors(space.module))
    cuts = torch.split(vector, [tensor.numel() for tensor in tensors.values()])
    return {
        name: (cut if tensor.is_floating_point() else cut.round()).to(tensor.dtype).view(tensor.shape).detach()
        for (name, tensor), cut in zip(tensors.items(), cuts, strict=True)
    }


def disable_cudnn_for_rnn(module: nn.Module) -> AbstractContextManager[object]:
    """cuDNN's recurrent layers have no way back where they are not trained; torch's own have."""
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    return torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()


def compute_gradients(ask: Gradient, space: Workspace, parts: Parts) -> tuple[Tensor, Doubles]:
    """(n, d) float32, on the workspace's device where they fit, with zeros for what is not trained, and (n,) the mean losses."""
    shape = len(ask.clients), ask.models.shape[1]
    found = torch.zeros(shape, dtype=torch.float32, device=choose_storage_device(shape, space.device, get_stacked_memory))
    weights = [w for w in space.module.parameters() if w.requires_grad]
    losses, last = list[Tensor](), -1
    for row, client, start in zip(found, ask.clients, ask.start, strict=True):
        if start != last:  # a probe changes nothing: the model that is there is still the one received
            write_vector(space.module, space.to_tensor(ask.models[start]))
            last = start
        space.module.eval()  # a probe must not move running statistics
        space.module.zero_grad()
        with disable_cudnn_for_rnn(space.module):
            loss = space.losses(parts[client]).mean()
            torch.autograd.backward(loss)
        losses.append(loss.detach())
        begin = 0
        for w in weights:
            if w.grad is not None:
                row[begin : begin + w.numel()] = w.grad.reshape(-1)
            begin += w.numel()
    return found, torch.stack(losses).cpu().double().numpy() if losses else np.zeros(0)
