"""What some figures of the papers show without a training run: an index of heterogeneity, a map between two distance matrices."""

from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import pdist

from coterie.core.asks import Train
from coterie.core.rng import generator, key
from coterie.data.federation import Federation
from coterie.engines.loop import LoopEngine
from coterie.engines.make import make_engine
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from coterie.grouping.similarity import cosines, gram, ternary_cosines
from coterie.heterogeneity import ask_pni
from coterie.methods.catalogue import build
from coterie.methods.fedgroup import FedGroup
from coterie.reproduce.client_maps import features, gradient_map
from coterie.reproduce.measured import Measured
from coterie.reproduce.round_times import round_times
from coterie.run.drive import answer


def measured_pni(federation: Federation, settings: Settings) -> list[Measured]:
    """FedSim's index (Section 3.3), as printed and normalised, for each seed."""
    world = World.of(federation, settings.model)
    clients, found = world.problem.roster.clients, []
    with LoopEngine(world) as engine:
        for seed in settings.seeds:
            index = answer(ask_pni(clients, world.model.initial(seed)), engine, seed=seed)
            found += [Measured("pni", "literal", seed, index.literal), Measured("pni", "normalised", seed, index.normalised)]
    return found


def ternary(federation: Federation, settings: Settings) -> list[Measured]:
    """FedGroup's Figure 5: pairwise distances in the ternary matrix against those in the full cosine matrix, for each seed.

    The settings' first method says how many clients pre-train and for how long. `r2` is the square of Pearson's correlation.
    """
    method = build(settings.methods[0])
    assert isinstance(method, FedGroup)
    assert isinstance(method.groups, int)
    world, found = World.of(federation, settings.model), []
    layout = world.model.layout
    local = settings.plan.local.but(epochs=method.pretrain)
    directions = method.groups if method.directions == "groups" else method.directions
    with make_engine(world) as engine:
        for seed in settings.seeds:
            count = min(method.alpha * method.groups, len(federation))
            clients = np.sort(generator(key(seed, "ternary figure")).choice(len(federation), count, replace=False)).astype(np.int64)
            origin = world.model.initial(seed)(0)[None]
            trained = answer(iter(Train(clients, origin, local, purpose="pretrain")), engine, seed=seed)
            updates, start = layout.comparable(trained.vectors), layout.comparable(origin)
            short = pdist(ternary_cosines(updates, directions, start))
            full = pdist((1.0 - cosines(gram(updates, start))) / 2.0)
            found.append(Measured("distances", "r2", seed, float(np.corrcoef(full, short)[0, 1] ** 2)))
    return found


MEASURES: dict[str, Callable[[Federation, Settings], list[Measured]]] = {
    "pni": measured_pni,
    "ternary": ternary,
    "features": features,
    "map": gradient_map,
    "times": round_times,
}
