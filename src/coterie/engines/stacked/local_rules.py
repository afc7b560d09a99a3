"""Trainings by a local rule, many clients at once: the rule's objective mapped over a stack of models, one backward pass, one step of the
rule's own optimiser on the stacked weights.

An optimiser that treats every number by itself steps a stack as it would step each model; whether one does, a check against the loop
decides. No training leaves the stack early: its model is stored at its last step, and the row runs idle.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from coterie.core.arrays import Floats, Ints
from coterie.core.layout import Layout
from coterie.core.local import MODEL, Local, LocalRule, Weights
from coterie.core.rng import fold_keys, hash_word
from coterie.engines.client_training import RuleStep
from coterie.engines.jobs import TrainingJob
from coterie.engines.stacked import schedule
from coterie.engines.stacked.step import StackedStepper

_Term = Callable[[int, Tensor], Tensor]  # (number of the weight, its value) -> what is added to its gradient


@dataclass(frozen=True)
class RuleJob:
    """Trainings with one rule and the same settings; `extra` are rows of vectors for each of them, by name."""

    job: TrainingJob
    rule: LocalRule
    local: Local
    extra: Mapping[str, Floats]


def train_by_rule(
    stepper: StackedStepper, layout: Layout, whole: RuleJob, chunks: Callable[[TrainingJob], list[Ints]]
) -> tuple[Floats, Ints, Floats]:
    """The trained models (n, d), the steps (n,) that each took, and what further loops trained (n, l, d).

    `chunks` gives which trainings of a job, all with steps and those with most first, are stacked together.
    """
    job, loops = whole.job, list(whole.rule.loops)
    vectors = np.repeat(job.models[job.start][:, None], len(loops), axis=1).astype(np.float32)  # (n, loops, d)
    for place, loop in enumerate(loops):
        if loop in whole.extra:
            vectors[:, place] = whole.extra[loop]
        own = _make_loop_job(job, whole.rule, loop)
        for trainings in chunks(own):
            vectors[trainings, place] = _train_chunk(stepper, layout, replace(whole, job=own), loop, trainings, vectors[trainings, place])
    first = loops.index(MODEL)
    return vectors[:, first], job.steps(), np.delete(vectors, first, axis=1)


def _make_loop_job(job: TrainingJob, rule: LocalRule, loop: str) -> TrainingJob:
    """The job as one loop sees it: its epochs, and shuffles of its own; only the model's loop has proximal and linear terms."""
    epochs = np.array([rule.epochs(loop, int(count)) for count in job.epochs], dtype=np.int64)
    if loop == MODEL:
        return replace(job, epochs=epochs)
    return replace(
        job, epochs=epochs, keys=fold_keys(job.keys, np.array([hash_word(loop)], np.uint64)), mu=np.zeros_like(job.mu), linear=None
    )


def _train_chunk(stepper: StackedStepper, layout: Layout, whole: RuleJob, loop: str, rows: Ints, start: Floats) -> Floats:
    job, device = whole.job, stepper.x.device
    steps, table = job.steps()[rows], schedule.make_step_table(job, rows, len(rows))
    samples, counts = torch.as_tensor(table.samples, device=device), torch.as_tensor(table.counts, device=device)
    own = stepper.split_by_name(start)
    received = stepper.split_by_name(job.models[job.start[rows]])
    extra = {name: stepper.split_by_name(vectors[rows]) for name, vectors in whole.extra.items()}
    weights = [own[s.name].requires_grad_() for s in layout.weights]
    optimizer, terms = whole.rule.optimizer(list(weights), whole.local), _make_terms(stepper, layout, job, rows)
    ended = {name: tensor.detach().clone() for name, tensor in own.items()}
    stepper.module.train()
    for t in range(int(steps[0])):
        losses = _compute_objectives(stepper, whole.rule, loop, own, received, extra, samples[t], counts[t])
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
    return torch.cat([ended[s.name].reshape(len(rows), -1).to(torch.float32) for s in layout.slices], dim=1).cpu().numpy()


def _compute_objectives(
    stepper: StackedStepper,
    rule: LocalRule,
    loop: str,
    own: Weights,
    received: Weights,
    extra: Mapping[str, Weights],
    samples: Tensor,
    counts: Tensor,
) -> Tensor:
    """(m,) the rule's objective of each training at one step."""
    real = torch.arange(samples.shape[1], device=samples.device) < counts[:, None]
    shares = (real / counts[:, None]).to(next(iter(own.values())).dtype)

    def one(own: Weights, received: Weights, extra: Mapping[str, Weights], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        return rule.objective(RuleStep(stepper.module, stepper.loss, loop, own, received, extra, x, y, share))

    with torch.enable_grad(), stepper.rewrite_for_vmap():
        found: Tensor = vmap(one)(own, received, extra, stepper.x[samples], stepper.y[samples], shares)
    return found


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
