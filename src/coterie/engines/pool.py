"""Clients side by side on the CPU: a thread each, with a module of its own and one thread of torch's. Bits do not depend on how many."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue

import torch

from coterie.core.parameters import torch_seeded
from coterie.engines.workspace import Workspace


class Pool:
    """Threads kept between asks."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._threads = ThreadPoolExecutor(threads, "coterie-loop", initializer=torch.set_num_threads, initargs=(1,))

    def share(self, work: Callable[[int, Workspace], None], items: Sequence[int], space: Workspace) -> bool:
        """Carry out ``work(item, space)`` for every item, each in a space of its own; False where it has to be done one after the other.

        Torch has one generator for all threads, so clients whose module draws from it (dropout) cannot train side by side and keep to
        their keys. That shows in its state afterwards; the work is then to be done again, and this declines it from there on.
        """
        if min(self.threads, len(items)) < 2 or space.draws:
            return False
        free: SimpleQueue[Workspace] = SimpleQueue()
        for twin in space.twins(min(self.threads, len(items))):
            free.put(twin)

        def in_a_space(item: int) -> None:
            own = free.get()
            try:
                work(item, own)
            finally:
                free.put(own)

        with torch_seeded(0):
            before = torch.get_rng_state()
            self._finish(in_a_space, items, space)
            space.draws = not torch.equal(before, torch.get_rng_state())
        return not space.draws

    def _finish(self, work: Callable[[int], None], items: Sequence[int], space: Workspace) -> None:
        """Do all the work; on any interruption see that everybody has stopped."""
        futures = [self._threads.submit(work, item) for item in items]
        try:
            while wait(futures, timeout=0.5).not_done:  # in slices, since an endless wait cannot be interrupted on every system
                pass
        except BaseException:
            space.closing.set()
            wait(futures)
            space.closing.clear()
            raise
        for future in futures:
            future.result()

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown()
