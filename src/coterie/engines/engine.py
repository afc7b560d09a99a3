"""The seam between methods and the world."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from coterie.core.acceptance import assemble
from coterie.core.arrays import Ids, Words
from coterie.core.asks import Ask, ModelAsk, Part, Share
from coterie.core.rng import fold, key
from coterie.data.federation import Parts
from coterie.engines.problem import Problem
from coterie.engines.shares import shared


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
        return fold(np.array([self.key(purpose)], np.uint64), self.problem.roster.words[clients])

    def key(self, purpose: str) -> int:
        """What the keys of all clients begin with."""
        return key(self.seed, purpose, self.round_)

    def parts(self, name: Part = "train") -> Parts:
        """The samples of a part that the ask is about: all of them, unless it names a share."""
        federation = self.problem.federation
        share: Share | None = getattr(self.ask, "share", None)
        if share is None:
            return federation.part(name)
        halves = fold(np.array([key(self.seed, "half")], np.uint64), self.problem.roster.words)
        return shared(federation.part(name), share, federation.y, halves)

    def judged(self) -> Parts | None:
        """The samples that an evaluation is about; None for the server's own test set."""
        part: Part | Literal["central"] = getattr(self.ask, "part", "test")
        return None if part == "central" else self.parts(part)


class Engine(Protocol):
    """Carries out asks. The answers come in the order of the asks; an ask's answer must not depend on the other asks."""

    name: str

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        """Answer all the asks."""
        ...


def to_sharers(asks: Sequence[Stamped], run: Callable[[Sequence[Stamped]], list[Any]]) -> list[Any]:
    """Carry out asks without the clients that have no sample in the share asked about: they have nothing to answer from."""
    if all(getattr(s.ask, "share", None) is None for s in asks):
        return run(asks)
    cut = [_to_sharers(s) for s in asks]
    nobody = [isinstance(s.ask, ModelAsk) and not len(s.ask.clients) for s in cut]
    answers = iter(run([s for s, empty in zip(cut, nobody, strict=True) if not empty]))
    return [assemble(s.ask, {}) if empty else next(answers) for s, empty in zip(cut, nobody, strict=True)]


def _to_sharers(stamped: Stamped) -> Stamped:
    ask = stamped.ask
    if not isinstance(ask, ModelAsk) or ask.share is None:
        return stamped
    part: Part = getattr(ask, "part", "train")
    return replace(stamped, ask=ask.take(stamped.parts(part).sizes[ask.clients] > 0))
