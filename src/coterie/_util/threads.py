"""Threads on the server, and compiled functions that run on them without the GIL.

Work is split into pieces of fixed shape, so that results do not depend on the number of cores. A linear-algebra library that splits one
product over threads rounds differently with each number of them. Here each piece runs on one thread, and pieces are taken in order.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any, TypeVar, cast

from threadpoolctl import ThreadpoolController

A = TypeVar("A")
B = TypeVar("B")


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Linear algebra and k-means on one thread each."""
    with _get_thread_pools().limit(limits=1):
        yield


def map_in_order(work: Callable[[A], B], pieces: Iterable[A], workers: int) -> Iterator[B]:
    """The result of each piece, in order, with at most `workers` pieces at work or waiting: memory stays bounded."""
    remaining = iter(pieces)
    if workers <= 1:
        yield from map(work, remaining)
        return
    with ThreadPoolExecutor(workers) as pool:
        while batch := list(islice(remaining, workers)):
            yield from pool.map(work, batch)


def map_with_helpers(pool: Executor, helpers: int, work: Callable[[A], B], pieces: Sequence[A]) -> list[B]:
    """The result of each piece, in order. The calling thread takes pieces as well, so that there is one fewer to be woken; a helper that
    has not begun when all are taken is not waited for."""
    found: dict[int, B] = {}
    numbers = iter(range(len(pieces)))  # one for all: whoever is free takes the next

    def take() -> None:
        try:
            for number in numbers:
                found[number] = work(pieces[number])
        finally:
            for _ in numbers:  # after an error no thread takes another
                pass

    others = [pool.submit(take) for _ in range(min(helpers, len(pieces) - 1))]
    try:
        take()
    finally:
        wait(other for other in others if not other.cancel())
    for other in others:
        if not other.cancelled():
            other.result()
    return [found[number] for number in range(len(pieces))]


@cache
def _get_thread_pools() -> ThreadpoolController:
    return ThreadpoolController()


F = TypeVar("F", bound=Callable[..., Any])


def compile_function(function: F) -> F:
    """The function as machine code that runs without the GIL; without a place to keep it, compiled again in each process.

    Sums keep the order in which they are written, and no product is fused with a sum: the bits are those of NumPy.
    """
    from numba import njit  # here: importing it takes a while, and not every command needs it

    try:
        return cast(F, njit(nogil=True, error_model="numpy", cache=True)(function))
    except RuntimeError:  # numba found no folder that it may write to
        return cast(F, njit(nogil=True, error_model="numpy")(function))
