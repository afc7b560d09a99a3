"""The seam between methods and the world."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from coterie.arrays import Ids, Words
from coterie.asks import Ask
from coterie.problem import Problem
from coterie.rng import fold, key


@dataclass(frozen=True)
class Stamped:
    """An ask with what the world needs to carry it out: whose it is, and what keys its randomness."""

    ask: Ask[Any]
    problem: Problem
    seed: int
    round_: int
    lane: int = 0

    def keys(self, purpose: str, clients: Ids) -> Words:
        """(n,) ``key(seed, purpose, round, client id)``; fold an epoch into it to get that epoch's shuffle."""
        return fold(np.full(len(clients), key(self.seed, purpose, self.round_), np.uint64), self.problem.roster.words[clients])


class Engine(Protocol):
    """Carries out asks. The answers come in the order of the asks; an ask's answer must not depend on the other asks."""

    name: str

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        """Answer all the asks."""
        ...
