"""What a study repeats: draws of the data and seeds, and which of the two its tests are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.records import Records
from coterie.core.arrays import Bools, Doubles
from coterie.core.counted import counted
from coterie.data.redrawing import Redrawn, what_is_redrawn


@dataclass(frozen=True)
class Repetitions:
    """B draws x S seeds, those of them that are compared."""

    draws: tuple[int, ...]
    seeds: tuple[int, ...]
    compared: Bools  # (B, S) whose runs have come as far as the furthest
    redrawn: Redrawn
    own_seeds: bool  # every draw has seeds of its own
    overlap: float  # the share of one draw's test samples that is expected in another's

    @property
    def runs(self) -> int:
        return int(self.compared.sum())

    @property
    def several_draws(self) -> bool:
        return len(self.draws) > 1

    @property
    def same_clients(self) -> bool:
        """Whether a client of one draw is the same holder of data in the next."""
        return not self.several_draws or self.redrawn == "split"

    @property
    def unit(self) -> str:
        """What is counted in a test: independent repetitions, of which draws are the larger."""
        return "draw" if self.several_draws else "seed"

    def __str__(self) -> str:
        """In words: 10 draws of 3 seeds."""
        if not self.several_draws:
            return counted(self.runs, "seed")
        seeds = self.compared.sum(axis=1)
        few, many = int(seeds.min()), int(seeds.max())
        return f"{len(self.draws)} draws of {counted(many, 'seed') if few == many else f'{few} to {many} seeds'}"


def by_unit(table: Doubles) -> Doubles:
    """(units, ...) one number for each: of several draws (B, S, ...) the mean over its seeds, of one draw a seed's own."""
    return table[0] if len(table) == 1 else metrics.mean(table, axis=1)


def overlap_of(draws: Sequence[Records]) -> float:
    """The share of a draw's test samples expected in another's: none of synthetic data; of a pool, the share of it that is tested."""
    if what_is_redrawn(draws[0].settings.data) == "everything":
        return 0.0
    tested = sum(float(records.test.sum()) for records in draws)
    held = sum(float(records.train.sum()) for records in draws)
    return tested / max(tested + held, 1.0)


def repetitions_of(draws: Sequence[Records], compared: Bools) -> Repetitions:
    """What these draws of one study repeat."""
    settings = draws[0].settings
    numbers = tuple(records.settings.draws[0] for records in draws)
    redrawn = what_is_redrawn(settings.data)
    return Repetitions(numbers, settings.seeds, np.asarray(compared), redrawn, settings.own_seeds, overlap_of(draws))
