"""How a GPU multiplies: in float32, unless the shorter TF32 is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Precision = Literal["float32", "tf32"]


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Within the block torch's products and convolutions have this precision.

    By default torch lets convolutions on a GPU be TF32, which keeps three digits: a loop that leaves it so is no reference for anything.
    """
    cudnn: Any = torch.backends.cudnn  # its precisions are not in the stubs
    backends = (torch.backends.cuda.matmul, cudnn.conv)
    before, repeatable = [backend.fp32_precision for backend in backends], cudnn.deterministic
    cudnn.deterministic = True  # the same bits every time: what engines promise
    for backend in backends:
        backend.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        cudnn.deterministic = repeatable
        for backend, value in zip(backends, before, strict=True):
            backend.fp32_precision = value
