"""Trainings by a local rule, many clients at once: the rule's objective mapped over a stack of models, one backward pass, one step of the
rule's own optimiser on the stacked weights.

An optimiser that treats every number by itself steps a stack as it would step each model; whether one does, a check against the loop
decides. No training leaves the stack early: its model is stored at its last step, and the row runs idle.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.layout import Layout
from coterie.core.local import MODEL, Local, LocalRule, Weights
from coterie.core.rng import fold_keys, hash_word
from coterie.engines.client_training import RuleStep, reduce_losses
from coterie.engines.jobs import TrainingJob
from coterie.engines.stacked import schedule
from coterie.engines.stacked.step import StackedStepper

SUMMARY_BATCH = 64  # samples of a client that are summarised at a time
_Term = Callable[[int, Tensor], Tensor]  # (number of the weight, its value) -> what is added to its gradient


@dataclass(frozen=True)
class RuleJob:
    """Trainings with one rule and the same settings; `extra` are rows of vectors for each of them, by name."""

    job: TrainingJob
    rule: LocalRule
    local: Local
    extra: Mapping[str, Floats]


class RuleResult(NamedTuple):
    """What n trainings by a rule leave, as a reply has it."""

    vectors: Floats  # (n, d)
    steps: Ints  # (n,)
    more: Floats  # (n, l, d) what further loops trained
    losses: Doubles  # (n, s)
    summary: Doubles  # (n, r)


def train_by_rule(stepper: StackedStepper, layout: Layout, whole: RuleJob, chunks: Callable[[TrainingJob], list[Ints]]) -> RuleResult:
    """Train by a rule. `chunks` gives which trainings of a job, all with steps and those with most first, are stacked together."""
    job, loops = whole.job, list(whole.rule.loops)
    vectors = np.repeat(job.models[job.start][:, None], len(loops), axis=1).astype(np.float32)  # (n, loops, d)
    losses, summary = np.zeros((len(vectors), whole.rule.loss_count)), np.zeros((len(vectors), whole.rule.summary_size))
    if whole.rule.summary_size:
        once = replace(job, epochs=np.ones_like(job.epochs), max_steps=np.full_like(job.max_steps, -1))
        once = replace(once, batch_size=np.minimum(np.maximum(job.batch_size, SUMMARY_BATCH), job.samples().clip(1)))
        for trainings in chunks(once):
            summary[trainings] = _summarize_chunk(stepper, replace(whole, job=once), trainings)
    for place, loop in enumerate(loops):
        if loop in whole.extra:
            vectors[:, place] = whole.extra[loop]
        own = _make_loop_job(job, whole.rule, loop)
        for trainings in chunks(own):
            start = vectors[trainings, place]
            vectors[trainings, place], found = _train_chunk(stepper, layout, replace(whole, job=own), loop, trainings, start)
            if loop == MODEL:
                losses[trainings] = found
    first = loops.index(MODEL)
    taken = _make_loop_job(job, whole.rule, MODEL).steps()
    return RuleResult(vectors[:, first], taken, np.delete(vectors, first, axis=1), losses, summary)


def _make_loop_job(job: TrainingJob, rule: LocalRule, loop: str) -> TrainingJob:
    """The job as one loop sees it: its epochs, and shuffles of its own; only the model's loop has proximal and linear terms."""
    epochs = np.array([rule.epochs(loop, int(count)) for count in job.epochs], dtype=np.int64)
    if loop == MODEL:
        return replace(job, epochs=epochs)
    return replace(
        job, epochs=epochs, keys=fold_keys(job.keys, np.array([hash_word(loop)], np.uint64)), mu=np.zeros_like(job.mu), linear=None
    )


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

    def map(
        self, stepper: StackedStepper, loop: str, what: Callable[[RuleStep], Tensor], own: Weights, samples: Tensor, counts: Tensor
    ) -> Tensor:
        """What the rule makes of each training's batch, row by row: samples (m, B), of which so many (m,) are real."""
        real = torch.arange(samples.shape[1], device=samples.device) < counts[:, None]
        shares = (real / counts[:, None]).to(stepper.dtype)

        def one(own: Weights, given: tuple[Any, ...], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
            received, extra, numbers = given
            return what(RuleStep(stepper.module, stepper.loss, loop, own, received, extra, x, y, numbers, share))

        given = self.received, self.extra, self.numbers
        with stepper.rewrite_for_vmap():
            found: Tensor = vmap(one)(own, given, stepper.x[samples], stepper.y[samples], shares)
        return found


@torch.no_grad()
def _summarize_chunk(stepper: StackedStepper, whole: RuleJob, rows: Ints) -> Doubles:
    """(m, r) the means over each training's samples of what the rule sends back of each; the job takes every sample once."""
    steps, table = whole.job.steps()[rows], schedule.make_step_table(whole.job, rows, len(rows))
    given, total = _Given.of(stepper, whole, rows), np.zeros((len(rows), whole.rule.summary_size))
    stepper.module.eval()
    for t in range(int(steps[0])):
        samples, counts = (torch.as_tensor(values[t], device=stepper.x.device) for values in (table.samples, table.counts))
        values = given.map(stepper, MODEL, whole.rule.summarize, given.received, samples, counts)
        real = (torch.arange(samples.shape[1], device=samples.device) < counts[:, None]).cpu().numpy() & (t < steps)[:, None]
        total += np.einsum("mbr,mb->mr", values.cpu().double().numpy(), real.astype(np.float64))
    return total / whole.job.samples()[rows][:, None]


def _train_chunk(stepper: StackedStepper, layout: Layout, whole: RuleJob, loop: str, rows: Ints, start: Floats) -> tuple[Floats, Doubles]:
    """The models (m, d) that one loop trains, and the losses (m, s) that the rule sends back of its steps."""
    job, device = whole.job, stepper.x.device
    steps, table = job.steps()[rows], schedule.make_step_table(job, rows, len(rows))
    samples, counts = torch.as_tensor(table.samples, device=device), torch.as_tensor(table.counts, device=device)
    own, given = stepper.split_by_name(start), _Given.of(stepper, whole, rows)
    objectives: list[Tensor] = []
    weights = [own[s.name].requires_grad_() for s in layout.weights]
    optimizer, terms = whole.rule.optimizer(list(weights), whole.local), _make_terms(stepper, layout, job, rows)
    ended = {name: tensor.detach().clone() for name, tensor in own.items()}
    stepper.module.train()
    for t in range(int(steps[0])):
        with torch.enable_grad():
            losses = given.map(stepper, loop, whole.rule.objective, own, samples[t], counts[t])
        objectives += [losses.detach()] if whole.rule.loss_count else []
        gradients = torch.autograd.grad(losses.sum(), weights, allow_unused=True)
        for j, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            w.grad = torch.zeros_like(w) if g is None else g
            for slope in terms:
                w.grad = w.grad + slope(j, w.detach())
        optimizer.step()
        done = np.flatnonzero(steps == t + 1)
        if len(done):
            numbers = torch.as_tensor(done, device=device)
            for name, tensor in own.items():
                ended[name][numbers] = tensor.detach()[numbers]
    vectors = torch.cat([ended[s.name].reshape(len(rows), -1).to(torch.float32) for s in layout.slices], dim=1).cpu().numpy()
    if not objectives:
        return vectors, np.zeros((len(rows), whole.rule.loss_count))
    values, of_rule = torch.stack(objectives).cpu().double().numpy(), zip(steps.tolist(), job.samples()[rows].tolist(), strict=True)
    found = [
        reduce_losses(whole.rule, values[:taken, i], table.counts[:taken, i].astype(np.int64), number)
        for i, (taken, number) in enumerate(of_rule)
    ]
    return vectors, np.stack(found)


def _make_terms(stepper: StackedStepper, layout: Layout, job: TrainingJob, rows: Ints) -> list[_Term]:
    """The proximal and the linear term, where any training has them."""
    found: list[_Term] = []
    if job.mu.any():
        anchors = stepper.split_by_name(job.models[job.start[rows]] if job.anchors is None else job.anchors[rows])
        mu = torch.as_tensor(job.mu[rows], device=stepper.x.device)
        found.append(lambda j, w: mu.to(w.dtype).view(-1, *[1] * (w.ndim - 1)) * (w - anchors[layout.weights[j].name]))
    if job.linear is not None:
        slopes = stepper.split_by_name(job.linear[rows])
        found.append(lambda j, w: slopes[layout.weights[j].name])
    return found
