"""The table of steps made where it is used: the same numbers as `plan.table`, which a GPU sorts faster than the host."""

import numpy as np
import torch
from torch import Tensor

from coterie.core.arrays import Array, Ints
from coterie.engines.fused.gpu.orders import orders
from coterie.engines.job import FusedJob
from coterie.engines.vectorised.plan import widths


def table_on(job: FusedJob, trainings: Ints, capacity: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Samples (T, capacity, B) and counts (T, capacity) of these trainings, sorted by steps; rows beyond them stand idle on sample 0."""
    steps, n = job.steps()[trainings], job.samples()[trainings]
    size = widths(job)[trainings]
    batches = -(-n // size)  # of an epoch
    epochs = -(-steps // batches)
    first = np.concatenate([[0], np.cumsum(epochs * n)[:-1]])  # where a training's orders begin
    order = orders(job.keys[trainings], n, np.zeros_like(epochs), epochs, device)
    begin, own, last, many, wide, each = (_row(a, device) for a in (first, job.offsets[trainings], steps, n, size, batches))
    step, place = torch.arange(int(steps[0]), device=device)[:, None], torch.arange(int(size.max()), device=device)
    epoch, batch = step // each, step % each  # (T, k)
    trains = step < last
    real = torch.where(trains, torch.minimum(wide, many - batch * wide), 1)  # (T, k)
    inside = torch.where(place < real[..., None], place, 0)  # padding repeats the batch's first sample
    at = (begin + epoch * many + batch * wide)[..., None] + inside
    taken = torch.where(trains[..., None], order[torch.where(trains[..., None], at, 0)], 0)  # one that has ended keeps its first sample
    rows = _row(job.indices, device)[0][own[..., None] + taken]
    samples = torch.zeros((*rows.shape[:1], capacity, rows.shape[2]), dtype=torch.int32, device=device)
    counts = torch.ones(samples.shape[:2], dtype=torch.int32, device=device)
    samples[:, : len(trainings)], counts[:, : len(trainings)] = rows.to(torch.int32), real.to(torch.int32)
    return samples, counts


def _row(values: Array, device: torch.device) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values), device=device)[None]
