"""What a step adds to the loss's gradient, added where a kernel has weight and gradient in hand, so that it is no pass of its own."""

# ruff: noqa: N803 (capitals for what is fixed when a kernel is compiled, as Triton's own code has them)

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from coterie.engines.stacked.layer import Descent, StackedLayer

jit: Callable[[Callable[..., Any]], Any] = triton.jit


class TermOperands(NamedTuple):
    """What a kernel is given for the terms of a layer; a tensor that it will not read stands for those that are not there."""

    rates: Tensor  # (k, 1), as the next three
    mus: Tensor
    shifts: Tensor
    decays: Tensor
    anchor: Tensor
    linear: Tensor
    bias_anchor: Tensor
    bias_linear: Tensor
    PULLS: bool
    SHIFTS: bool
    DECAYS: bool


def term_operands(layer: StackedLayer, descent: Descent, unread: Tensor) -> TermOperands:
    """The layer's operands, in the order of the kernels' parameters."""
    terms, of_bias = descent.terms_of(layer.weight), descent.terms_of(layer.bias or layer.weight)

    def there(tensor: Tensor | None) -> Tensor:
        return unread if tensor is None else tensor

    return TermOperands(
        rates=there(descent.rates),
        mus=there(terms.mu),
        shifts=there(terms.shifted),
        decays=there(terms.decay),
        anchor=there(terms.anchor),
        linear=there(terms.linear),
        bias_anchor=there(of_bias.anchor),
        bias_linear=there(of_bias.linear),
        PULLS=terms.anchor is not None,
        SHIFTS=terms.linear is not None,
        DECAYS=terms.decay is not None,
    )


@jit
def with_terms(
    gradient: tl.tensor,
    w: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    anchor: tl.tensor,
    linear: tl.tensor,
    mu: tl.tensor,
    shifted: tl.tensor,
    decay: tl.tensor,
    PULLS: tl.constexpr,
    SHIFTS: tl.constexpr,
    DECAYS: tl.constexpr,
) -> tl.tensor:
    """The gradient at some weights of one training with mu (w - anchor) + linear + decay w; without a term nothing is read for it."""
    if PULLS and mu != 0:
        gradient += mu * (w - tl.load(anchor + at, mask=inside, other=0.0))
    if SHIFTS and shifted != 0:
        gradient += tl.load(linear + at, mask=inside, other=0.0)
    if DECAYS:
        gradient += decay * w
    return gradient
