"""The slopes of the batches' mean cross-entropy in one kernel: torch's way there and back is a dozen small ones."""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16
jit: Callable[[Callable[..., Any]], Any] = triton.jit


def slopes(outputs: Tensor, labels: Tensor, samples: Tensor, counts: Tensor) -> Tensor:
    """(k, B, C) from outputs (k, B, C); of the samples (k, B) the first counts (k,) are real."""
    k, batch, classes = outputs.shape
    found = torch.empty_like(outputs)
    _slopes[(triton.cdiv(k * batch, ROWS),)](
        outputs, labels, samples, counts, found, k * batch, batch, CLASSES=classes, WIDTH=triton.next_power_of_2(classes), ROWS=ROWS
    )
    return found


@jit
def _slopes(
    outputs: tl.tensor,
    labels: tl.tensor,
    samples: tl.tensor,
    counts: tl.tensor,
    found: tl.tensor,
    rows: tl.tensor,
    BATCH: tl.constexpr,
    CLASSES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Some samples of any trainings."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    present = row < rows
    count = tl.load(counts + row // BATCH, mask=present, other=1)
    sample = tl.load(samples + row, mask=present, other=0).to(tl.int64)
    label = tl.load(labels + sample, mask=present, other=0).to(tl.int32)
    inside = present[:, None] & (column < CLASSES)[None, :]
    at = row[:, None] * CLASSES + column[None, :]
    logits = tl.load(outputs + at, mask=inside, other=float("-inf"))
    logits = tl.where(present[:, None], logits, 0.0)
    likely = tl.exp(logits - tl.max(logits, 1)[:, None])
    likely = likely / tl.sum(likely, 1)[:, None]
    slope = tl.where(column[None, :] == label[:, None], likely - 1.0, likely) / count[:, None].to(tl.float32)
    slope = tl.where((row % BATCH < count)[:, None], slope, 0.0)
    tl.store(found + at, slope, mask=inside)
