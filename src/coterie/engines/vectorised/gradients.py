"""Full-batch gradients of many clients at once: the module mapped over a stack, as steps are taken, but without a step.

Client after client, launching the operations of each pass takes longer than the passes themselves.
"""

from math import ceil

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Doubles, Ints
from coterie.data.federation import Parts
from coterie.engines.free_memory import held_memory, home_of
from coterie.engines.tensors import read_off
from coterie.engines.vectorised.plan import NARROW
from coterie.engines.vectorised.route import Vectorised

COPIES = 4  # of a model in the stack: its weights, their gradient, and what is made on the way from one to the other


def stacked_gradients(route: Vectorised, models: Tensor, start: Ints, samples: Parts) -> tuple[Tensor, Doubles]:
    """(n, d) float32, with noughts for what is not trained, and (n,) mean losses: of the i-th samples at row ``start[i]`` of the models."""
    shape = len(start), models.shape[1]
    home = home_of(shape, route.device, held_memory)
    found, losses = torch.zeros(shape, dtype=torch.float32, device=home), torch.zeros(shape[0], dtype=torch.float64, device=home)
    for rows in _chunks(route, samples, shape[1]):
        there = torch.as_tensor(rows, device=home)
        gradients, means = _of_chunk(route, models[torch.as_tensor(start[rows], device=route.device)], samples, rows)
        for s, gradient in zip(route.layout.weights, gradients, strict=True):
            if gradient is not None:  # a weight that the loss does not reach
                found[there, s.begin : s.end] = gradient.flatten(1).to(home, torch.float32)
        losses[there] = means.double().to(home)
    return found, np.asarray(read_off(losses))


def _chunks(route: Vectorised, samples: Parts, width: int) -> list[Ints]:
    """Clients that are stacked together: with about as many samples, and no more than the route may stack."""
    buckets, found = 2 ** np.ceil(np.log2(np.maximum(samples.sizes, NARROW))).astype(np.int64), list[Ints]()
    for size in np.unique(buckets):
        members = np.flatnonzero(buckets == size)
        members = members[np.argsort(samples.sizes[members], kind="stable")]  # alike beside alike: less is padded
        limit = max(1, route.memory // (4 * COPIES * width + route.passed_bytes(int(samples.sizes[members].max()))))
        found += np.array_split(members, ceil(len(members) / limit))
    return found


def _of_chunk(route: Vectorised, models: Tensor, samples: Parts, rows: Ints) -> tuple[tuple[Tensor | None, ...], Tensor]:
    """Gradients, a stacked one for each weight, and losses."""
    counts = samples.sizes[rows]
    table = np.stack([np.resize(samples[i], counts.max()) for i in rows])  # what is more than its own samples weighs nothing
    tensors = {
        s.name: route.stepper.typed(s.name, models[:, s.begin : s.end]).reshape(len(rows), *s.shape).detach() for s in route.layout.slices
    }
    tensors = {name: tensor for name, tensor in tensors.items() if name not in route.shared}
    weights = [tensors[s.name].requires_grad_() for s in route.layout.weights]
    numbers, real = (torch.as_tensor(values, device=route.device) for values in (table, counts))
    route.stepper.module.eval()  # a probe must not move running statistics
    gradients, means = route.stepper.slopes(weights, tensors, route.shared, numbers, real)
    return tuple(gradients), means
