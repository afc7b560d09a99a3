"""How the vectorised route divides its work: which trainings are stacked together, and which samples each step takes.

Everything here follows from the job and the budget alone, never from the memory that happens to be free: the same job is cut alike on
every run, so its bits can be had again.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from coterie.core.arrays import Ints
from coterie.core.rng import GOLDEN, fold
from coterie.engines.job import FusedJob

NARROW = 32  # batches up to this size share a stack whatever their padding: so few rows cost less than a second row of steps


@dataclass(frozen=True)
class StepTable:
    """Which samples each step of each stacked training takes: padded, and ready to go to the device in one piece."""

    samples: npt.NDArray[np.int32]  # (T, capacity, B) sample numbers; padding repeats a sample of the same batch
    counts: npt.NDArray[np.int32]  # (T, capacity) how many of the B are real; 1 where a training has already ended


@dataclass(frozen=True)
class Segment:
    """Steps [begin, end) in which the same first `active` rows of a stack train; rows [left, active) end with it."""

    begin: int
    end: int
    active: int
    left: int


def widths(job: FusedJob) -> Ints:
    """(n,) the largest batch of each training."""
    return np.minimum(job.batch_size, job.samples())


def chunks(job: FusedJob, limit: dict[int, int]) -> list[Ints]:
    """Trainings to stack together, the longest first; `limit` says how many fit for each bucket of batch sizes (see `buckets`).

    A bucket's trainings are cut into equal parts, not into full ones and a remainder: equal stacks can share captured steps.
    """
    steps, bucket = job.steps(), buckets(job)
    found: list[Ints] = []
    for size in sorted(limit, reverse=True):
        members = np.flatnonzero((bucket == size) & (steps > 0))
        members = members[np.argsort(-steps[members], kind="stable")]
        if len(members):
            found += np.array_split(members, ceil(len(members) / limit[size]))
    return found


def buckets(job: FusedJob) -> Ints:
    """(n,) the power of two, at least NARROW, that holds each training's batch: a stack never pads to more than double beyond NARROW."""
    exponents = np.ceil(np.log2(np.maximum(widths(job), NARROW)))
    return (2**exponents).astype(np.int64)


def shrinking_prefixes(steps: Ints) -> list[Segment]:
    """The shrinking prefix of a stack whose trainings are sorted by steps, descending."""
    ends = np.unique(steps)  # ascending
    active = np.array([np.count_nonzero(steps >= end) for end in ends], dtype=np.int64)
    left = np.append(active[1:], 0)
    begins = np.append(0, ends[:-1])
    return [Segment(int(b), int(e), int(a), int(after)) for b, e, a, after in zip(begins, ends, active, left, strict=True)]


def table(job: FusedJob, trainings: Ints, capacity: int) -> StepTable:
    """The steps of these trainings (sorted by steps, descending); rows beyond them, up to the capacity, stand idle on sample 0."""
    steps = job.steps()[trainings]
    width = int(widths(job)[trainings].max())
    samples = np.zeros((int(steps[0]), capacity, width), dtype=np.int32)
    counts = np.ones((int(steps[0]), capacity), dtype=np.int32)
    for row, i in enumerate(trainings):
        own = job.indices[job.offsets[i] : job.offsets[i + 1]]
        size, n = min(int(job.batch_size[i]), len(own)), len(own)
        batches = ceil(n / size)  # an epoch
        orders = own[_shuffles(job.keys[i], ceil(steps[row] / batches), n)]  # (epochs, n)
        short = batches * size - n
        filler = np.repeat(orders[:, [(batches - 1) * size]], short, axis=1)  # the last batch's own first sample
        rows = np.concatenate([orders, filler], axis=1).reshape(-1, size)[: steps[row]]
        samples[: steps[row], row, :size] = rows
        samples[: steps[row], row, size:] = rows[:, :1]
        samples[steps[row] :, row] = own[0]
        counts[: steps[row], row] = size
        counts[batches - 1 : steps[row] : batches, row] = size - short
    return StepTable(samples, counts)


def _shuffles(key: np.uint64, epochs: int, n: int) -> Ints:
    """(epochs, n): row e is ``rng.shuffle(extend(key, e), n)``, all the epochs in one sort."""
    keys = fold(np.full(epochs, key, np.uint64), np.arange(epochs, dtype=np.uint64))
    # rng.words numbers its counters from 1, and fold adds the golden ratio once: so these count from 0
    counters = np.arange(n, dtype=np.uint64) * np.uint64(GOLDEN)
    return np.argsort(fold(keys[:, None] + counters, np.zeros(1, np.uint64)), axis=1, kind="stable").astype(np.int64)
