"""The batches of a local training: the same on every engine, device and federation."""

from collections.abc import Iterator
from math import ceil

from coterie.core.arrays import Ints
from coterie.core.rng import extend, shuffle


def count_steps(samples: int, batch_size: int | None, epochs: int, max_steps: int | None) -> int:
    """How many optimiser steps a training takes."""
    steps = epochs * ceil(samples / (batch_size or samples))
    return steps if max_steps is None else min(steps, max_steps)


def leaves_one_over(samples: Ints, batch_size: int | None) -> bool:
    """Whether any of these numbers of samples leaves a single one for the last batch."""
    return batch_size is not None and batch_size > 1 and bool((samples % batch_size == 1).any())


def batches(key: int, samples: Ints, batch_size: int | None, epochs: int, max_steps: int | None, least: int = 1) -> Iterator[Ints]:
    """Sample numbers batch by batch: a keyed shuffle each epoch, the last partial batch kept, at most max_steps in all.

    A last batch of fewer than `least` samples joins the one before it.
    """
    size, taken = batch_size or len(samples), 0
    for epoch in range(epochs):
        order = samples[shuffle(extend(key, epoch), len(samples))]
        begins = list(range(0, len(order), size))
        if len(begins) > 1 and len(order) - begins[-1] < least:
            del begins[-1]
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
            if taken == max_steps:
                return
            taken += 1
            yield order[begin:end]
