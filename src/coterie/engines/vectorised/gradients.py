"""Full-batch gradients of many clients at once: the module mapped over a stack, as steps are taken, but without a step.

Client after client, launching the operations of each pass takes longer than the passes themselves.
"""

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Doubles, Ints
from coterie.data.federation import Parts
from coterie.engines.free_memory import held_memory, home_of
from coterie.engines.tensors import read_off
from coterie.engines.vectorised.probe import Probe, probes_of
from coterie.engines.vectorised.route import Vectorised


def stacked_gradients(route: Vectorised, models: Tensor, start: Ints, samples: Parts) -> tuple[Tensor, Doubles]:
    """(n, d) float32, with noughts for what is not trained, and (n,) mean losses: of the i-th samples at row ``start[i]`` of the models."""
    shape = len(start), models.shape[1]
    home = home_of(shape, route.device, held_memory)
    found, losses = torch.zeros(shape, dtype=torch.float32, device=home), torch.zeros(shape[0], dtype=torch.float64, device=home)
    for rows in probes_of(route, samples.sizes, shape[1]):
        there = torch.as_tensor(rows, device=home)
        gradients, means = _of_chunk(route, models[torch.as_tensor(start[rows], device=route.device)], samples, rows)
        for s, gradient in zip(route.layout.weights, gradients, strict=True):
            if gradient is not None:  # a weight that the loss does not reach
                found[there, s.begin : s.end] = gradient.flatten(1).to(home, torch.float32)
        losses[there] = means.double().to(home)
    return found, np.asarray(read_off(losses))


def _of_chunk(route: Vectorised, models: Tensor, samples: Parts, rows: Ints) -> tuple[tuple[Tensor | None, ...], Tensor]:
    """Gradients, a stacked one for each weight, and losses."""
    stack = Probe.of(route, models, [samples[i] for i in rows])
    weights = [stack.tensors[s.name].requires_grad_() for s in route.layout.weights]
    gradients, means = route.stepper.slopes(weights, stack.tensors, route.shared, stack.samples, stack.counts)
    return tuple(gradients), means
