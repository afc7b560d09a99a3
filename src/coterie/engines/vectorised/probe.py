"""Models in a stack, each with samples of its own, that are looked at and not trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Ints
from coterie.engines.vectorised.plan import NARROW
from coterie.engines.vectorised.route import Vectorised

COPIES = 4  # of a model in the stack: its weights, their gradient, and what is made on the way from one to the other


@dataclass(frozen=True)
class Probe:
    """The stack on the device."""

    tensors: dict[str, Tensor]  # (k, ...) each, by name
    samples: Tensor  # (k, B); what is more than a model's own weighs nothing
    counts: Tensor  # (k,)

    @classmethod
    def of(cls, route: Vectorised, models: Tensor, samples: Sequence[Ints]) -> "Probe":
        """Of models (k, d) and the samples of each, at least one."""
        counts = np.array([len(own) for own in samples])
        table = np.stack([np.resize(own, counts.max()) for own in samples])
        tensors = {
            s.name: route.stepper.typed(s.name, models[:, s.begin : s.end]).reshape(len(models), *s.shape).detach()
            for s in route.layout.slices
            if s.name not in route.shared
        }
        route.stepper.module.eval()  # a probe must not move running statistics
        return cls(tensors, *(torch.as_tensor(values, device=route.device) for values in (table, counts)))


def probes_of(route: Vectorised, sizes: Ints, width: int) -> list[Ints]:
    """Which models of this width are stacked together: those with about as many samples, and no more than the route may stack; none
    without samples."""
    buckets, found = 2 ** np.ceil(np.log2(np.maximum(sizes, NARROW))).astype(np.int64), list[Ints]()
    for size in np.unique(buckets):
        members = np.flatnonzero((buckets == size) & (sizes > 0))
        if len(members):
            members = members[np.argsort(sizes[members], kind="stable")]  # alike beside alike: less is padded
            limit = max(1, route.memory // (4 * COPIES * width + route.passed_bytes(int(sizes[members].max()))))
            found += np.array_split(members, ceil(len(members) / limit))
    return found
