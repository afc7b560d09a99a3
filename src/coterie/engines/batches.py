"""The batches of a local training: the same on every engine, device and federation."""

from collections.abc import Iterator
from math import ceil

from coterie.core.arrays import Ints
from coterie.core.rng import extend, shuffle


def count_steps(samples: int, batch_size: int | None, epochs: int, max_steps: int | None) -> int:
    """How many optimiser steps a training takes."""
    steps = epochs * ceil(samples / (batch_size or samples))
    return steps if max_steps is None else min(steps, max_steps)


def batches(key: int, samples: Ints, batch_size: int | None, epochs: int, max_steps: int | None) -> Iterator[Ints]:
    """Sample numbers batch by batch: a keyed shuffle each epoch, the last partial batch kept, at most max_steps in all."""
    size = batch_size or len(samples)
    left = count_steps(len(samples), batch_size, epochs, max_steps)
    for epoch in range(epochs):
        order = samples[shuffle(extend(key, epoch), len(samples))]
        for begin in range(0, len(order), size):
            if left == 0:
                return
            left -= 1
            yield order[begin : begin + size]
