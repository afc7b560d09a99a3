"""A federation without a network: sites in this process, between which only bytes pass."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.data.federation import Federation
from coterie.deploy.messages import PROTOCOL, AskBatch, Delivery, Hello, Receipt, from_message, is_kind, to_message
from coterie.deploy.site.data import select_clients
from coterie.deploy.site.process import answer_batch, make_site_card
from coterie.engines.engine import Engine
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World

MakeEngine = Callable[[World], Engine]


class InProcess:
    """Every site has a world and an engine of its own. `tamper` may change or drop what a site says."""

    def __init__(
        self,
        federation: Federation,
        sites: Mapping[str, Sequence[str]],
        model: str = "mclr",
        engine: MakeEngine = LoopEngine,
        tamper: Callable[[str, bytes], bytes | None] = lambda site, data: data,
    ) -> None:
        worlds = {site: World.from_spec(select_clients(federation, clients), model) for site, clients in sites.items()}
        self.sites: dict[str, tuple[World, Any]] = {site: (world, engine(world)) for site, world in worlds.items()}
        self.tamper, self.sent, self.received = tamper, 0, 0

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {}
        for site, data in batches.items():
            world, engine = self.sites[site]
            self.sent += len(data)
            response = self.tamper(site, self.answer(data, world, engine))
            if response is not None:
                answers[site] = response
                self.received += len(response)
        return answers

    def answer(self, data: bytes, world: World, engine: Engine) -> bytes:
        """What an honest site says: it tells all of its numbers, and keeps what is delivered nowhere."""
        if is_kind(data, Hello):
            return to_message(make_site_card(from_message(data, Hello), world))
        if is_kind(data, Delivery):
            delivery = from_message(data, Delivery)
            return to_message(Receipt(PROTOCOL, delivery.run, delivery.number, "kept", delivery.order))
        return answer_batch(from_message(data, AskBatch), world.federation.ids, engine.run)
