"""A federation without a network: sites in this process, between which only bytes pass."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.data.federation import Federation
from coterie.deploy.answering import answer_parcel
from coterie.deploy.held import held_by_site
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
        worlds = {site: World.of(held_by_site(federation, clients), model) for site, clients in sites.items()}
        self.sites: dict[str, tuple[World, Any]] = {site: (world, engine(world)) for site, world in worlds.items()}
        self.tamper, self.sent, self.said = tamper, 0, 0

    def exchange(self, parcels: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = {}
        for site, data in parcels.items():
            world, engine = self.sites[site]
            self.sent += len(data)
            said = self.tamper(site, answer_parcel(data, world, engine.run))
            if said is not None:
                answers[site] = said
                self.said += len(said)
        return answers
