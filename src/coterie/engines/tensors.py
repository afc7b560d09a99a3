"""Arrays as tensors that share their memory, memory maps of files among them; and tensors of a device as arrays."""

import warnings

import torch
from torch import Tensor

from coterie.core.arrays import Array, Floats

MOST_PINNED = 1 << 30  # bytes


def as_tensor(array: Array, device: torch.device | None = None) -> Tensor:
    """``torch.as_tensor`` for data that is only read.

    torch warns of arrays that cannot be written to, since it cannot mark a tensor so. The arrays of a federation are never written,
    and a memory map must be read-only: the system would count a private copy of a large file against memory.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.as_tensor(array, device=device)


def read_off(few: Tensor) -> Array:
    """Few numbers, as arrays: counts, norms, products of pairs. What is as long as a model is `fetched`."""
    return few.cpu().numpy()


def fetched(vectors: Tensor) -> Floats:
    """Its numbers on the host, in pages that torch pins and hands out again and again; with fresh ones a copy outlasted the training."""
    if not vectors.is_cuda or vectors.nbytes > MOST_PINNED:
        return vectors.cpu().numpy()
    return torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True).copy_(vectors).numpy()
