"""How a GPU multiplies: in float32, unless the shorter TF32 or bfloat16 is asked for."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch

Precision = Literal["float32", "tf32", "bf16"]


def passes_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """One pass through a module: in bf16 its products have bfloat16 factors, and weights, sums and the loss stay float32.

    A context for each pass: within one, torch keeps the shortened weights, and would not notice that a step has changed them.
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


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
        backend.fp32_precision = "ieee" if precision == "float32" else "tf32"
    try:
        yield
    finally:
        cudnn.deterministic = repeatable
        for backend, value in zip(backends, before, strict=True):
            backend.fp32_precision = value
