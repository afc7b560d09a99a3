"""The kernel's way in, compiled once and kept on disk."""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from coterie.core.arrays import Floats, Ints
from coterie.core.compiled import compiled
from coterie.engines.fused.cpu.primitives import claim, raised
from coterie.engines.fused.cpu.training import KernelJob, Space, flatten_model, train_one

Kernel = Callable[[KernelJob, Ints, Space, Ints, Ints, Floats], None]


@lru_cache(maxsize=1)
def kernel() -> Kernel:
    """The worker as machine code."""

    def work(t: KernelJob, queue: Ints, space: Space, next_in_queue: Ints, stop: Ints, vectors: Floats) -> None:
        """Take trainings from the queue until it is empty or the flag is raised."""
        ticket = claim(next_in_queue)
        while ticket < len(queue) and not raised(stop):
            train_one(t, queue[ticket], space, stop)
            flatten_model(t.plan, space.weights, vectors, queue[ticket])
            ticket = claim(next_in_queue)

    # numba looks only at this file to see whether what it kept is stale, and stumbles over types that are no longer there: what another
    # version of the sources has left is kept under another name.
    work.__qualname__ = f"work_{_version():x}"
    return compiled(work)


def _version() -> int:
    """A number made from the sources of the kernel."""
    digest = blake2b(digest_size=7)
    for source in ("network", "primitives", "tiles", "training", "vectors"):
        digest.update(Path(__file__).with_name(f"{source}.py").read_bytes())
    return int.from_bytes(digest.digest(), "little")
