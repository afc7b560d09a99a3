"""A step of one training as one Triton kernel: the terms, the optimiser, the weights, and their copies in bfloat16 for the next pass.

What `stacked.step.update` does in up to eight passes over the weights is one here.
"""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.stacked.step import BETAS, EPSILON, Stack, StepRule

jit: Callable[[Callable[..., Any]], Any] = triton.jit
BLOCK = 2048


@torch.no_grad()
def update_at_once(stack: Stack, gradients: Sequence[Tensor], shortened: Sequence[Tensor | None], clock: Tensor, rule: StepRule) -> None:
    """One step of the only training of a stack, in place, from the gradients (size,) of its blocks of weights."""
    lr, momentum, decay, mu, _ = stack.settings
    adam = rule.optimizer == "adam"
    # in float64, since the first corrections would lose half their digits
    corrections = torch.stack([1 - beta**clock for beta in BETAS]).to(lr.dtype) if adam else lr
    for j, (w, g, short) in enumerate(zip(stack.weights, gradients, shortened, strict=True)):
        _update[(triton.cdiv(w.numel(), BLOCK),)](
            w,
            g,
            stack.first[j] if stack.first else w,
            stack.second[j] if stack.second else w,
            stack.anchors[j] if stack.anchors else w,
            stack.linear[j] if stack.linear else w,
            w if short is None else short,
            lr,
            momentum,
            decay,
            mu,
            corrections,
            w.numel(),
            FIRST=BETAS[0],
            SECOND=BETAS[1],
            EPSILON=EPSILON,
            BLOCK=BLOCK,
            ADAM=adam,
            MOMENTUM=bool(stack.first),
            DECAYS=rule.decays,
            PULLED=bool(stack.anchors),
            SHIFTED=bool(stack.linear),
            SHORTENS=short is not None,
        )


@jit
def _update(
    weights: tl.tensor,
    gradients: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    anchors: tl.tensor,
    linear: tl.tensor,
    shortened: tl.tensor,
    lr: tl.tensor,
    momentum: tl.tensor,
    decay: tl.tensor,
    mu: tl.tensor,
    corrections: tl.tensor,
    size: int,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    EPSILON: tl.constexpr,
    BLOCK: tl.constexpr,
    ADAM: tl.constexpr,
    MOMENTUM: tl.constexpr,
    DECAYS: tl.constexpr,
    PULLED: tl.constexpr,
    SHIFTED: tl.constexpr,
    SHORTENS: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    w = tl.load(weights + place, mask=there, other=0.0)
    g = tl.load(gradients + place, mask=there, other=0.0).to(w.dtype)
    if PULLED:
        g += (w - tl.load(anchors + place, mask=there, other=0.0)) * tl.load(mu)
    if SHIFTED:
        g += tl.load(linear + place, mask=there, other=0.0)
    if DECAYS:
        g += w * tl.load(decay)
    if ADAM:
        mean = tl.load(first + place, mask=there, other=0.0)
        square = tl.load(second + place, mask=there, other=0.0)
        mean += (g - mean) * (1 - FIRST)
        square = square * SECOND + g * g * (1 - SECOND)
        tl.store(first + place, mean, mask=there)
        tl.store(second + place, square, mask=there)
        g = mean / tl.load(corrections) / (tl.sqrt(square / tl.load(corrections + 1)) + EPSILON)
    elif MOMENTUM:
        g += tl.load(first + place, mask=there, other=0.0) * tl.load(momentum)
        tl.store(first + place, g, mask=there)
    w -= g * tl.load(lr)
    tl.store(weights + place, w, mask=there)
    if SHORTENS:
        tl.store(shortened + place, w.to(tl.float32).to(shortened.dtype.element_ty), mask=there)
