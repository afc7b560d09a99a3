"""Whole local trainings, one after the other, as a worker thread runs them."""

from typing import NamedTuple

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints, Words
from coterie.core.rng import GOLDEN, MIX_1, MIX_2
from coterie.engines.fused.cpu.network import BIAS, FLAT, IN, OUT, WEIGHT, kernel_part, padded, step
from coterie.engines.fused.cpu.primitives import copy, raised

_GOLDEN, _MIX_1, _MIX_2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


class KernelJob(NamedTuple):
    """A `FusedJob` as the kernel takes it: no None (an array without rows instead), and the steps counted."""

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


class Space(NamedTuple):
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
def spread(plan: Ints, models: Floats, i: int, out: Floats) -> None:
    """Row i of `models`, a flat model, into padded rows. The padding is cleared as well: a training that diverged has left NaN there."""
    out[:] = 0
    begin = i * models.shape[1]
    for layer in range(len(plan)):
        inputs, outputs, at = plan[layer, IN], plan[layer, OUT], begin + plan[layer, FLAT]
        for row in range(outputs):
            copy(models, at + row * inputs, out, plan[layer, WEIGHT] + row * padded(inputs), inputs)
        copy(models, at + outputs * inputs, out, plan[layer, BIAS], outputs)


@kernel_part
def flatten_model(plan: Ints, rows: Floats, models: Floats, i: int) -> None:
    """Padded rows back into a flat model: row i of `models`."""
    begin = i * models.shape[1]
    for layer in range(len(plan)):
        inputs, outputs, at = plan[layer, IN], plan[layer, OUT], begin + plan[layer, FLAT]
        for row in range(outputs):
            copy(rows, plan[layer, WEIGHT] + row * padded(inputs), models, at + row * inputs, inputs)
        copy(rows, plan[layer, BIAS], models, at + outputs * inputs, outputs)


@kernel_part
def train_one(t: KernelJob, i: int, space: Space, stop: Ints) -> None:
    """All steps of training i, from `t.models` into `space.weights`. The same bits whatever else the job holds."""
    begin, n = t.offsets[i], t.offsets[i + 1] - t.offsets[i]
    lr, momentum = np.float32(t.lr[i]), np.float32(t.momentum[i])
    decay, mu = np.float32(t.weight_decay[i]), np.float32(t.mu[i])
    chunk = len(space.ones)
    spread(t.plan, t.models, t.start[i], space.weights)
    anchor = space.weights  # without a pull there is no anchor, and w - w is nought
    if mu != 0:
        anchor = space.anchor
        own = len(t.anchors) > 0
        spread(t.plan, t.anchors if own else t.models, i if own else t.start[i], anchor)
    linear = space.linear[:0]
    if len(t.linear) and np.any(t.linear[i]):  # a row of noughts takes the same way as no row, for the same bits
        linear = space.linear
        spread(t.plan, t.linear, i, linear)
    if momentum != 0:
        space.velocity[:] = 0
    epoch, done = 0, 0
    while done < t.steps[i]:
        shuffle(scramble((t.keys[i] ^ np.uint64(epoch)) + _GOLDEN), n, space.words, space.order, space.counts)
        for s in range(n):
            space.order[s] = t.indices[begin + space.order[s]]
        for at in range(0, n, t.batch_size[i]):
            if done == t.steps[i] or raised(stop):
                return
            samples = space.order[at : min(n, at + t.batch_size[i])]
            step(
                t.plan, t.x, t.y, samples, chunk, space.batch, space.acts, space.deltas, space.ones,
                space.weights, space.gradient, space.velocity, anchor, linear, lr, momentum, decay, mu,
            )  # fmt: skip
            done += 1
        epoch += 1
