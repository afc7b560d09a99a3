"""A world that changes: from a round on, clients hold something else, and methods meet and are judged on it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import coterie as ct
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.engines.local_engine import Work
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.methods.fedavg import FedAvg
from coterie.run.driver import drive
from coterie.run.lanes import make_lanes
from coterie.testing import worlds

SPEC = "digits/labelswap(groups=2,clients=6)/drift(at=3)"


class Listening(LoopEngine):
    """Remembers which world each training was of."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.met: dict[int, World] = {}

    def execute(self, works: Sequence[Work]) -> list[Any]:
        self.met |= {work.round_: work.world for work in works if isinstance(work.ask, Train)}
        return super().execute(works)


def test_every_round_meets_the_world_of_its_time() -> None:
    world = World.from_spec(ct.load(SPEC), "mclr")
    with Listening(world) as engine:
        drive(make_lanes([("fedavg", FedAvg())], [0], world.problem, Plan(rounds=5)), engine, 5, lambda lane, record: None)
    before, after = world.federation, world.federation.at_round(3)
    assert after is not before
    assert [engine.met[t].federation for t in range(1, 6)] == [before, before, after, after, after]
    assert engine.met[3] is engine.met[5]  # one world a phase: engines keep what they prepared for it
    assert engine.met[1] is world


def test_the_servers_view_follows_the_world() -> None:
    """The true groups are those of the round, and so is who can be reached; a round's number is all it takes."""
    world = World.from_spec(ct.load(SPEC), "mclr")
    first, later = world.federation.groups, world.federation.at_round(3).groups
    assert first is not None
    assert later is not None
    assert first.tolist() != later.tolist()
    for round_, expected in ((0, first), (2, first), (3, later), (5, later)):
        truth = world.problem.truth_at(round_)
        assert truth is not None
        assert truth.tolist() == expected.tolist()
    joining = World.from_spec(worlds.make_federation().replace(arrivals=np.array([0, 0, 0, 2, 2, 4])), "mclr").problem
    assert [joining.roster_at(round_).available.tolist() for round_ in (1, 2, 4)] == [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert len(joining.roster) == 6  # everybody, reachable or not
    assert joining.context(Plan(), 0, 2).cohort().tolist() == [0, 1, 2, 3, 4]


def test_scores_follow_the_labels_of_the_time() -> None:
    result = ct.study("fedavg", data=SPEC, plan=Plan(rounds=4, local=Local(epochs=5, lr=0.1)))
    federation = ct.load(SPEC)
    clients = result.clients
    for round_ in (2, 4):
        world = federation.at_round(round_)
        rows = clients[clients["round"] == round_]
        counts = np.stack([np.bincount(world.y[part], minlength=10) for part in world.test])
        assert np.array_equal(rows[[f"actual_{c}" for c in range(10)]].to_numpy(), counts)
    groups = federation.at_round(4).groups
    assert groups is not None
    assert np.array_equal(result.evidence.roster["group"].to_numpy(), groups)
