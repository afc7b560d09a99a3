"""Runs that stopped early by their validation score: what they are in the rounds that they did not run.

Their models stay as they are and cost nothing more, so every score of a later round is that of their last. How far that goes: to the last
round that any run has come to, which is the study's last one where none is still to go on.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from coterie.core.arrays import Array, Ints
from coterie.evidence.record import RUNNING, STOPPED, LaneEnd, LaneKey
from coterie.evidence.settings import Settings

Place = tuple[int, int]  # of a method, and of a seed


def stops_of(ends: Mapping[LaneKey, LaneEnd], settings: Settings) -> dict[Place, int]:
    """By place, the round after which a run stopped early."""
    return {
        (settings.methods.index(key.method), settings.seeds.index(key.seed)): end.round_
        for key, end in ends.items()
        if end.status == STOPPED and key.method in settings.methods and key.seed in settings.seeds
    }


def reached(ends: Mapping[LaneKey, LaneEnd], rounds: int) -> int:
    """The round up to which those who stopped early count."""
    return max((end.round_ for end in ends.values() if end.status == RUNNING), default=rounds)


def carry_on(tables: Iterable[Array | None], numbers: Ints, stops: Mapping[Place, int], last: int) -> None:
    """Let the numbers of a stopped run be those of its last round up to `last`; tables are (M, S, R, ...), of the rounds `numbers`."""
    for (method, seed), round_ in stops.items():
        own, after = np.flatnonzero(numbers <= round_), np.flatnonzero((numbers > round_) & (numbers <= last))
        for table in tables_known(tables):
            if len(own) and len(after):
                table[method, seed, after] = table[method, seed, own[-1]]


def rest(tables: Iterable[Array], stops: Mapping[Place, int], last: int) -> None:
    """Let a stopped run cost nothing from then on; tables are (M, S, T + 1)."""
    for (method, seed), round_ in stops.items():
        for table in tables:
            table[method, seed, round_ + 1 : last + 1] = 0.0


def keep_groups(groups: Mapping[str, Array], methods: Sequence[str], stops: Mapping[Place, int], last: int) -> None:
    """Let its groups stay; tables by method are (S, T + 1, N)."""
    for (method, seed), round_ in stops.items():
        if (table := groups.get(methods[method])) is not None:
            table[seed, round_ + 1 : last + 1] = table[seed, round_]


def tables_known(tables: Iterable[Array | None]) -> list[Array]:
    """Those that were measured."""
    return [table for table in tables if table is not None]
