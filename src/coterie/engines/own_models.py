"""Many models, each on samples of its own, in few products: what evaluating a model a client comes down to.

Models that answer for equally many samples are stacked. A slice of a stacked product is the very product of that model alone, of the same
shape, so the bits are those of one model at a time.
"""

from collections.abc import Callable, Iterator

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints

STACKED = 1 << 22  # numbers of models and samples in a stack: what a cache nearly holds
# (models (k, d), samples, how many of them each model answers for, in order) -> probabilities (m, C) and losses (m,)
PredictEach = Callable[[Floats, Ints, Ints], tuple[Doubles, Doubles]]


def by_model(rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Every model that serves somebody, and whom: by one sort, where a scan for each model would take the square of the clients."""
    order = np.argsort(rows, kind="stable")
    for members in runs_of(order, rows):
        yield int(rows[members[0]]), members


def stacks_of(sizes: Ints, parameters: int, inputs: int) -> Iterator[Ints]:
    """The numbers of models in stacks: of equally many samples each, at least one, and no more than STACKED numbers."""
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    for alike in runs_of(order, sizes):
        together = max(1, STACKED // (parameters + inputs * int(sizes[alike[0]])))
        yield from (alike[at : at + together] for at in range(0, len(alike), together))


def runs_of(order: Ints, values: Ints) -> list[Ints]:
    """An order in which equal values stand side by side, cut where they change."""
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(order) else []
