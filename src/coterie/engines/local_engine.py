"""What engines share that hold clients' data in this process: in a simulation, and at a site for its own clients."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from coterie.core.arrays import Ids, Words
from coterie.core.asks import Ask, DataPart, Evaluate, ModelAsk, Share
from coterie.core.replies import make_empty_reply
from coterie.core.rng import fold_keys
from coterie.core.vectors import on_device
from coterie.data.federation import Parts
from coterie.engines.device import raise_device_errors
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.sampling import make_fold_key, select_share
from coterie.engines.sketching import add_simulated_noise, get_sketch, remove_sketch, sketch_reply
from coterie.engines.world import World

if TYPE_CHECKING:
    from coterie.engines.routes import Route

KEPT_SHARES = 4  # at least: a pilot trains on one half and is evaluated on the other
KEPT_SAMPLES = 1 << 23  # numbers of samples in all that are kept: cross-fitting with several seeds asks about many shares in turn


@dataclass(frozen=True, kw_only=True)
class Work(StampedAsk):
    """A stamped ask with the world that it is about."""

    world: World

    @classmethod
    def bind(cls, stamped: StampedAsk, world: World) -> Self:
        """The ask, about this world."""
        return cls(stamped.ask, stamped.seed, stamped.round_, stamped.draw, stamped.lane, world=world)

    def keys(self, purpose: str, clients: Ids) -> Words:
        """(n,) ``make_key(seed, purpose, round, client id)``; fold an epoch into it to get that epoch's shuffle."""
        return fold_keys(np.array([self.key(purpose)], np.uint64), self.world.words[clients])

    def parts(self, name: DataPart = "train") -> Parts:
        """The samples of a part that the ask is about: all of them, unless it names a share."""
        federation = self.world.federation
        share: Share | None = getattr(self.ask, "share", None)
        return federation.part(name) if share is None else self._select(name, share)

    def _select(self, name: DataPart, share: Share) -> Parts:
        """The samples of a share, kept for the next ask about it."""
        federation = self.world.federation
        which, kept = (name, share, self.seed), self.world.shares
        found = kept.get(which)
        if found is None:  # they are asked about again and again, and take as long to make as there are clients
            keys = fold_keys(np.array([make_fold_key(self.seed, share.folds)], np.uint64), self.world.words)
            among = federation.part(name) if share.outer is None else self._select(name, share.outer)
            found = select_share(among, share, federation.y, keys)
            kept[which] = found
            number = max(KEPT_SHARES, KEPT_SAMPLES // max(len(federation.part(name).indices), 1))
            for oldest in list(kept)[:-number]:
                kept.pop(oldest, None)
        return found

    def evaluation_parts(self) -> Parts | None:
        """The samples that an evaluation is about; None for the server's own test set."""
        part: DataPart | Literal["central", "marked"] = getattr(self.ask, "part", "test")
        return None if part == "central" else self.parts("test" if part == "marked" else part)

    def drop_empty_clients(self) -> "Work":
        """The same without the clients that have no sample in the share asked about: they have nothing to answer from."""
        ask = self.ask
        if not isinstance(ask, ModelAsk | Evaluate) or ask.share is None:
            return self
        part: DataPart = getattr(ask, "part", "train")
        return self.with_ask(ask.take(self.parts(part).sizes[ask.clients] > 0))

    def with_ask(self, ask: Ask[Any]) -> "Work":
        """The same with another ask in its place."""
        return self if ask is self.ask else replace(self, ask=ask)


def fetch_models(work: Work) -> Work:
    """The same with models that are held fetched, for whoever evaluates arrays."""
    ask = work.ask
    if not isinstance(ask, Evaluate) or on_device(ask.serving.models) is None:
        return work
    return work.with_ask(replace(ask, serving=replace(ask.serving, models=np.asarray(ask.serving.models))))


class LocalEngine(Engine):
    """Holds a world for each draw of the data; subclasses execute the work."""

    def __init__(self, worlds: World | Mapping[int, World]) -> None:
        self.worlds: Mapping[int, World] = {0: worlds} if isinstance(worlds, World) else worlds
        self.chosen: dict[str, Route] = {}  # by kind of training; none where all is the loop's

    def routes(self) -> Mapping[str, str]:
        return {kind: str(route) for kind, route in self.chosen.items()}

    def run(self, asks: Sequence[StampedAsk]) -> list[Any]:
        with raise_device_errors():  # worlds are made here, too: features of a frozen body, where they are asked for first
            works = [Work.bind(s, self._world(s)).drop_empty_clients() for s in asks]
            asked = [not isinstance(work.ask, ModelAsk) or len(work.ask.clients) > 0 for work in works]
            reached = [work for work, is_asked in zip(works, asked, strict=True) if is_asked]
            full = self.execute([work.with_ask(remove_sketch(work.ask)) for work in reached])  # what a sketch is made of stays here
            answers = map(_sketch_as_asked, reached, full)
            return [next(answers) if is_asked else make_empty_reply(work.ask) for work, is_asked in zip(works, asked, strict=True)]

    def _world(self, stamped: StampedAsk) -> World:
        """What the ask finds: as its round is, falsified as its seed has it."""
        return self.worlds[stamped.draw].at_round(stamped.round_, stamped.seed, marked=getattr(stamped.ask, "part", None) == "marked")

    @abstractmethod
    def execute(self, works: Sequence[Work]) -> list[Any]:
        """Answer asks that reach at least one client, in full."""


def _sketch_as_asked(work: Work, reply: Any) -> Any:
    if get_sketch(work.ask) is None:
        return reply
    made = sketch_reply(work.ask, reply, work.world.model.layout)
    drawn = fold_keys(work.keys("sketch noise", made.clients), np.array([work.draw], np.uint64))  # other data, other noise
    return add_simulated_noise(work.ask, made, drawn)
