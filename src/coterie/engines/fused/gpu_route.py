"""The fused route on a GPU: all trainings of all lanes in one launch, one program each, all their epochs.

A layer is a matrix (inputs + 1, width): its last row is the bias, met by an input that is always one; its columns are the outputs, with
zeros up to a power of two. A training touches only its own numbers, so the bits of a model depend on its training alone, not on the number
of lanes. Softmax regressions whose tile fits on the chip keep their weights there; networks, and wider regressions, keep them in memory.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from coterie.core.arrays import Array, Floats, Ints
from coterie.engines.device import choose_storage_device, fetch_tensor, get_resident_memory, get_stacked_memory, has_triton
from coterie.engines.jobs import TrainingJob, send_rows, shuffle_on_device

NARROWEST = 16  # what a product of tiles takes at least


def pad_width(outputs: int) -> int:
    """The columns of a layer: the outputs, rounded up to a power of two."""
    return max(NARROWEST, 1 << (outputs - 1).bit_length())


def get_packed_length(sizes: tuple[int, ...]) -> int:
    """The length of a model in this layout."""
    return sum((inputs + 1) * pad_width(outputs) for inputs, outputs in pairwise(sizes))


def pack(sizes: tuple[int, ...], flat: torch.Tensor) -> torch.Tensor:
    """(k, d) flat models to (k, `get_packed_length`)."""
    out = flat.new_zeros((len(flat), get_packed_length(sizes)))
    for (weight, bias), layer in zip(_flat_layers(sizes, flat), _packed_layers(sizes, out), strict=True):
        layer[:, :-1, : weight.shape[1]] = weight.transpose(1, 2)
        layer[:, -1, : weight.shape[1]] = bias
    return out


def unpack(sizes: tuple[int, ...], models: torch.Tensor) -> torch.Tensor:
    """(k, `get_packed_length`) to (k, d) flat models."""
    out = models.new_empty((len(models), sum(outputs * (inputs + 1) for inputs, outputs in pairwise(sizes))))
    for (weight, bias), layer in zip(_flat_layers(sizes, out), _packed_layers(sizes, models), strict=True):
        weight.copy_(layer[:, :-1, : weight.shape[1]].transpose(1, 2))
        bias.copy_(layer[:, -1, : weight.shape[1]])
    return out


def _flat_layers(sizes: tuple[int, ...], flat: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Views (k, out, in) and (k, out) of the weights and biases."""
    layers, at = [], 0
    for inputs, outputs in pairwise(sizes):
        weight, end = flat[:, at : at + outputs * inputs], at + outputs * (inputs + 1)
        layers.append((weight.view(len(flat), outputs, inputs), flat[:, at + outputs * inputs : end]))
        at = end
    return layers


def _packed_layers(sizes: tuple[int, ...], models: torch.Tensor) -> list[torch.Tensor]:
    """Views (k, in + 1, width)."""
    layers, at = [], 0
    for inputs, outputs in pairwise(sizes):
        end = at + (inputs + 1) * pad_width(outputs)
        layers.append(models[:, at:end].view(len(models), inputs + 1, pad_width(outputs)))
        at = end
    return layers


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


def split_job(job: TrainingJob, device: torch.device) -> list[tuple[int, int]]:
    """Where the job is cut so that no more of its models are packed at a time than may be stacked; [begin, end) of each part.

    The bits of a training do not depend on the others, so that they do not depend on this either.
    """
    n, copies = len(job.start), 3 + (job.anchors is not None) + (job.linear is not None)  # starts, weights, velocities
    together = max(1, get_stacked_memory(device) // (4 * copies * get_packed_length(job.sizes)))
    return [(begin, min(begin + together, n)) for begin in range(0, n, together)]


def pack_models(job: TrainingJob, models: torch.Tensor) -> PackedModels:
    """The models (k, d) of the job, which are on the device, as its trainings begin from them."""
    device = models.device
    used, place = np.unique(job.start, return_inverse=True)
    models = pack(job.sizes, models if len(used) == len(models) else models[_to_device(used, device)])
    # with one training a model, and nothing that pulls back to it, it need not be there twice
    weights = models if not job.mu.any() and np.array_equal(place, np.arange(len(used))) else models[_to_device(place, device)]
    has_linear = job.shifted
    reals = np.stack([job.lr, job.momentum, job.weight_decay, job.mu, has_linear], 1).astype(np.float32)
    return PackedModels(
        weights=weights,
        velocity=torch.zeros_like(weights),
        anchors=models if job.anchors is None else pack(job.sizes, send_rows(job.anchors, device)),
        linear=pack(job.sizes, send_rows(job.linear, device)) if job.linear is not None and has_linear.any() else weights,
        reals=_to_device(reals, device),
    )


def iterate_pieces(job: TrainingJob, steps: Ints, reals: torch.Tensor, labels: torch.Tensor) -> Iterator[Piece]:
    """The job's work, cut between epochs so that no stream outgrows the memory and Ctrl-C is heard."""
    device, samples = labels.device, job.samples()
    an_epoch = np.maximum(1, -(-samples // job.batch_size))  # steps
    epochs = -(-steps // an_epoch)
    anchor = np.unique(job.start, return_inverse=True)[1] if job.anchors is None else np.arange(len(steps))  # as `pack_models` has them
    indices = _to_device(job.indices, device)
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
        order = shuffle_on_device(job.keys[chosen], samples[chosen], first, last, device)
        lengths = _to_device((last - first) * samples[chosen], device)
        rows = indices[order + torch.repeat_interleave(_to_device(job.offsets[chosen], device), lengths, output_size=len(order))]
        yield Piece(
            integers=_to_device(np.stack(integers, 1).astype(np.int32), device),
            reals=reals[_to_device(chosen, device)],
            rows=rows.to(torch.int32),
            labels=labels[rows].to(torch.int32),
        )
        begin = end


def _to_device(array: Array, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


ON_CHIP = 1 << 14  # numbers in a tile that, with its velocity, a multiprocessor's registers hold
WIDEST = 512  # outputs of a layer of a network
BETWEEN = 1 << 15  # numbers in a layer between hidden ones, which a program reads as one tile
WARPS = 8


def is_available() -> bool:
    """Whether the kernels can run here."""
    return torch.cuda.is_available() and has_triton()


def has_kernel(sizes: tuple[int, ...]) -> bool:
    """Whether there is a kernel for this model: at most two hidden layers, and none too wide for a tile."""
    widths = [pad_width(outputs) for outputs in sizes[1:]]
    return len(widths) <= 3 and max(widths) <= WIDEST and all(a * b <= BETWEEN for a, b in pairwise(widths))


def train(job: TrainingJob, *, resident: tuple[torch.Tensor, torch.Tensor]) -> tuple[Floats, Ints]:
    """The trained models (n, d), and the steps (n,) that each took; x (float32) and y are read where they lie, on the device."""
    vectors, steps = train_on_device(job, resident=resident)
    return fetch_tensor(vectors), steps


def train_on_device(job: TrainingJob, *, resident: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, Ints]:
    """`train`, the models left on the device."""
    job.check()
    x, y = resident
    if not has_kernel(job.sizes):
        raise ValueError(f"No GPU kernel for a model of sizes {job.sizes}: use the stacked route.")
    if not x.is_cuda or x.dtype != torch.float32 or x.shape != job.x.shape or y.shape != job.y.shape or not x.is_contiguous():
        raise ValueError("The resident data must be the job's, on a GPU, float32 and contiguous.")
    with torch.cuda.device(x.device):
        return train_in_parts(job, x, y), job.steps()


def train_in_parts(job: TrainingJob, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(n, d) the trained models; only those of some trainings at a time are packed."""
    given, shape = send_rows(job.models, x.device), (len(job.start), job.parameters)
    found = torch.empty(shape, device=choose_storage_device(shape, x.device, get_resident_memory))
    for begin, end in split_job(job, x.device):
        part = job.part(begin, end)
        models = pack_models(part, given)
        for piece in iterate_pieces(part, part.steps(), models.reals, y):
            _launch(job.sizes, x, models, piece)
            if x.is_cuda:
                torch.cuda.synchronize()  # between pieces Ctrl-C is heard
        found[begin:end] = unpack(job.sizes, models.weights)
    return found


def _launch(sizes: tuple[int, ...], x: torch.Tensor, models: PackedModels, piece: Piece) -> None:
    tile = 1 << int(sizes[0]).bit_length()  # the features and the one that meets the bias, rounded up
    if len(sizes) == 2 and tile * pad_width(sizes[1]) <= ON_CHIP:
        from coterie.engines.fused.gpu_kernels import train_softmax

        train_softmax[(len(piece.integers),)](
            x, piece.rows, piece.labels, models.weights, models.velocity, models.anchors, models.linear, piece.integers, piece.reals,
            FEATURES=sizes[0], CLASSES=sizes[1], ROWS=tile, WIDTH=pad_width(sizes[1]), num_warps=max(1, min(WARPS, tile // 128)),
        )  # fmt: skip
        return
    from coterie.engines.fused.gpu_kernels import NETWORK_WARPS, SAMPLES, TILE, train_networks

    first, second = (*sizes[1:-1], 0, 0)[:2]
    widths = [pad_width(hidden) if hidden else 0 for hidden in (first, second)]
    block = max(16, min(64, TILE // max(map(pad_width, sizes[1:]))))
    memory = torch.empty((len(piece.integers), SAMPLES * max(1, sum(widths))), device=x.device)
    train_networks[(len(piece.integers),)](
        x, piece.rows, piece.labels, models.weights, models.velocity, models.anchors, models.linear, memory, piece.integers, piece.reals,
        PACKED=get_packed_length(sizes), INPUTS=sizes[0], FIRST=first, SECOND=second, CLASSES=sizes[-1], FIRST_WIDTH=widths[0],
        SECOND_WIDTH=widths[1], CLASS_WIDTH=pad_width(sizes[-1]), B=SAMPLES, BLOCK=block, num_warps=NETWORK_WARPS,
    )  # fmt: skip
