"""Features of a large frozen body on disk, in the cache of whoever holds the samples: a resumed study does not compute them again."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from torch import nn

from coterie.core.arrays import Array, Floats
from coterie.data.folder import cache_folder
from coterie.engines.workspace import LARGE_MODEL

SMALL_SAMPLE = 1 << 10  # numbers: through an image goes each weight of a convolution many times
PIECE = 1 << 14  # samples hashed at a time: they may be mapped from a file larger than memory


def kept(body: nn.Module, x: Array, how: str, compute: Callable[[], Floats]) -> Floats:
    """What `compute` gives, or gave for the same body, samples and `how` before. A small body is quicker than a file, on small samples."""
    if sum(w.numel() for w in body.parameters()) <= LARGE_MODEL and x[:1].size <= SMALL_SAMPLE:
        return compute()
    place = cache_folder() / "features" / f"{_hash(body, x, how)}.npy"
    with suppress(OSError, ValueError, EOFError):  # what cannot be read is made anew
        found: Floats = np.load(place, allow_pickle=False)
        if found.dtype == np.float32 and len(found) == len(x):
            return found
    made = compute()
    draft = place.with_name(f".draft-{os.getpid()}-{place.name}")
    with suppress(OSError):  # a full disk costs the next run its time, and this one nothing
        place.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            np.save(file, made, allow_pickle=False)
        draft.replace(place)
    return made


def _hash(body: nn.Module, x: Array, how: str) -> str:
    """Of the body's numbers, the samples, and how the one is applied to the other."""
    sum_ = hashlib.sha256(f"{how} {torch.__version__} {x.shape} {x.dtype}".encode())
    for name, tensor in body.state_dict().items():
        sum_.update(name.encode())
        sum_.update(tensor.cpu().numpy().tobytes())
    for begin in range(0, len(x), PIECE):
        sum_.update(x[begin : begin + PIECE].tobytes())
    return sum_.hexdigest()
