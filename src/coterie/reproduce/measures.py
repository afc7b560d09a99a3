"""What some figures of the papers show without a training run: an index of heterogeneity, a map between two distance matrices."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy.spatial.distance import pdist

from coterie.core.asks import Ask, Train
from coterie.core.rng import generator, key
from coterie.data.federation import Federation
from coterie.engines.engine import Engine, Stamped
from coterie.engines.make import make_engine
from coterie.engines.problem import Problem
from coterie.evidence.settings import Settings
from coterie.grouping.similarity import cosines, gram, ternary_cosines
from coterie.heterogeneity import ask_pni
from coterie.methods.catalogue import build
from coterie.methods.fedgroup import FedGroup
from coterie.run.execution import Execution

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """One number of one seed."""

    row: str
    score: str
    seed: int
    value: float


def answered(script: Generator[Ask[Any], Any, T], problem: Problem, seed: int, engine: Engine) -> T:
    """What a script of asks comes to, without a lane around it."""
    reply = None
    while True:
        try:
            ask = script.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value
        reply = engine.run([Stamped(ask, problem, seed, 0)])[0]


def pni(federation: Federation, settings: Settings) -> list[Measured]:
    """FedSim's index (Section 3.3), as printed and normalised, for each seed."""
    problem, engine = Problem.of(federation, settings.model), make_engine(Execution(engine="loop"))
    clients = problem.roster.clients
    found = []
    for seed in settings.seeds:
        index = answered(ask_pni(clients, problem.initial(seed)), problem, seed, engine)
        found += [Measured("pni", "literal", seed, index.literal), Measured("pni", "normalised", seed, index.normalised)]
    return found


def ternary(federation: Federation, settings: Settings) -> list[Measured]:
    """FedGroup's Figure 5: pairwise distances in the ternary matrix against those in the full cosine matrix, for each seed.

    The settings' first method says how many clients pre-train and for how long. `r2` is the square of Pearson's correlation.
    """
    method = build(settings.methods[0])
    assert isinstance(method, FedGroup)
    assert isinstance(method.groups, int)
    problem, engine = Problem.of(federation, settings.model), make_engine(Execution())
    found = []
    for seed in settings.seeds:
        count = min(method.alpha * method.groups, len(federation))
        clients = np.sort(generator(key(seed, "ternary figure")).choice(len(federation), count, replace=False)).astype(np.int64)
        origin = problem.initial(seed)(0)[None]
        ask = Train(clients, origin, settings.plan.local.but(epochs=method.pretrain), purpose="pretrain")
        trained = engine.run([Stamped(ask, problem, seed, 0)])[0]
        updates, start = problem.layout.comparable(trained.vectors), problem.layout.comparable(origin)
        directions = method.groups if method.directions == "groups" else method.directions
        short = pdist(ternary_cosines(updates, directions, start))
        full = pdist((1.0 - cosines(gram(updates, start))) / 2.0)
        found.append(Measured("distances", "r2", seed, float(np.corrcoef(full, short)[0, 1] ** 2)))
    return found


MEASURES: dict[str, Callable[[Federation, Settings], list[Measured]]] = {"pni": pni, "ternary": ternary}
