"""Numbers of the papers' figures that no training run gives.

A study file's ``measure = "NAME"`` is the function ``measure_NAME``.
"""

from dataclasses import replace
from time import perf_counter

import numpy as np
from scipy.spatial.distance import pdist

from coterie.core.asks import Gradient, Train
from coterie.core.rng import make_generator, make_key
from coterie.data.federation import Federation
from coterie.engines.batched import make_engine
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from coterie.grouping.clustering import compute_silhouette
from coterie.grouping.heterogeneity import compute_kolmogorov_smirnov
from coterie.grouping.kmeans import kmeans
from coterie.grouping.similarity import compute_coordinates, compute_cosines, compute_gram, compute_ternary_cosines
from coterie.methods.catalogue import build
from coterie.methods.fedgroup import FedGroup
from coterie.reproduce.run import Measurement
from coterie.run.driver import run_script
from coterie.run.study import Study

COMPARED_CLIENTS = 40  # clients, drawn by seed: all pairs of a thousand would take hours
CLUSTERS = 10  # of FedSim's Figure 4


def measure_times(federation: Federation, settings: Settings) -> list[Measurement]:
    """FedSim's Table 3: milliseconds a round by method (`round_ms`) and as a multiple of the first method's (`round_ratio`).

    Methods run in turn, once for each seed. A first turn, which compiles, is not counted. Evaluation after the last round is, as it would
    be in a deployment.
    """
    plan = replace(settings.plan, evaluate_every=settings.plan.rounds)
    found = []
    for turn, seed in enumerate((settings.seeds[0], *settings.seeds)):
        took = {}
        for method in settings.methods:
            one = Study.prepare(replace(settings, methods=(method,), seeds=(seed,), plan=plan), federation=federation)
            start = perf_counter()
            one.run()
            took[method] = 1000 * (perf_counter() - start) / plan.rounds
        if turn:
            base = took[settings.methods[0]]
            found += [Measurement(method, "round_ms", seed, ms) for method, ms in took.items()]
            found += [Measurement(method, "round_ratio", seed, ms / base) for method, ms in took.items()]
    return found


def measure_features(federation: Federation, settings: Settings) -> list[Measurement]:
    """FedSim's Figure 1: one minus the Kolmogorov-Smirnov statistic of every pair of some clients, the mean over pairs and features.

    `pairs` is of all pairs; where true groups are known, `alike` and `apart` are of pairs of one group and of two.
    """
    found = []
    for seed in settings.seeds:
        count = min(COMPARED_CLIENTS, len(federation))
        clients = np.sort(make_generator(make_key(seed, "features figure")).choice(len(federation), count, replace=False))
        rows = [federation.x[federation.train[int(k)]].reshape(len(federation.train[int(k)]), -1) for k in clients]
        similar = 1.0 - compute_kolmogorov_smirnov(rows)
        pairs = np.triu(np.ones_like(similar, dtype=bool), 1)
        found.append(Measurement("pairs", "similarity", seed, float(similar[pairs].mean())))
        if federation.groups is not None:
            same = federation.groups[clients][:, None] == federation.groups[clients]
            for row, chosen in (("alike", pairs & same), ("apart", pairs & ~same)):
                found.append(Measurement(row, "similarity", seed, float(similar[chosen].mean()) if chosen.any() else np.nan))
    return found


def measure_map(federation: Federation, settings: Settings) -> list[Measurement]:
    """FedSim's Figure 4: all clients' gradients at an initial model on their two principal components, and ten clusters of them.

    The silhouette measures how dense and how far apart those are, from -1 to 1: the figure itself has no number.
    """
    world, found = World.from_spec(federation, settings.model), []
    layout, clients = world.model.layout, np.arange(len(federation), dtype=np.int64)
    with make_engine(world) as engine:
        for seed in settings.seeds:
            origin = world.model.initial(seed)(0)[None]
            replies = run_script(iter(Gradient(clients, origin)), engine, seed=seed)
            places = compute_coordinates(compute_gram(layout.comparable(replies.vectors)))[:, :2]
            labels = kmeans(places, min(CLUSTERS, len(places) - 1), make_generator(make_key(seed, "map figure")))
            found.append(Measurement("clusters", "silhouette", seed, compute_silhouette(places, labels)))
    return found


def measure_ternary(federation: Federation, settings: Settings) -> list[Measurement]:
    """FedGroup's Figure 5: pairwise distances in the ternary matrix against those in the full cosine matrix, for each seed.

    The settings' first method sets how many clients pre-train and for how long. `r2` is the square of Pearson's correlation.
    """
    method = build(settings.methods[0])
    assert isinstance(method, FedGroup)
    assert isinstance(method.groups, int)
    world, found = World.from_spec(federation, settings.model), []
    layout = world.model.layout
    local = settings.plan.local.replace(epochs=method.pretrain)
    directions = method.groups if method.directions == "groups" else method.directions
    with make_engine(world) as engine:
        for seed in settings.seeds:
            count = min(method.alpha * method.groups, len(federation))
            clients = np.sort(make_generator(make_key(seed, "ternary figure")).choice(len(federation), count, replace=False)).astype(
                np.int64
            )
            origin = world.model.initial(seed)(0)[None]
            trained = run_script(iter(Train(clients, origin, local, purpose="pretrain")), engine, seed=seed)
            updates, start = layout.comparable(trained.vectors), layout.comparable(origin)
            short = pdist(compute_ternary_cosines(updates, directions, start))
            full = pdist((1.0 - compute_cosines(compute_gram(updates, start))) / 2.0)
            found.append(Measurement("distances", "r2", seed, float(np.corrcoef(full, short)[0, 1] ** 2)))
    return found
