"""The seam between methods and the world: one verb, and three that most engines can omit."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

from coterie.core.arrays import Ids
from coterie.core.asks import Ask, Trained
from coterie.core.local import Local
from coterie.core.rng import make_key


@dataclass(frozen=True)
class StampedAsk:
    """An ask with what keys its randomness: numbers that can travel, never the data it is about, which the engine holds."""

    ask: Ask[Any]
    seed: int
    round_: int
    draw: int = 0  # which draw of the data the ask is about
    lane: int = 0  # which lane asks; answers do not depend on it

    def key(self, purpose: str) -> int:
        """What the keys of all clients begin with."""
        return make_key(self.seed, purpose, self.round_)


@dataclass(frozen=True)
class AsyncAsk(StampedAsk):
    """A training whose clients take their own time: only the first answers are waited for, to this question or to an earlier one of the
    lane. Clients are asked in their order as long as there is room; an engine answers with `AsyncReplies`."""

    wanted: int = 1
    room: int = 1


@dataclass(frozen=True)
class AsyncReplies:
    """What has come by the time that enough is there."""

    asked: Ids  # which clients were asked
    answers: tuple[tuple[int, Trained], ...]  # by the round in which they were asked, ascending
    silent: Ids  # which clients will not answer any more, whenever they were asked


class Engine(ABC):
    """Executes asks. The answers come in the order of the asks; an ask's answer must not depend on the other asks."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        """Answer all the asks. The answer to an ask without clients has no rows."""

    def prepare(self, local: Local) -> None:  # noqa: B027  nothing to do is a good default
        """Choose routes and compile what training will need, so that this is not taken for training's time."""

    def routes(self) -> Mapping[str, str]:
        """By kind of training, the route it took: for the record, and for a run that is resumed."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Let go of threads, processes and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
