"""Trainings by a rule that weighs samples, on the fused route of a CPU: each loop is one job of the kernel.

Weights of samples are made of the losses that the dense evaluator gives for each client by itself: like the kernel's, their bits do not
depend on the rest of the job.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from coterie._util.threads import use_one_thread
from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.local import MODEL, WeightedRule
from coterie.engines.fused.cpu_route import train_with_losses
from coterie.engines.jobs import TrainingJob
from coterie.engines.rule_jobs import RuleJob, RuleResult, make_loop_job, reduce_losses

SampleLosses = Callable[[Floats, Ints, Ints], Doubles]  # models (n, d), and the samples of each of them by number -> their losses


def train_by_rule(whole: RuleJob, compute_losses: SampleLosses, threads: int | None = None) -> RuleResult:
    """Train by a rule for which `rule_jobs.has_kernels` holds."""
    job, rule, n = whole.job, whole.rule, len(whole.job.start)
    assert isinstance(rule, WeightedRule)
    received = np.asarray(job.models, dtype=np.float32)[job.start]
    weights, summary = _weigh_samples(whole, rule, received, compute_losses)
    trained, losses, taken = dict[str, Floats](), np.zeros((n, rule.loss_count)), np.zeros(n, np.int64)
    for loop in rule.loops:
        own, column, pull = make_loop_job(job, rule, loop), rule.get_weight_column(loop), rule.get_pull(loop)
        if loop in whole.extra:
            own = replace(
                own, models=whole.extra[loop], start=np.arange(n), anchors=received if own.mu.any() and own.anchors is None else own.anchors
            )
        if pull and loop != MODEL:
            own = replace(own, mu=np.full(n, pull), anchors=received)
        if column is not None and weights is not None:
            own = replace(own, sample_weights=weights[:, column])
        reports = loop == MODEL and rule.loss_count > 0
        trained[loop], steps, found = train_with_losses(own, threads, report=reports)
        taken = steps if loop == MODEL else taken
        if reports:
            losses = _reduce_losses(own, rule, steps, found)
    more = np.empty((n, len(trained) - 1, received.shape[1]), dtype=np.float32)
    for place, loop in enumerate(loop for loop in trained if loop != MODEL):
        more[:, place] = trained[loop]
    return RuleResult(trained[MODEL], taken, more, losses, summary)


def _weigh_samples(whole: RuleJob, rule: WeightedRule, received: Floats, compute_losses: SampleLosses) -> tuple[Floats | None, Doubles]:
    """(N, w) what the rule weighs each of the job's samples by, if it does, and (n, r) the means that it sends back."""
    job, summary = whole.job, np.zeros((len(received), rule.summary_size))
    if not rule.compared:
        return None, summary
    sizes, first, last = job.samples(), job.offsets[0], job.offsets[-1]
    with use_one_thread():
        models = [received if name == MODEL else np.asarray(whole.extra[name], dtype=np.float32) for name in rule.compared]
        losses = np.stack([compute_losses(rows, job.indices[first:last], sizes) for rows in models], axis=1)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    numbers = {name: torch.from_numpy(np.asarray(whole.extra[name], dtype=np.float64)[owners]) for name in rule.numbers}
    labels = torch.from_numpy(np.asarray(job.y[job.indices[first:last]], dtype=np.int64))
    found = rule.weigh(torch.from_numpy(losses), labels, numbers)
    if rule.summary_size:
        values = rule.summarize_weights(found, labels).numpy()
        for i, (begin, end) in enumerate(zip(job.offsets[:-1] - first, job.offsets[1:] - first, strict=True)):
            summary[i] = values[begin:end].sum(axis=0) / max(end - begin, 1)
    weights = np.zeros((len(job.indices), found.shape[1]), dtype=np.float32)
    weights[first:last] = found.numpy()
    return weights, summary


def _reduce_losses(job: TrainingJob, rule: WeightedRule, steps: Ints, losses: Doubles) -> Doubles:
    """(n, s) what the rule sends back of the losses of each training's steps."""
    found = np.zeros((len(steps), rule.loss_count))
    ends = np.cumsum(steps)
    for i, (begin, end, n, size) in enumerate(zip(ends - steps, ends, job.samples(), job.batch_size, strict=True)):
        batch = np.arange(end - begin) % -(-n // size)  # of its epoch
        found[i] = reduce_losses(rule, losses[begin:end], np.minimum(size, n - batch * size), int(n))
    return found
