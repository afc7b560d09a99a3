"""A job as the GPU kernels take it: two small tables, a stream of samples, and models that stay on the device from piece to piece."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from coterie.core.arrays import Array, Ints
from coterie.engines.apart import all_on
from coterie.engines.free_memory import stacked_memory
from coterie.engines.fused.gpu.layout import pack, packed
from coterie.engines.fused.gpu.orders import orders
from coterie.engines.job import FusedJob

LONGEST_STREAM = 1 << 25  # samples in a piece of the work: about 2 GiB while they are sorted
LONGEST_TURN = 1 << 20  # samples of one training in a piece: about a second of a softmax regression


class PackedModels(NamedTuple):
    """The models of all trainings on the device, in the kernels' layout, and what pulls at them."""

    weights: torch.Tensor  # (n, packed)
    velocity: torch.Tensor  # (n, packed)
    anchors: torch.Tensor  # (n or k, packed): of the models, those that trainings begin from, in order
    linear: torch.Tensor  # (n, packed), or anything where no training has a linear term
    reals: torch.Tensor  # (n, 5): lr, momentum, weight decay, mu, whether there is a linear term


class Piece(NamedTuple):
    """Some epochs of those trainings that are still at work, the longest first."""

    integers: torch.Tensor  # (m, 7): training, anchor's row, samples, batch size, steps, the part of the stream: begin, end
    reals: torch.Tensor  # (m, 5)
    rows: torch.Tensor  # the stream: rows of x in the order in which they are taken
    labels: torch.Tensor


def stretches(job: FusedJob, device: torch.device) -> list[tuple[int, int]]:
    """Where the job is cut so that no more of its models are packed at a time than may be stacked; [begin, end) of each part.

    The bits of a training do not depend on the others, so that they do not depend on this either.
    """
    n, copies = len(job.start), 3 + (job.anchors is not None) + (job.linear is not None)  # starts, weights, velocities
    together = max(1, stacked_memory(device) // (4 * copies * packed(job.sizes)))
    return [(begin, min(begin + together, n)) for begin in range(0, n, together)]


def stack(job: FusedJob, models: torch.Tensor) -> PackedModels:
    """The models (k, d) of the job, which are on the device, as its trainings begin from them."""
    device = models.device
    used, place = np.unique(job.start, return_inverse=True)
    models = pack(job.sizes, models if len(used) == len(models) else models[_sent(used, device)])
    # with one training a model, and nothing that pulls back to it, it need not be there twice
    weights = models if not job.mu.any() and np.array_equal(place, np.arange(len(used))) else models[_sent(place, device)]
    has_linear = job.shifted
    reals = np.stack([job.lr, job.momentum, job.weight_decay, job.mu, has_linear], 1).astype(np.float32)
    return PackedModels(
        weights=weights,
        velocity=torch.zeros_like(weights),
        anchors=models if job.anchors is None else pack(job.sizes, all_on(job.anchors, device)),
        linear=pack(job.sizes, all_on(job.linear, device)) if job.linear is not None and has_linear.any() else weights,
        reals=_sent(reals, device),
    )


def pieces(job: FusedJob, steps: Ints, reals: torch.Tensor, labels: torch.Tensor) -> Iterator[Piece]:
    """The job's work, cut between epochs so that no stream outgrows the memory and Ctrl-C is heard."""
    device, samples = labels.device, job.samples()
    an_epoch = np.maximum(1, -(-samples // job.batch_size))  # steps
    epochs = -(-steps // an_epoch)
    anchor = np.unique(job.start, return_inverse=True)[1] if job.anchors is None else np.arange(len(steps))  # as `stack` has them
    indices = _sent(job.indices, device)
    begin, latest = 0, int(epochs.max(initial=0))
    while begin < latest:
        at_work = np.flatnonzero(epochs > begin)
        end = begin + max(1, min(LONGEST_STREAM // int(samples[at_work].sum()), LONGEST_TURN // int(samples[at_work].max())))
        first, last = np.full(len(at_work), begin), np.minimum(end, epochs[at_work])
        here = np.minimum(steps[at_work], last * an_epoch[at_work]) - first * an_epoch[at_work]
        queue = np.argsort(-here, kind="stable")
        chosen, first, last, here = at_work[queue], first[queue], last[queue], here[queue]
        stops = np.cumsum((last - first) * samples[chosen])
        integers = [chosen, anchor[chosen], samples[chosen], job.batch_size[chosen], here, np.r_[0, stops[:-1]], stops]
        order = orders(job.keys[chosen], samples[chosen], first, last, device)
        lengths = _sent((last - first) * samples[chosen], device)
        rows = indices[order + torch.repeat_interleave(_sent(job.offsets[chosen], device), lengths, output_size=len(order))]
        yield Piece(
            integers=_sent(np.stack(integers, 1).astype(np.int32), device),
            reals=reals[_sent(chosen, device)],
            rows=rows.to(torch.int32),
            labels=labels[rows].to(torch.int32),
        )
        begin = end


def _sent(array: Array, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
