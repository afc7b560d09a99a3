"""Threads on the server: work is spread in pieces of fixed shape, so that results do not depend on how many cores there are.

A linear-algebra library that splits one product over threads rounds differently with each number of them. Here each piece runs on one
thread, and pieces are taken in order.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import TypeVar

from threadpoolctl import ThreadpoolController

A = TypeVar("A")
B = TypeVar("B")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Linear algebra and k-means on one thread each."""
    with _pools().limit(limits=1):
        yield


def in_order(work: Callable[[A], B], pieces: Iterable[A], workers: int) -> Iterator[B]:
    """The result of each piece, in order, with at most `workers` pieces at work or waiting: memory stays bounded."""
    remaining = iter(pieces)
    if workers <= 1:
        yield from map(work, remaining)
        return
    with ThreadPoolExecutor(workers) as pool:
        while batch := list(islice(remaining, workers)):
            yield from pool.map(work, batch)


@cache
def _pools() -> ThreadpoolController:
    return ThreadpoolController()
