"""Trainings by a local rule: many of them as one job, what they leave, and what every route makes of a rule's loops and losses."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints
from coterie.core.local import MODEL, Local, LocalRule, WeightedRule
from coterie.core.rng import fold_keys, hash_word
from coterie.engines.jobs import TrainingJob


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


def has_kernels(rule: LocalRule) -> bool:
    """Whether fused kernels take the steps of a rule: one that weighs samples, and leaves loss and optimiser as they are."""
    own = type(rule)
    plain = own.objective is WeightedRule.objective and own.summarize is WeightedRule.summarize and own.optimizer is LocalRule.optimizer
    return isinstance(rule, WeightedRule) and plain


def make_loop_job(job: TrainingJob, rule: LocalRule, loop: str) -> TrainingJob:
    """The job as one loop sees it: its epochs, and shuffles of its own; only the model's loop has proximal and linear terms."""
    epochs = np.array([rule.epochs(loop, int(count)) for count in job.epochs], dtype=np.int64)
    if loop == MODEL:
        return replace(job, epochs=epochs)
    return replace(
        job, epochs=epochs, keys=fold_keys(job.keys, np.array([hash_word(loop)], np.uint64)), mu=np.zeros_like(job.mu), linear=None
    )


def reduce_losses(rule: LocalRule, losses: Doubles, counts: Ints, samples: int) -> Doubles:
    """(s,) the losses that a rule sends back of one client's steps; zeros where it took none."""
    if not len(losses) or not rule.loss_count:
        return np.zeros(rule.loss_count)
    epoch = int(np.argmax(np.cumsum(counts) >= samples)) + 1 if counts.sum() >= samples else len(counts)
    return np.asarray(rule.reduce_losses(losses, counts, epoch), dtype=np.float64)
