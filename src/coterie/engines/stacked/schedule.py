"""How the stacked route divides its work: which trainings are stacked together, and which samples each step takes.

Everything here follows from the job and the budget alone, never from the memory that happens to be free: the same job is cut the same way
on every run, so its bits can be reproduced. A GPU makes the table of steps itself, with the same numbers.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.arrays import Array, Ints
from coterie.core.rng import GOLDEN, fold_keys
from coterie.engines.jobs import TrainingJob, shuffle_on_device

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


def compute_batch_widths(job: TrainingJob) -> Ints:
    """(n,) the largest batch of each training."""
    return np.minimum(job.batch_size, job.samples())


def split_chunks(job: TrainingJob, limit: dict[int, int]) -> list[Ints]:
    """Trainings to stack together, the longest first; `limit` gives how many fit for each bucket of batch sizes (see `compute_buckets`).

    A bucket's trainings are cut into equal parts, not into full ones and a remainder: equal stacks can share captured steps.
    """
    steps, bucket = job.steps(), compute_buckets(job)
    found: list[Ints] = []
    for size in sorted(limit, reverse=True):
        members = np.flatnonzero((bucket == size) & (steps > 0))
        members = members[np.argsort(-steps[members], kind="stable")]
        if len(members):
            found += np.array_split(members, ceil(len(members) / limit[size]))
    return found


def compute_buckets(job: TrainingJob) -> Ints:
    """(n,) the power of two, at least NARROW, that holds each training's batch: a stack never pads to more than double beyond NARROW."""
    exponents = np.ceil(np.log2(np.maximum(compute_batch_widths(job), NARROW)))
    return (2**exponents).astype(np.int64)


def compute_segments(steps: Ints) -> list[Segment]:
    """The shrinking prefix of a stack whose trainings are sorted by steps, descending."""
    ends = np.unique(steps)  # ascending
    active = np.array([np.count_nonzero(steps >= end) for end in ends], dtype=np.int64)
    left = np.append(active[1:], 0)
    begins = np.append(0, ends[:-1])
    return [Segment(int(b), int(e), int(a), int(after)) for b, e, a, after in zip(begins, ends, active, left, strict=True)]


def make_step_table(job: TrainingJob, trainings: Ints, capacity: int) -> StepTable:
    """The steps of these trainings (sorted by steps, descending); rows beyond them, up to the capacity, stand idle on sample 0."""
    steps = job.steps()[trainings]
    width = int(compute_batch_widths(job)[trainings].max())
    samples = np.zeros((int(steps[0]), capacity, width), dtype=np.int32)
    counts = np.ones((int(steps[0]), capacity), dtype=np.int32)
    for row, i in enumerate(trainings):
        own = job.indices[job.offsets[i] : job.offsets[i + 1]]
        size, n = min(int(job.batch_size[i]), len(own)), len(own)
        batches = ceil(n / size)  # an epoch
        orders = own[_shuffle_epochs(job.keys[i], ceil(steps[row] / batches), n)]  # (epochs, n)
        short = batches * size - n
        filler = np.repeat(orders[:, [(batches - 1) * size]], short, axis=1)  # the last batch's own first sample
        rows = np.concatenate([orders, filler], axis=1).reshape(-1, size)[: steps[row]]
        samples[: steps[row], row, :size] = rows
        samples[: steps[row], row, size:] = rows[:, :1]
        samples[steps[row] :, row] = own[0]
        counts[: steps[row], row] = size
        counts[batches - 1 : steps[row] : batches, row] = size - short
    return StepTable(samples, counts)


def _shuffle_epochs(key: np.uint64, epochs: int, n: int) -> Ints:
    """(epochs, n): row e is ``rng.shuffle(extend(key, e), n)``, all the epochs in one sort."""
    keys = fold_keys(np.full(epochs, key, np.uint64), np.arange(epochs, dtype=np.uint64))
    # rng.words numbers its counters from 1, and fold adds the golden ratio once: so these count from 0
    counters = np.arange(n, dtype=np.uint64) * np.uint64(GOLDEN)
    return np.argsort(fold_keys(keys[:, None] + counters, np.zeros(1, np.uint64)), axis=1, kind="stable").astype(np.int64)


def make_step_table_on_device(job: TrainingJob, trainings: Ints, capacity: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Samples (T, capacity, B) and counts (T, capacity) of these trainings, sorted by steps; rows beyond them stand idle on sample 0."""
    steps, n = job.steps()[trainings], job.samples()[trainings]
    size = compute_batch_widths(job)[trainings]
    batches = -(-n // size)  # of an epoch
    epochs = -(-steps // batches)
    first = np.concatenate([[0], np.cumsum(epochs * n)[:-1]])  # where a training's orders begin
    order = shuffle_on_device(job.keys[trainings], n, np.zeros_like(epochs), epochs, device)
    begin, own, last, many, wide, each = (_to_row(a, device) for a in (first, job.offsets[trainings], steps, n, size, batches))
    step, place = torch.arange(int(steps[0]), device=device)[:, None], torch.arange(int(size.max()), device=device)
    epoch, batch = step // each, step % each  # (T, k)
    trains = step < last
    real = torch.where(trains, torch.minimum(wide, many - batch * wide), 1)  # (T, k)
    inside = torch.where(place < real[..., None], place, 0)  # padding repeats the batch's first sample
    at = (begin + epoch * many + batch * wide)[..., None] + inside
    taken = torch.where(trains[..., None], order[torch.where(trains[..., None], at, 0)], 0)  # one that has ended keeps its first sample
    rows = _to_row(job.indices, device)[0][own[..., None] + taken]
    samples = torch.zeros((*rows.shape[:1], capacity, rows.shape[2]), dtype=torch.int32, device=device)
    counts = torch.ones(samples.shape[:2], dtype=torch.int32, device=device)
    samples[:, : len(trainings)], counts[:, : len(trainings)] = rows.to(torch.int32), real.to(torch.int32)
    return samples, counts


def _to_row(values: Array, device: torch.device) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), device=device)[None]
