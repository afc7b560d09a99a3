"""Sums over rows of large tensors as Triton kernels: each row of the stack is read once."""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.core.arrays import Doubles

if TYPE_CHECKING:
    from coterie.engines.device_vectors import SumTerms

COLUMNS, SUMMED = 512, 4096
jit: Callable[[Callable[..., Any]], Any] = triton.jit


def compute_weighted_sums_on_gpu(
    into: Tensor, vectors: Tensor, before: Tensor, replies: "Sequence[SumTerms]", kept: "Sequence[SumTerms]"
) -> None:
    """See `weighted_sum`. Products and sums are not joined into one rounding, which would not have the CPU's bits."""
    lists = [_flatten_terms(terms, into.device) for terms in (replies, kept)]
    with torch.cuda.device(into.device):
        _weighted_sum_kernel[(triton.cdiv(into.shape[1], COLUMNS), len(into))](  # the first may be large, the second not beyond 65,535
            into, vectors, before, *lists[0], *lists[1], into.shape[1], into.stride(0), vectors.stride(0), before.stride(0),
            BLOCK=COLUMNS, enable_fp_fusion=False,
        )  # fmt: skip


def compute_squared_distances_on_gpu(vectors: Tensor, models: Tensor, start: Tensor) -> Doubles:
    """(n,) in pieces of fixed size, whose sums are added on the host."""
    blocks = triton.cdiv(vectors.shape[1], SUMMED)
    found = torch.empty((len(vectors), blocks), dtype=torch.float64, device=vectors.device)
    with torch.cuda.device(vectors.device):
        _squared_distance_kernel[(len(vectors), blocks)](
            found, vectors, models.contiguous(), start, vectors.shape[1], vectors.stride(0), models.shape[1], blocks, BLOCK=SUMMED
        )
    return np.asarray(found.cpu().numpy().sum(axis=1))


def _flatten_terms(terms: "Sequence[SumTerms]", device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """All rows, all weights, and where those of each sum begin and end."""
    ends = np.cumsum([0, *(len(t.rows) for t in terms)])
    rows, weights = (np.concatenate([*(t[i] for t in terms), [0]]) for i in (0, 1))  # never empty
    return tuple(torch.as_tensor(a, device=device) for a in (rows.astype(np.int64), weights.astype(np.float64), ends))  # type: ignore[return-value]


@jit
def _weighted_sum_kernel(
    into: tl.tensor,
    vectors: tl.tensor,
    before: tl.tensor,
    rows: tl.tensor,
    weights: tl.tensor,
    ends: tl.tensor,
    old_rows: tl.tensor,
    old_weights: tl.tensor,
    old_ends: tl.tensor,
    width: tl.tensor,
    into_stride: tl.tensor,
    stride: tl.tensor,
    old_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Some columns of one new model."""
    model = tl.program_id(1)
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros((BLOCK,), tl.float64)
    for i in range(tl.load(ends + model), tl.load(ends + model + 1)):
        value = tl.load(vectors + tl.load(rows + i) * stride + column, mask=inside, other=0.0)
        total += tl.load(weights + i) * value.to(tl.float64)
    for i in range(tl.load(old_ends + model), tl.load(old_ends + model + 1)):
        value = tl.load(before + tl.load(old_rows + i) * old_stride + column, mask=inside, other=0.0)
        total += tl.load(old_weights + i) * value.to(tl.float64)
    tl.store(into + model.to(tl.int64) * into_stride + column, total.to(tl.float32), mask=inside)


@jit
def _squared_distance_kernel(
    found: tl.tensor,
    vectors: tl.tensor,
    models: tl.tensor,
    start: tl.tensor,
    width: tl.tensor,
    stride: tl.tensor,
    model_stride: tl.tensor,
    blocks: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """A piece of one row: the sum of the squares of its differences."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    there = tl.load(vectors + row * stride + column, mask=inside, other=0.0).to(tl.float64)
    began = tl.load(models + tl.load(start + row) * model_stride + column, mask=inside, other=0.0).to(tl.float64)
    tl.store(found + row * blocks + tl.program_id(1), tl.sum((there - began) * (there - began), 0))
