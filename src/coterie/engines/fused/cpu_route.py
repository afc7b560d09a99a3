"""The fused route on the CPU: one call for the trainings of all clients of all lanes, on all cores, without the GIL.

Workers take trainings from one queue, the longest first, so that the cores finish together. A training is one worker's from beginning to
end and touches only its own numbers: its bits depend neither on the threads nor on the rest of the job. While the workers are busy the
calling thread waits, so Ctrl-C reaches it at once; it raises a flag that every worker reads before every step.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from importlib.util import find_spec

import numpy as np

from coterie._util.threads import count_cores
from coterie.core.arrays import Doubles, Floats, Ints
from coterie.engines.jobs import TrainingJob

SHORT = 0.2  # seconds of work during which the caller need not stay free to hear Ctrl-C, and lends a hand
WORTH_A_THREAD = 2e-4  # seconds of work that pay for handing it over
# Of a weight and a sample, forward and backward, and of a step; only the order and the number of workers hang on them.
SECONDS_PER_PRODUCT, SECONDS_PER_STEP = 5e-11, 5e-7


def is_available() -> bool:
    """Whether the kernels can be compiled here; otherwise take another route."""
    return find_spec("numba") is not None


def train(job: TrainingJob, threads: int | None = None) -> tuple[Floats, Ints]:
    """The trained models (n, d), and the steps (n,) that each took. By default on all cores."""
    vectors, steps, _ = train_with_losses(job, threads, report=False)
    return vectors, steps


def train_with_losses(job: TrainingJob, threads: int | None = None, *, report: bool = True) -> tuple[Floats, Ints, Doubles]:
    """`train`, and, where they are to be reported, the mean loss of the batch before each step: of all trainings, one after the other."""
    from coterie.engines.fused.cpu_training import get_buffers, get_chunk_size, get_kernel, make_kernel_job

    job.check()
    work, steps = get_kernel(), job.steps()
    vectors = np.ascontiguousarray(job.models, dtype=np.float32)[job.start]  # a training of no steps returns its start
    products = np.minimum(job.batch_size, job.samples()) * (job.parameters * SECONDS_PER_PRODUCT)
    costs = steps * (products + SECONDS_PER_STEP)  # about how many seconds each training takes on one core
    queue = np.argsort(-costs, kind="stable")[: np.count_nonzero(steps)]
    begins = np.concatenate([[0], np.cumsum(steps)]) if report else np.zeros(len(steps) + 1, np.int64)
    losses = np.zeros(int(begins[-1]))
    if len(queue):
        threads, total, chunk, longest = threads or count_cores(), float(costs.sum()), get_chunk_size(job), int(job.samples().max())
        arrays = make_kernel_job(job, steps, chunk)
        next_in_queue, stop = np.zeros(1, np.int64), np.zeros(1, np.int64)
        _run_workers(
            lambda: work(arrays, queue, get_buffers(job.sizes, chunk, longest), next_in_queue, stop, vectors, begins, losses),
            workers=max(1, min(threads, len(queue), int(total / WORTH_A_THREAD))),
            threads=threads,
            lend=total < SHORT,
            stop=stop,
        )
    return vectors, steps, losses


def warm_up() -> None:
    """Compile, or load what an earlier process compiled, so that this time is not taken for training's."""
    one, row = np.ones(1), np.ones(1, np.int64)
    train(
        TrainingJob(
            sizes=(1, 2),
            x=np.ones((1, 1), np.float32),
            y=row,
            offsets=np.array([0, 1]),
            indices=row - 1,
            models=np.zeros((1, 4), np.float32),
            start=row - 1,
            keys=row.astype(np.uint64),
            epochs=row,
            max_steps=-row,
            batch_size=row,
            lr=one,
            momentum=one - 1,
            weight_decay=one - 1,
            mu=one - 1,
        ),
        threads=1,
    )


def _run_workers(run: Callable[[], None], workers: int, threads: int, lend: bool, stop: Ints) -> None:
    """Run the same worker so many times at once; on any interruption signal them all to stop, and see that they have."""
    futures: list[Future[None]] = []
    try:
        futures += [_get_pool(os.getpid(), threads).submit(run) for _ in range(workers - lend)]
        if lend:
            run()
        while futures and wait(futures, timeout=0.5).not_done:  # in slices, since an endless wait cannot be interrupted on every system
            pass
    except BaseException:
        stop[0] = 1
        wait(futures)
        raise
    for future in futures:
        future.result()


@lru_cache(maxsize=4)
def _get_pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads kept between calls; a forked process makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="coterie-fused")
