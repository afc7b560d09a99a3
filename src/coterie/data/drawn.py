"""Room for samples that are drawn, not read: in memory, or, where they are many, in files of the user's cache that are mapped."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from coterie._util.json_io import to_json_line
from coterie.core.arrays import Floats, Ints
from coterie.data.folder import cache_folder
from coterie.data.store import whole_folder

IN_MEMORY = 1 << 30  # bytes of features up to which they are held
VERSION = 1  # of what is drawn: another one is drawn anew


def drawn_arrays(
    name: str, settings: Sequence[Any], samples: int, features: int, fill: Callable[[Floats, Ints], None]
) -> tuple[Floats, Ints]:
    """Features (samples, features) and labels as `fill` draws them; those of a GiB or more once for these settings, and then mapped."""
    if 4 * samples * features < IN_MEMORY:
        x, y = np.empty((samples, features), dtype=np.float32), np.empty(samples, dtype=np.int64)
        fill(x, y)
        return x, y
    told = hashlib.sha256(to_json_line([VERSION, name, samples, features, list(settings)]).encode()).hexdigest()[:16]
    folder = cache_folder() / "drawn" / f"{name}-{told}"
    if not folder.exists():
        with whole_folder(folder) as work:
            x = open_memmap(work / "x.npy", mode="w+", dtype=np.float32, shape=(samples, features))
            y = open_memmap(work / "y.npy", mode="w+", dtype=np.int64, shape=(samples,))
            fill(x, y)
            x.flush()
            y.flush()
    return np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")
