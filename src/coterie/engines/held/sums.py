"""Sums over rows of a tensor: the weighted sums of an aggregation, and distances from the models that trainings began from.

On a GPU by kernels; elsewhere by torch's own operations, row after row. The bits of a weighted sum are those of `coterie.core.mixing.mix`:
in float64, one product and one sum after the other, rounded once.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Doubles, Ints


class Terms(NamedTuple):
    """What one sum is made of: rows in their order, and the weight of each, none of them nought."""

    rows: Ints
    weights: Doubles

    @classmethod
    def of(cls, weights: Doubles, order: Ints) -> "Terms":
        counted = order[weights[order] != 0.0]
        return cls(counted, weights[counted])


@torch.no_grad()
def weighted_sum(into: Tensor, vectors: Tensor, before: Tensor, replies: Sequence[Terms], kept: Sequence[Terms]) -> None:
    """Row j of `into` (k, w) becomes the sum of its terms over `vectors` (n, w), then of those over `before` (k0, w)."""
    for rows, terms in ((vectors, replies), (before, kept)):
        if max((int(t.rows.max(initial=-1)) for t in terms), default=-1) >= len(rows):  # a kernel would not notice
            raise ValueError(f"weights of more rows than the {len(rows)} there are")
    if into.is_cuda and _has_triton():
        from coterie.engines.held.sums_gpu import weighted_sum_on_gpu

        weighted_sum_on_gpu(into, vectors, before, replies, kept)
        return
    for j in range(len(into)):
        total = torch.zeros(into.shape[1], dtype=torch.float64, device=into.device)
        for table, own in ((vectors, replies[j]), (before, kept[j])):
            for row, weight in zip(*own, strict=True):
                total += table[int(row)].double() * float(weight)
        into[j] = total


@torch.no_grad()
def distances(vectors: Tensor, models: Tensor, start: Tensor) -> Doubles:
    """(n,) how far row i of `vectors` (n, d) is from row ``start[i]`` of `models`, in float64; its bits do not depend on the other rows."""
    if vectors.is_cuda and _has_triton():
        from coterie.engines.held.sums_gpu import squared_distances_on_gpu

        return np.sqrt(squared_distances_on_gpu(vectors, models, start))
    return np.array([float(torch.dist(row.double(), models[which].double())) for row, which in zip(vectors, start, strict=True)])


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
