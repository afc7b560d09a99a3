"""Models in a stack, each with samples of its own, evaluated or differentiated but not trained.

Client after client, launching the operations of each pass takes longer than the passes themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Array, Doubles, Floats, Ints
from coterie.core.tasks import Task
from coterie.core.vectors import on_device
from coterie.data.federation import Parts
from coterie.engines.device import as_tensor, choose_storage_device, fetch_small, get_resident_memory
from coterie.engines.device_vectors import DeviceVectors
from coterie.engines.loss import compute_scores
from coterie.engines.stacked.route import StackedTrainer
from coterie.engines.stacked.schedule import NARROW

COPIES = 4  # of a model in the stack: its weights, their gradient, and what is made on the way from one to the other


@dataclass(frozen=True)
class ProbeStack:
    """The stack on the device."""

    tensors: dict[str, Tensor]  # (k, ...) each, by name
    samples: Tensor  # (k, B); what is more than a model's own weighs nothing
    counts: Tensor  # (k,)

    @classmethod
    def from_models(cls, route: StackedTrainer, models: Tensor, samples: Sequence[Ints]) -> "ProbeStack":
        """Of models (k, d) and the samples of each, at least one."""
        counts = np.array([len(own) for own in samples])
        table = np.stack([np.resize(own, counts.max()) for own in samples])
        tensors = {
            s.name: route.stepper.cast_slice(s.name, models[:, s.begin : s.end]).reshape(len(models), *s.shape).detach()
            for s in route.layout.slices
            if s.name not in route.shared
        }
        route.stepper.module.eval()  # a probe must not move running statistics
        return cls(tensors, *(torch.as_tensor(values, device=route.device) for values in (table, counts)))


def split_probes(route: StackedTrainer, sizes: Ints, width: int) -> list[Ints]:
    """Which models of this width are stacked together: those with about as many samples, and no more than the route may stack; none
    without samples."""
    buckets, found = 2 ** np.ceil(np.log2(np.maximum(sizes, NARROW))).astype(np.int64), list[Ints]()
    for size in np.unique(buckets):
        members = np.flatnonzero((buckets == size) & (sizes > 0))
        if len(members):
            members = members[np.argsort(sizes[members], kind="stable")]  # alike beside alike: less is padded
            limit = max(1, route.memory // (4 * COPIES * width + route.estimate_pass_bytes(int(sizes[members].max()))))
            found += np.array_split(members, ceil(len(members) / limit))
    return found


@dataclass(frozen=True)
class StackedEachEvaluator:
    """Model i answers for the next `sizes[i]` of the samples."""

    many: ClassVar[int] = 16

    route: StackedTrainer
    task: Task

    @property
    def numbers(self) -> int:
        return self.route.memory // (4 * COPIES)

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,)."""
        chances, losses = self._evaluate(models, rows, sizes, lambda outputs: compute_scores(outputs, self.task))
        return chances.astype(np.float64), losses

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,)."""
        return self._evaluate(models, rows, sizes, lambda outputs: compute_scores(outputs, self.task).argmax(1))

    @torch.no_grad()
    def _evaluate(self, models: Floats, rows: Ints, sizes: Ints, read: Callable[[Tensor], Tensor]) -> tuple[Array, Doubles]:
        """What is read off the outputs, and the losses, in the order of the samples."""
        own, places = np.split(rows, np.cumsum(sizes)[:-1]), np.split(np.arange(len(rows)), np.cumsum(sizes)[:-1])
        answers, losses, at = list[Tensor](), list[Tensor](), list[Ints]()
        for some in split_probes(self.route, sizes, models.shape[1]):
            for values, into in zip(
                self._evaluate_stack(self._there(models, some), [own[i] for i in some], read), (answers, losses), strict=True
            ):
                into.append(values)
            at += [places[i] for i in some]
        order = np.argsort(np.concatenate(at))  # nothing was waited for until here
        return fetch_small(torch.cat(answers))[order], fetch_small(torch.cat(losses)).astype(np.float64)[order]

    def _evaluate_stack(self, models: Tensor, samples: Sequence[Ints], read: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        stack, stepper = ProbeStack.from_models(self.route, models, samples), self.route.stepper
        outputs = stepper.outputs(stack.tensors, self.route.shared, stack.samples)
        real = torch.arange(stack.samples.shape[1], device=stack.samples.device) < stack.counts[:, None]
        return read(outputs[real]), stepper.loss(outputs[real], stepper.y[stack.samples[real]])

    def _there(self, models: Floats, some: Ints) -> Tensor:
        if isinstance(models, DeviceVectors) and on_device(models) is not None:
            return models.get_tensor(some)
        return as_tensor(np.asarray(models[some]), self.route.device)


def compute_stacked_gradients(route: StackedTrainer, models: Tensor, start: Ints, samples: Parts) -> tuple[Tensor, Doubles]:
    """(n, d) float32, with zeros for what is not trained, and (n,) mean losses: of the i-th samples at row ``start[i]`` of the models."""
    shape = len(start), models.shape[1]
    home = choose_storage_device(shape, route.device, get_resident_memory)
    found, losses = torch.zeros(shape, dtype=torch.float32, device=home), torch.zeros(shape[0], dtype=torch.float64, device=home)
    for rows in split_probes(route, samples.sizes, shape[1]):
        there = torch.as_tensor(rows, device=home)
        gradients, means = _compute_chunk(route, models[torch.as_tensor(start[rows], device=route.device)], samples, rows)
        for s, gradient in zip(route.layout.weights, gradients, strict=True):
            if gradient is not None:  # a weight that the loss does not reach
                found[there, s.begin : s.end] = gradient.flatten(1).to(home, torch.float32)
        losses[there] = means.double().to(home)
    return found, np.asarray(fetch_small(losses))


def _compute_chunk(route: StackedTrainer, models: Tensor, samples: Parts, rows: Ints) -> tuple[tuple[Tensor | None, ...], Tensor]:
    stack = ProbeStack.from_models(route, models, [samples[i] for i in rows])
    weights = [stack.tensors[s.name].requires_grad_() for s in route.layout.weights]
    gradients, means = route.stepper.compute_gradients(weights, stack.tensors, route.shared, stack.samples, stack.counts)
    return tuple(gradients), means
