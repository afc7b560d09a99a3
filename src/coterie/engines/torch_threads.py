"""How many threads torch's own operations use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within the block, an operation of torch runs on `count` threads.

    One is right for small models (an operation is shorter than waking a second thread), and it keeps bits: sums that are split over
    threads depend on how many there are.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
