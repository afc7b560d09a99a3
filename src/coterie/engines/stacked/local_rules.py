"""Trainings by a local rule, many clients at once: the rule's objective mapped over a stack of models, one backward pass, one step of the
rule's own optimiser on the stacked weights.

An optimiser that treats every number by itself steps a stack as it would step each model; whether one does, a check against the loop
decides. Trainings are sorted by their number of steps: those that have ended leave the stack, and what the optimiser keeps of them with
them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.layout import Layout
from coterie.core.local import MODEL, WeightedRule, Weights
from coterie.engines.client_training import RuleStep, weigh_batch
from coterie.engines.jobs import TrainingJob
from coterie.engines.rule_jobs import RuleJob, RuleResult, make_loop_job, reduce_losses
from coterie.engines.stacked import schedule
from coterie.engines.stacked.step import StackedStepper

READ_BATCH = 64  # samples of a client that are weighed or summarised at a time
_Term = Callable[[int, Tensor], Tensor]  # (number of the weight, its value) -> what is added to its gradient


def train_by_rule(stepper: StackedStepper, layout: Layout, whole: RuleJob, chunks: Callable[[TrainingJob], list[Ints]]) -> RuleResult:
    """Train by a rule. `chunks` gives which trainings of a job, all with steps and those with most first, are stacked together."""
    job, rule, loops = whole.job, whole.rule, list(whole.rule.loops)
    vectors = np.repeat(job.models[job.start][:, None], len(loops), axis=1).astype(np.float32)  # (n, loops, d)
    losses, summary, weights = np.zeros((len(vectors), rule.loss_count)), np.zeros((len(vectors), rule.summary_size)), None
    if rule.summary_size or (isinstance(rule, WeightedRule) and rule.compared):
        once = replace(job, epochs=np.ones_like(job.epochs), max_steps=np.full_like(job.max_steps, -1))
        once = replace(once, batch_size=np.minimum(np.maximum(job.batch_size, READ_BATCH), job.samples().clip(1)))
        for trainings in chunks(once):
            summary[trainings], weights = _read_chunk(stepper, replace(whole, job=once), trainings, weights)
    for place, loop in enumerate(loops):
        if loop in whole.extra:
            vectors[:, place] = whole.extra[loop]
        own = make_loop_job(job, rule, loop)
        for trainings in chunks(own):
            start = vectors[trainings, place]
            vectors[trainings, place], found = _train_chunk(stepper, layout, replace(whole, job=own), loop, trainings, start, weights)
            if loop == MODEL:
                losses[trainings] = found
    first = loops.index(MODEL)
    taken = make_loop_job(job, rule, MODEL).steps()
    return RuleResult(vectors[:, first], taken, np.delete(vectors, first, axis=1), losses, summary)


@dataclass(frozen=True)
class _Batches:
    """What each step of some stacked trainings takes: places (T, m, B) among the job's samples, of which so many (T, m) are real."""

    places: Tensor
    samples: Tensor  # (T, m, B) their numbers in the data
    counts: Tensor
    steps: Ints  # (m,) descending

    @classmethod
    def of(cls, stepper: StackedStepper, job: TrainingJob, rows: Ints) -> "_Batches":
        table = schedule.make_step_table(replace(job, indices=np.arange(len(job.indices))), rows, len(rows))
        places, samples, counts = (
            torch.as_tensor(values, device=stepper.x.device) for values in (table.samples, job.indices[table.samples], table.counts)
        )
        return cls(places, samples, counts, job.steps()[rows])


@dataclass(frozen=True)
class _Given:
    """What a rule sees of some trainings beside the model that is trained and the batch, stacked."""

    received: Weights
    extra: Mapping[str, Weights]
    numbers: Mapping[str, Tensor]

    @classmethod
    def of(cls, stepper: StackedStepper, whole: RuleJob, rows: Ints) -> "_Given":
        numbers = {
            name: torch.as_tensor(np.asarray(whole.extra[name][rows]), device=stepper.x.device).to(stepper.dtype)
            for name in whole.rule.numbers
        }
        extra = {name: stepper.split_by_name(vectors[rows]) for name, vectors in whole.extra.items() if name not in numbers}
        return cls(stepper.split_by_name(whole.job.models[whole.job.start[rows]]), extra, numbers)

    def cut(self, count: int) -> "_Given":
        """The first so many trainings."""
        extra = {name: _cut(tensors, count) for name, tensors in self.extra.items()}
        return _Given(_cut(self.received, count), extra, _cut(self.numbers, count))

    def map(
        self,
        stepper: StackedStepper,
        loop: str,
        what: Callable[[RuleStep], Tensor],
        own: Weights,
        samples: Tensor,
        counts: Tensor,
        weighted: Tensor | None = None,
    ) -> Tensor:
        """What the rule makes of each training's batch, row by row: samples (m, B), of which so many (m,) are real, weighted (m, B, w)."""
        real = torch.arange(samples.shape[1], device=samples.device) < counts[:, None]
        shares = (real / counts[:, None]).to(stepper.dtype)

        def one(own: Weights, given: tuple[Any, ...], x: Tensor, y: Tensor, share: Tensor, weighted: Tensor | None) -> Tensor:
            received, extra, numbers = given
            return what(RuleStep(stepper.module, stepper.loss, loop, own, received, extra, x, y, numbers, share, weighted))

        given, mapped = (self.received, self.extra, self.numbers), (0, 0, 0, 0, 0, None if weighted is None else 0)
        with stepper.rewrite_for_vmap():
            found: Tensor = vmap(one, mapped)(own, given, stepper.x[samples], stepper.y[samples], shares, weighted)
        return found


def _cut(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: tensor[:count] for name, tensor in tensors.items()}


@torch.no_grad()
def _read_chunk(stepper: StackedStepper, whole: RuleJob, rows: Ints, weights: Tensor | None) -> tuple[Doubles, Tensor | None]:
    """(m, r) the means over each training's samples of what the rule sends back of each, and the weights of all the job's samples (N, w)
    with those of these trainings filled in; the job takes every sample once."""
    batches, given, rule = _Batches.of(stepper, whole.job, rows), _Given.of(stepper, whole, rows), whole.rule
    total = np.zeros((len(rows), rule.summary_size))
    stepper.module.eval()
    for t in range(int(batches.steps[0])):
        own, weighted = given.cut(active := int((batches.steps > t).sum())), None
        places, samples, counts = batches.places[t, :active], batches.samples[t, :active], batches.counts[t, :active]
        real = torch.arange(samples.shape[1], device=samples.device) < counts[:, None]
        if isinstance(rule, WeightedRule) and rule.compared:
            weighted = own.map(stepper, MODEL, lambda step: weigh_batch(rule, step), own.received, samples, counts)
            weights = weighted.new_zeros(len(whole.job.indices), weighted.shape[-1]) if weights is None else weights
            weights[places[real]] = weighted[real]
        if rule.summary_size:
            values = own.map(stepper, MODEL, rule.summarize, own.received, samples, counts, weighted)
            total[:active] += np.einsum("mbr,mb->mr", values.cpu().double().numpy(), real.cpu().numpy().astype(np.float64))
    return total / whole.job.samples()[rows][:, None], weights


def _train_chunk(
    stepper: StackedStepper, layout: Layout, whole: RuleJob, loop: str, rows: Ints, start: Floats, sample_weights: Tensor | None
) -> tuple[Floats, Doubles]:
    """The models (m, d) that one loop trains, and the losses (m, s) that the rule sends back of its steps."""
    job, rule = whole.job, whole.rule
    batches, own, given = _Batches.of(stepper, job, rows), stepper.split_by_name(start), _Given.of(stepper, whole, rows)
    objectives: list[Tensor] = []
    weights = [own[s.name].requires_grad_() for s in layout.weights]
    optimizer, terms = rule.optimizer(list(weights), whole.local), _make_terms(stepper, layout, job, rows)
    ended = {name: tensor.detach().clone() for name, tensor in own.items()}
    stepper.module.train()
    for segment in schedule.compute_segments(batches.steps):
        active = segment.active
        for t in range(segment.begin, segment.end):
            weighted = None if sample_weights is None else sample_weights[batches.places[t, :active]]
            with torch.enable_grad():
                losses = given.map(stepper, loop, rule.objective, own, batches.samples[t, :active], batches.counts[t, :active], weighted)
            objectives += [losses.detach()] if rule.loss_count else []
            gradients = torch.autograd.grad(losses.sum(), weights, allow_unused=True)
            for j, (w, g) in enumerate(zip(weights, gradients, strict=True)):
                w.grad = torch.zeros_like(w) if g is None else g
                for slope in terms:
                    w.grad = w.grad + slope(j, w.detach())
            optimizer.step()
        for name, tensor in own.items():
            ended[name][segment.left : active] = tensor.detach()[segment.left :]
        own, given = _drop_ended(own, optimizer, segment.left), given.cut(segment.left)
        weights = [own[s.name] for s in layout.weights]
    vectors = torch.cat([ended[s.name].reshape(len(rows), -1).to(torch.float32) for s in layout.slices], dim=1).cpu().numpy()
    return vectors, _reduce_losses(whole, rows, objectives, batches)


def _drop_ended(own: Weights, optimizer: torch.optim.Optimizer, left: int) -> dict[str, Tensor]:
    """The first rows of the models that are trained, given to the optimiser in their place with what it keeps of them."""
    cut = {name: tensor.detach()[:left].clone().requires_grad_(tensor.requires_grad) for name, tensor in own.items()}
    successors = {tensor: cut[name] for name, tensor in own.items()}
    for group in optimizer.param_groups:
        group["params"] = [successors[w] for w in group["params"]]
    for w in [w for w in optimizer.state if w in successors]:
        kept = optimizer.state.pop(w)
        optimizer.state[successors[w]] = {
            name: value[:left] if isinstance(value, Tensor) and value.shape == w.shape else value for name, value in kept.items()
        }
    return cut


def _reduce_losses(whole: RuleJob, rows: Ints, objectives: list[Tensor], batches: _Batches) -> Doubles:
    """(m, s) what the rule sends back of the objective at each step, of the trainings that took it."""
    if not objectives:
        return np.zeros((len(rows), whole.rule.loss_count))
    values, counts = np.zeros(batches.counts.shape), batches.counts.cpu().numpy().astype(np.int64)
    for t, losses in enumerate(objectives):
        values[t, : len(losses)] = losses.cpu().double().numpy()
    of_rule = zip(batches.steps.tolist(), whole.job.samples()[rows].tolist(), strict=True)
    return np.stack([reduce_losses(whole.rule, values[:taken, i], counts[:taken, i], n) for i, (taken, n) in enumerate(of_rule)])


def _make_terms(stepper: StackedStepper, layout: Layout, job: TrainingJob, rows: Ints) -> list[_Term]:
    """The proximal and the linear term, where any training has them; of the trainings that are still there."""
    found: list[_Term] = []
    if job.mu.any():
        anchors = stepper.split_by_name(job.models[job.start[rows]] if job.anchors is None else job.anchors[rows])
        mu = torch.as_tensor(job.mu[rows], device=stepper.x.device)

        def pull(j: int, w: Tensor) -> Tensor:
            factor = mu[: len(w)].to(w.dtype).view(-1, *[1] * (w.ndim - 1))
            return factor * (w - anchors[layout.weights[j].name][: len(w)])

        found.append(pull)
    if job.linear is not None:
        slopes = stepper.split_by_name(job.linear[rows])
        found.append(lambda j, w: slopes[layout.weights[j].name][: len(w)])
    return found
