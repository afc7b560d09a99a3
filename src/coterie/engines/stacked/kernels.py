"""The compiled kernels of a layer, where there are some for a tensor."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def kernels_for(x: Tensor, layer: str) -> Any:
    """The module with the layer's kernels for float32 on a GPU; None elsewhere, in float64 too, where torch's own operations do."""
    if x.dtype != torch.float32 or not x.is_cuda or not _has_triton():
        return None
    return import_module(f"coterie.engines.stacked.{layer}_gpu")


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
