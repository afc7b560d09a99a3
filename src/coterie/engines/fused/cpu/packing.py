"""From a job's arrays to the kernel's: where each layer lies in the padded buffers, and the buffers."""

from itertools import pairwise
from threading import local
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from coterie.core.arrays import Array, Floats, Ints
from coterie.engines.fused.cpu.network import PADDING
from coterie.engines.fused.cpu.training import KernelJob, Space
from coterie.engines.fused.cpu.vectors import LANES, row_length
from coterie.engines.job import FusedJob

CHUNK = 64  # samples of a batch that are worked on together: of a wide input, as many as a core's second cache holds
Scalar = TypeVar("Scalar", bound=np.generic)

_kept = local()


def tables(job: FusedJob, steps: Ints, chunk: int) -> KernelJob:
    """The job for the kernel."""
    return KernelJob(
        plan=_read(_plan(job.sizes, chunk), np.int64),
        x=_read(job.x, np.float32),
        y=_read(job.y, np.int64),
        offsets=_read(job.offsets, np.int64),
        indices=_read(job.indices, np.int64),
        models=_read(job.models, np.float32),
        start=_read(job.start, np.int64),
        keys=_read(job.keys, np.uint64),
        steps=_read(steps, np.int64),
        batch_size=_read(job.batch_size, np.int64),
        lr=_read(job.lr, np.float64),
        momentum=_read(job.momentum, np.float64),
        weight_decay=_read(job.weight_decay, np.float64),
        mu=_read(job.mu, np.float64),
        anchors=_rows(job.anchors, job.parameters),
        linear=_rows(job.linear, job.parameters),
    )


def space(sizes: tuple[int, ...], chunk: int, longest: int) -> Space:
    """The calling thread's buffers, kept for its next job of the same shape: new memory costs a small job as much as its arithmetic.

    A training leaves nothing behind that the next one reads, in one job as in another.
    """
    held: tuple[object, Space] | None = getattr(_kept, "held", None)
    if held is None or held[0] != (sizes, chunk) or len(held[1].order) < longest:
        held = _kept.held = (sizes, chunk), _new_space(sizes, chunk, 1 << (longest - 1).bit_length())
    return held[1]


def _new_space(sizes: tuple[int, ...], chunk: int, longest: int) -> Space:
    """A worker's buffers: bounded by the model and the longest client's indices, never by the data."""
    outputs = [row_length(width) for width in sizes[1:]]
    parameters = sum(out * row_length(inputs) + row_length(out) for inputs, out in pairwise(sizes))
    acts = _aligned(chunk * sum(outputs))
    logits = acts[chunk * sum(outputs[:-1]) :].reshape(chunk, outputs[-1])
    logits[:, sizes[-1] :] = PADDING
    return Space(
        batch=_aligned(chunk * row_length(sizes[0])),
        acts=acts,
        deltas=_aligned(len(acts)),
        ones=np.ones(chunk, np.float32),
        weights=_aligned(parameters),
        gradient=_aligned(parameters),
        velocity=_aligned(parameters),
        anchor=_aligned(parameters),
        linear=_aligned(parameters),
        words=np.empty(longest, np.uint64),
        order=np.empty(longest, np.int64),
        counts=np.empty(2 * longest + 2, np.int64),
    )


def chunk_of(job: FusedJob) -> int:
    """How many samples of a batch are worked on together."""
    return int(min(CHUNK, np.minimum(job.batch_size, job.samples()).max()))


def _plan(sizes: tuple[int, ...], chunk: int) -> Ints:
    """One row per layer, in the columns that `network` names."""
    rows, place, flat, acts = [], 0, 0, 0
    for inputs, outputs in pairwise(sizes):
        bias = place + outputs * row_length(inputs)
        rows.append((inputs, outputs, place, bias, flat, acts))
        place, flat, acts = bias + row_length(outputs), flat + outputs * (inputs + 1), acts + chunk * row_length(outputs)
    return np.array(rows, dtype=np.int64)


def _read(array: Array, kind: type[Scalar]) -> npt.NDArray[Scalar]:
    """A view that can only be read, so that the kernel is compiled once, not again for data that cannot be written."""
    view = np.ascontiguousarray(array, dtype=kind).view()
    view.setflags(write=False)
    return view


def _rows(array: Floats | None, width: int) -> Floats:
    return _read(np.empty((0, width)) if array is None else array, np.float32)


def _aligned(count: int) -> Floats:
    """Zeros that begin at a cache line, as the vector loads require."""
    raw = np.zeros(count + LANES, dtype=np.float32)
    skip = -raw.ctypes.data % (LANES * raw.itemsize) // raw.itemsize
    return raw[skip : skip + count]
