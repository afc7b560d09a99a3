"""Whole local trainings of ReLU networks as a numba kernel: a step, a training, a worker, and a job's arrays as the kernel takes them.

Buffers are flat and padded (see `cpu_llvm`). A row of `plan` describes a layer by the columns below; activations and deltas share one
layout, of which layer l's outputs are the part at ACTS. A delta is the gradient of the batch's mean loss by a layer's outputs.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from threading import local
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

from coterie._util.threads import compile_function
from coterie.core.arrays import Array, Doubles, Floats, Ints, Words
from coterie.core.rng import GOLDEN, MIX_1, MIX_2
from coterie.engines.fused.cpu_llvm import (
    ADD,
    DESCEND,
    DESCEND_TO,
    DOT_ROWS,
    DOT_SAMPLES,
    LANES,
    STORE,
    SUM_ROWS,
    claim_next,
    compute_dots,
    compute_softmax,
    compute_sums,
    copy_floats,
    get_row_length,
    is_raised,
)
from coterie.engines.jobs import TrainingJob

IN, OUT, WEIGHT, BIAS, FLAT, ACTS = range(6)  # inputs, outputs, places of weight and bias, place in the flat model, place of outputs
NONE, ONE, ZERO = cast(int, np.int64(0)), cast(int, np.int64(1)), np.float32(0)  # typed, as STORE and the like
PADDING = np.float32(-1e30)  # of the logits: a class that is not there
F = TypeVar("F", bound=Callable[..., Any])


def kernel_part(function: F) -> F:
    """Machine code without the GIL. Sums keep the order in which they are written, and NaN and infinity mean what they do elsewhere."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # only other kernels call it
    return cast(F, njit(nogil=True, error_model="numpy", fastmath={"contract"}, **options)(function))


pad_length = kernel_part(get_row_length)


@kernel_part
def apply_dense(
    count: int, inputs: int, outputs: int, x: Floats, x_at: int, w: Floats, w_at: int, bias_at: int, out: Floats, out_at: int
) -> None:
    """out[s] = x[s] @ w.T + bias for `count` samples; the rows of a tile of w are read once for all samples."""
    stride, out_stride = pad_length(inputs), pad_length(outputs)
    row = 0
    while row < outputs:
        rows = DOT_ROWS if outputs - row >= DOT_ROWS else 1
        sample = 0
        while sample < count:
            samples = DOT_SAMPLES if count - sample >= DOT_SAMPLES else 1
            compute_dots(
                samples, rows, stride // LANES, x, x_at + sample * stride, w, w_at + row * stride, stride,
                bias_at + row, out, out_at + sample * out_stride + row, out_stride,
            )  # fmt: skip
            sample += samples
        row += rows


@kernel_part
def combine(
    rows: int, length: int, terms: int, x: Floats, x_at: int, factors: Floats, factor_at: int, term_stride: int, row_stride: int,
    out: Floats, out_at: int, then: int, lr: np.float32, decay: np.float32, mu: np.float32, anchor: Floats,
) -> None:  # fmt: skip
    """g[r] = sum_t factors[t, r] * x[t] for all rows, and what `then` makes of it (see `compute_sums`)."""
    row, stride = 0, pad_length(length)
    while row < rows:
        strip = SUM_ROWS if rows - row >= SUM_ROWS else 1
        compute_sums(
            strip, stride // LANES, terms, x, x_at, stride, factors, factor_at + row * row_stride, term_stride, row_stride,
            out, out_at + row * stride, then, lr, decay, mu, anchor,
        )  # fmt: skip
        row += strip


@kernel_part
def gather(x: Floats, indices: Ints, places: Ints, batch: Floats) -> None:
    """Copy the rows of a chunk to where the vector units can read them."""
    width = x.shape[1]
    for s in range(len(places)):
        copy_floats(x, indices[places[s]] * width, batch, s * pad_length(width), width)


@kernel_part
def forward(plan: Ints, count: int, batch: Floats, weights: Floats, acts: Floats) -> None:
    """Logits, and on the way the hidden activations."""
    for layer in range(len(plan)):
        inputs, outputs, at = plan[layer, IN], plan[layer, OUT], plan[layer, ACTS]
        x, x_at = (batch, 0) if layer == 0 else (acts, plan[layer - 1, ACTS])
        apply_dense(count, inputs, outputs, x, x_at, weights, plan[layer, WEIGHT], plan[layer, BIAS], acts, at)
        if layer < len(plan) - 1:
            hidden = acts[at : at + count * pad_length(outputs)]
            for j in range(len(hidden)):
                hidden[j] = ZERO if hidden[j] <= 0 else hidden[j]


@kernel_part
def compute_output_deltas(
    classes: int, at: int, labels: Ints, indices: Ints, places: Ints, sample_weights: Floats, scale: np.float32,
    acts: Floats, deltas: Floats,
) -> None:  # fmt: skip
    """Softmax minus one at the label, over the size of the batch, times the weight of the sample where samples have weights."""
    stride = pad_length(classes)
    for s in range(len(places)):
        row, own = at + s * stride, scale * sample_weights[places[s]] if len(sample_weights) else scale
        compute_softmax(stride // LANES, acts, row, own, deltas, row)
        deltas[row + labels[indices[places[s]]]] -= own


@kernel_part
def sum_losses(classes: int, at: int, labels: Ints, indices: Ints, places: Ints, sample_weights: Floats, acts: Floats) -> float:
    """The weighted cross-entropies of a chunk, from its logits."""
    total, stride = 0.0, pad_length(classes)
    for s in range(len(places)):
        logits = acts[at + s * stride : at + s * stride + classes]
        highest, powers = logits.max(), 0.0
        for c in range(classes):
            powers += np.exp(np.float64(logits[c] - highest))
        loss = np.log(powers) + highest - logits[labels[indices[places[s]]]]
        total += loss * sample_weights[places[s]] if len(sample_weights) else loss
    return total


@kernel_part
def compute_hidden_deltas(plan: Ints, layer: int, count: int, weights: Floats, acts: Floats, deltas: Floats) -> None:
    """Pull the deltas of a layer back to the one below it, before the layer's weights move."""
    inputs, outputs, source, target = plan[layer, IN], plan[layer, OUT], plan[layer, ACTS], plan[layer - 1, ACTS]
    size = count * pad_length(inputs)
    combine(
        count, inputs, outputs, weights, plan[layer, WEIGHT], deltas, source, ONE, pad_length(outputs),
        deltas, target, STORE, ZERO, ZERO, ZERO, deltas,
    )  # fmt: skip
    pulled, hidden = deltas[target : target + size], acts[target : target + size]
    for j in range(len(pulled)):
        pulled[j] = ZERO if hidden[j] <= 0 else pulled[j]


@kernel_part
def collect_gradient(
    plan: Ints, layer: int, count: int, batch: Floats, acts: Floats, deltas: Floats, ones: Floats, out: Floats, then: int,
    lr: np.float32, decay: np.float32, mu: np.float32, anchor: Floats,
) -> None:  # fmt: skip
    """The gradient of a layer's weight and bias over a chunk, and what `then` makes of it (see `compute_sums`)."""
    inputs, outputs, source = plan[layer, IN], plan[layer, OUT], plan[layer, ACTS]
    x, x_at = (batch, 0) if layer == 0 else (acts, plan[layer - 1, ACTS])
    combine(
        outputs, inputs, count, x, x_at, deltas, source, pad_length(outputs), ONE, out, plan[layer, WEIGHT], then, lr, decay, mu, anchor
    )
    combine(ONE, outputs, count, deltas, source, ones, NONE, NONE, NONE, out, plan[layer, BIAS], then, lr, decay, mu, anchor)


@kernel_part
def descend(
    weights: Floats, gradient: Floats, velocity: Floats, anchor: Floats, linear: Floats,
    lr: np.float32, momentum: np.float32, decay: np.float32, mu: np.float32,
) -> None:  # fmt: skip
    """The whole of torch.optim.SGD's step, where the gradient had to be kept."""
    if decay != 0 or mu != 0:
        for j in range(len(weights)):
            gradient[j] += decay * weights[j] + mu * (weights[j] - anchor[j])
    if len(linear):
        for j in range(len(weights)):
            gradient[j] += linear[j]
    if momentum != 0:
        for j in range(len(weights)):
            velocity[j] = momentum * velocity[j] + gradient[j]
            weights[j] -= lr * velocity[j]
    else:
        for j in range(len(weights)):
            weights[j] -= lr * gradient[j]


@kernel_part
def take_step(
    plan: Ints, x: Floats, y: Ints, indices: Ints, places: Ints, sample_weights: Floats, chunk: int,
    batch: Floats, acts: Floats, deltas: Floats, ones: Floats,
    weights: Floats, gradient: Floats, velocity: Floats, anchor: Floats, linear: Floats,
    lr: np.float32, momentum: np.float32, decay: np.float32, mu: np.float32, losses: Doubles,
) -> None:  # fmt: skip
    """One step on one batch. A batch of one chunk without momentum and linear terms moves the weights as it goes. The mean loss before the
    step goes to `losses`, if that has room for one."""
    last, size = len(plan) - 1, len(places)
    direct = size <= chunk and momentum == 0 and len(linear) == 0
    moving = DESCEND if decay == 0 and mu == 0 else DESCEND_TO
    for begin in range(0, size, chunk):
        part = places[begin : begin + chunk]
        gather(x, indices, part, batch)
        forward(plan, len(part), batch, weights, acts)
        if len(losses):
            losses[0] += sum_losses(plan[last, OUT], plan[last, ACTS], y, indices, part, sample_weights, acts) / size
        compute_output_deltas(plan[last, OUT], plan[last, ACTS], y, indices, part, sample_weights, np.float32(1.0 / size), acts, deltas)
        then = moving if direct else (STORE if begin == 0 else ADD)
        for layer in range(last, -1, -1):
            if layer:
                compute_hidden_deltas(plan, layer, len(part), weights, acts, deltas)
            collect_gradient(
                plan, layer, len(part), batch, acts, deltas, ones, weights if direct else gradient, then, lr, decay, mu, anchor
            )
    if not direct:
        descend(weights, gradient, velocity, anchor, linear, lr, momentum, decay, mu)


_GOLDEN, _MIX_1, _MIX_2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


class KernelJob(NamedTuple):
    """A `TrainingJob` as the kernel takes it: no None (an array without rows instead), and the steps counted."""

    plan: Ints
    x: Floats
    y: Ints
    offsets: Ints
    indices: Ints
    models: Floats
    start: Ints
    keys: Words
    steps: Ints
    batch_size: Ints
    lr: Doubles
    momentum: Doubles
    weight_decay: Doubles
    mu: Doubles
    anchors: Floats
    linear: Floats
    sample_weights: Floats


class WorkerBuffers(NamedTuple):
    """What one worker writes on: a chunk of a batch and the padded parameters of one training."""

    batch: Floats
    acts: Floats
    deltas: Floats
    ones: Floats
    weights: Floats
    gradient: Floats
    velocity: Floats
    anchor: Floats
    linear: Floats
    words: Words
    order: Ints
    counts: Ints


@kernel_part
def scramble(z: np.uint64) -> np.uint64:
    """`rng.scramble`."""
    z = (z ^ (z >> _SHIFTS[0])) * _MIX_1
    z = (z ^ (z >> _SHIFTS[1])) * _MIX_2
    return z ^ (z >> _SHIFTS[2])


@kernel_part
def shuffle(key: np.uint64, n: int, words: Words, order: Ints, counts: Ints) -> None:
    """`rng.shuffle` into order[:n]. The words are spread evenly, so a bucket for each leaves next to nothing to sort."""
    bits = 1
    while (1 << bits) < n:
        bits += 1
    shift = np.uint64(64 - bits)
    counts[: (1 << bits) + 1] = 0
    for i in range(n):
        counts[np.int64(scramble(key + np.uint64(i + 1) * _GOLDEN) >> shift) + 1] += 1
    for bucket in range(1, 1 << bits):
        counts[bucket + 1] += counts[bucket]
    for i in range(n):
        word = scramble(key + np.uint64(i + 1) * _GOLDEN)
        held_by = np.int64(word >> shift)
        words[counts[held_by]], order[counts[held_by]] = word, i
        counts[held_by] += 1
    for i in range(1, n):
        word, index, place = words[i], order[i], i
        while place > 0 and words[place - 1] > word:
            words[place], order[place] = words[place - 1], order[place - 1]
            place -= 1
        words[place], order[place] = word, index


@kernel_part
def spread_model(plan: Ints, models: Floats, i: int, out: Floats) -> None:
    """Row i of `models`, a flat model, into padded rows. The padding is cleared as well: a training that diverged has left NaN there."""
    out[:] = 0
    begin = i * models.shape[1]
    for layer in range(len(plan)):
        inputs, outputs, at = plan[layer, IN], plan[layer, OUT], begin + plan[layer, FLAT]
        for row in range(outputs):
            copy_floats(models, at + row * inputs, out, plan[layer, WEIGHT] + row * pad_length(inputs), inputs)
        copy_floats(models, at + outputs * inputs, out, plan[layer, BIAS], outputs)


@kernel_part
def flatten_model(plan: Ints, rows: Floats, models: Floats, i: int) -> None:
    """Padded rows back into a flat model: row i of `models`."""
    begin = i * models.shape[1]
    for layer in range(len(plan)):
        inputs, outputs, at = plan[layer, IN], plan[layer, OUT], begin + plan[layer, FLAT]
        for row in range(outputs):
            copy_floats(rows, plan[layer, WEIGHT] + row * pad_length(inputs), models, at + row * inputs, inputs)
        copy_floats(rows, plan[layer, BIAS], models, at + outputs * inputs, outputs)


@kernel_part
def train_one(t: KernelJob, i: int, space: WorkerBuffers, stop: Ints, losses: Doubles) -> None:
    """All steps of training i, from `t.models` into `space.weights`. The same bits whatever else the job holds. The mean loss of each
    batch before its step goes to `losses`, if that has room for them."""
    begin, n = t.offsets[i], t.offsets[i + 1] - t.offsets[i]
    lr, momentum = np.float32(t.lr[i]), np.float32(t.momentum[i])
    decay, mu = np.float32(t.weight_decay[i]), np.float32(t.mu[i])
    chunk = len(space.ones)
    spread_model(t.plan, t.models, t.start[i], space.weights)
    anchor = space.weights  # without a pull there is no anchor, and w - w is 0
    if mu != 0:
        anchor = space.anchor
        own = len(t.anchors) > 0
        spread_model(t.plan, t.anchors if own else t.models, i if own else t.start[i], anchor)
    linear = space.linear[:0]
    if len(t.linear) and np.any(t.linear[i]):  # a row of zeros takes the same way as no row, for the same bits
        linear = space.linear
        spread_model(t.plan, t.linear, i, linear)
    if momentum != 0:
        space.velocity[:] = 0
    epoch, done = 0, 0
    while done < t.steps[i]:
        shuffle(scramble((t.keys[i] ^ np.uint64(epoch)) + _GOLDEN), n, space.words, space.order, space.counts)
        for s in range(n):
            space.order[s] += begin
        for at in range(0, n, t.batch_size[i]):
            if done == t.steps[i] or is_raised(stop):
                return
            places = space.order[at : min(n, at + t.batch_size[i])]
            take_step(
                t.plan, t.x, t.y, t.indices, places, t.sample_weights, chunk, space.batch, space.acts, space.deltas, space.ones,
                space.weights, space.gradient, space.velocity, anchor, linear, lr, momentum, decay, mu, losses[done : done + 1],
            )  # fmt: skip
            done += 1
        epoch += 1


CHUNK = 64  # samples of a batch that are worked on together: of a wide input, as many as a core's second cache holds
Scalar = TypeVar("Scalar", bound=np.generic)
_kept = local()


def make_kernel_job(job: TrainingJob, steps: Ints, chunk: int) -> KernelJob:
    """The job for the kernel."""
    whole, doubles = ("y", "offsets", "indices", "start", "batch_size"), ("lr", "momentum", "weight_decay", "mu")
    kinds: dict[Any, tuple[str, ...]] = {np.float32: ("x", "models"), np.int64: whole, np.uint64: ("keys",), np.float64: doubles}
    arrays: dict[str, Any] = {name: _as_read_only(getattr(job, name), kind) for kind, names in kinds.items() for name in names}
    return KernelJob(
        plan=_as_read_only(_make_plan(job.sizes, chunk), np.int64),
        steps=_as_read_only(steps, np.int64),
        **arrays,
        anchors=_as_rows(job.anchors, job.parameters),
        linear=_as_rows(job.linear, job.parameters),
        sample_weights=_as_read_only(np.empty(0) if job.sample_weights is None else job.sample_weights, np.float32),
    )


def get_buffers(sizes: tuple[int, ...], chunk: int, longest: int) -> WorkerBuffers:
    """The calling thread's buffers, kept for its next job of the same shape: new memory costs a small job as much as its arithmetic.

    A training leaves nothing behind that the next one reads, in one job as in another.
    """
    held: tuple[object, WorkerBuffers] | None = getattr(_kept, "held", None)
    if held is None or held[0] != (sizes, chunk) or len(held[1].order) < longest:
        held = _kept.held = (sizes, chunk), _make_buffers(sizes, chunk, 1 << (longest - 1).bit_length())
    return held[1]


def _make_buffers(sizes: tuple[int, ...], chunk: int, longest: int) -> WorkerBuffers:
    """A worker's buffers: bounded by the model and the longest client's indices, never by the data."""
    outputs = [get_row_length(width) for width in sizes[1:]]
    parameters = sum(out * get_row_length(inputs) + get_row_length(out) for inputs, out in pairwise(sizes))
    acts = _make_aligned(chunk * sum(outputs))
    logits = acts[chunk * sum(outputs[:-1]) :].reshape(chunk, outputs[-1])
    logits[:, sizes[-1] :] = PADDING
    return WorkerBuffers(
        batch=_make_aligned(chunk * get_row_length(sizes[0])),
        acts=acts,
        deltas=_make_aligned(len(acts)),
        ones=np.ones(chunk, np.float32),
        weights=_make_aligned(parameters),
        gradient=_make_aligned(parameters),
        velocity=_make_aligned(parameters),
        anchor=_make_aligned(parameters),
        linear=_make_aligned(parameters),
        words=np.empty(longest, np.uint64),
        order=np.empty(longest, np.int64),
        counts=np.empty(2 * longest + 2, np.int64),
    )


def get_chunk_size(job: TrainingJob) -> int:
    """How many samples of a batch are worked on together."""
    return int(min(CHUNK, np.minimum(job.batch_size, job.samples()).max()))


def _make_plan(sizes: tuple[int, ...], chunk: int) -> Ints:
    """One row per layer, in the columns IN to ACTS."""
    rows, place, flat, acts = [], 0, 0, 0
    for inputs, outputs in pairwise(sizes):
        bias = place + outputs * get_row_length(inputs)
        rows.append((inputs, outputs, place, bias, flat, acts))
        place, flat, acts = bias + get_row_length(outputs), flat + outputs * (inputs + 1), acts + chunk * get_row_length(outputs)
    return np.array(rows, dtype=np.int64)


def _as_read_only(array: Array, kind: type[Scalar]) -> npt.NDArray[Scalar]:
    """A view that can only be read, so that the kernel is compiled once, not again for data that cannot be written."""
    view = np.ascontiguousarray(array, dtype=kind).view()
    view.setflags(write=False)
    return view


def _as_rows(array: Floats | None, width: int) -> Floats:
    return _as_read_only(np.empty((0, width)) if array is None else array, np.float32)


def _make_aligned(count: int) -> Floats:
    """Zeros that begin at a cache line, as the vector loads require."""
    raw = np.zeros(count + LANES, dtype=np.float32)
    skip = -raw.ctypes.data % (LANES * raw.itemsize) // raw.itemsize
    return raw[skip : skip + count]


Kernel = Callable[[KernelJob, Ints, WorkerBuffers, Ints, Ints, Floats, Ints, Doubles], None]


@lru_cache(maxsize=1)
def get_kernel() -> Kernel:
    """The worker as machine code."""

    def work(
        t: KernelJob, queue: Ints, space: WorkerBuffers, next_in_queue: Ints, stop: Ints, vectors: Floats, begins: Ints, losses: Doubles
    ) -> None:
        """Take trainings from the queue until it is empty or the flag is raised. Training i's losses go to ``losses[begins[i]:]``."""
        ticket = claim_next(next_in_queue)
        while ticket < len(queue) and not is_raised(stop):
            train_one(t, queue[ticket], space, stop, losses[begins[queue[ticket]] : begins[queue[ticket] + 1]])
            flatten_model(t.plan, space.weights, vectors, queue[ticket])
            ticket = claim_next(next_in_queue)

    # numba looks only at this file to see whether what it kept is stale, and stumbles over types that are no longer there: what another
    # version of the sources has left is kept under another name.
    work.__qualname__ = f"work_{_hash_sources():x}"
    return compile_function(work)


def _hash_sources() -> int:
    """A number made from the sources of the kernel."""
    digest = blake2b(digest_size=7)
    for source in ("cpu_llvm", "cpu_training"):
        digest.update(Path(__file__).with_name(f"{source}.py").read_bytes())
    return int.from_bytes(digest.digest(), "little")
