"""A world that changes: from a round on, clients hold something else, and methods meet and are judged on it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import coterie as ct
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.engines.engine import Stamped
from coterie.engines.loop import LoopEngine
from coterie.engines.problem import Problem
from coterie.methods.fedavg import FedAvg
from coterie.run.drive import drive
from coterie.run.lanes import lanes_of

SPEC = "digits/labelswap(groups=2,clients=6)/drift(at=3)"


class Listening(LoopEngine):
    """Remembers which problem each training was of."""

    def __init__(self) -> None:
        super().__init__()
        self.met: dict[int, Problem] = {}

    def run(self, asks: Sequence[Stamped]) -> list[Any]:
        self.met |= {s.round_: s.problem for s in asks if isinstance(s.ask, Train)}
        return super().run(asks)


def test_every_round_meets_the_world_of_its_time() -> None:
    problem = Problem.of(ct.load(SPEC), "mclr")
    engine = Listening()
    drive(lanes_of([("fedavg", FedAvg())], [0], problem, Plan(rounds=5)), engine, 5, lambda lane, record: None)
    before, after = problem.federation, problem.federation.at(3)
    assert [engine.met[t].federation for t in range(1, 6)] == [before, before, after, after, after]
    assert engine.met[3] is engine.met[5]  # one problem a phase: engines keep what they prepared for it
    assert engine.met[1] is problem


def test_scores_follow_the_labels_of_the_time() -> None:
    result = ct.study("fedavg", data=SPEC, plan=Plan(rounds=4, local=Local(epochs=5, lr=0.1)))
    federation = ct.load(SPEC)
    clients = result.clients
    for round_ in (2, 4):
        world = federation.at(round_)
        rows = clients[clients["round"] == round_]
        counts = np.stack([np.bincount(world.y[part], minlength=10) for part in world.test])
        assert np.array_equal(rows[[f"actual_{c}" for c in range(10)]].to_numpy(), counts)
    groups = federation.at(4).groups
    assert groups is not None
    assert np.array_equal(result.evidence.roster["group"].to_numpy(), groups)
