"""Many models, each on samples of its own, in few products: what evaluating a model a client comes down to.

Models that answer for equally many samples are stacked. A slice of a stacked product is the very product of that model alone, of the same
shape, so the bits are those of one model at a time.
"""

from collections.abc import Iterator
from typing import ClassVar, Protocol

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ints

TOGETHER, MANY_NUMBERS = 1 << 18, 1 << 24  # samples of many models, and numbers of these, that are looked at together
STACKED = 1 << 22  # numbers of models and samples in a stack: what a cache nearly holds


class Each(Protocol):
    """Many models (k, d) on samples (m,), of which each answers for the next so many (k,)."""

    many: ClassVar[int]  # models from which on they are asked together

    @property
    def numbers(self) -> int:
        """Numbers of models that it takes at a time."""

    def predict(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Doubles, Doubles]:
        """Probabilities (m, C) and losses (m,)."""

    def judge(self, models: Floats, rows: Ints, sizes: Ints) -> tuple[Ints, Doubles]:
        """The likeliest class (m,) and losses (m,)."""


def by_model(rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Every model that serves somebody, and whom: by one sort, where a scan for each model would take the square of the clients."""
    order = np.argsort(rows, kind="stable")
    for members in runs_of(order, rows):
        yield int(rows[members[0]]), members


def blocks_of(rows: Ints, sizes: Ints, parameters: int, numbers: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Models, whom they serve one after the other, and how many samples each answers for: so many models at a time that neither their
    samples nor their own numbers are too many. Clients with a negative row are left out."""
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= 0]
    begins = np.flatnonzero(np.diff(rows[order], prepend=-1))
    counts = np.add.reduceat(sizes[order], begins) if len(begins) else begins
    ends, most, at = np.cumsum(counts), max(1, numbers // parameters), 0
    borders = np.append(begins, len(order))
    while at < len(begins):
        fits = int(np.searchsorted(ends, ends[at] - counts[at] + TOGETHER, side="right"))
        stop = min(max(fits, at + 1), at + most)
        yield rows[order[begins[at:stop]]], order[borders[at] : borders[stop]], counts[at:stop]
        at = stop


def stacks_of(sizes: Ints, parameters: int, inputs: int, most: int = STACKED) -> Iterator[Ints]:
    """The numbers of models in stacks: of equally many samples each, at least one, and no more than so many numbers."""
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    for alike in runs_of(order, sizes):
        together = max(1, most // (parameters + inputs * int(sizes[alike[0]])))
        yield from (alike[at : at + together] for at in range(0, len(alike), together))


def runs_of(order: Ints, values: Ints) -> list[Ints]:
    """An order in which equal values stand side by side, cut where they change."""
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(order) else []
