"""What FedSim's Figures 1 and 4 show of clients without a training run: how alike their features are, and a map of their gradients."""

import numpy as np

from coterie.core.asks import Gradient
from coterie.core.rng import generator, key
from coterie.data.federation import Federation
from coterie.engines.make import make_engine
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from coterie.grouping.clusterers import kmeans, silhouette
from coterie.grouping.similarity import coordinates, gram
from coterie.heterogeneity.features import kolmogorov_smirnov
from coterie.reproduce.measured import Measured
from coterie.run.drive import answer

COMPARED = 40  # clients, drawn by seed: all pairs of a thousand would take hours
CLUSTERS = 10  # of Figure 4


def features(federation: Federation, settings: Settings) -> list[Measured]:
    """Figure 1: one minus the Kolmogorov-Smirnov statistic of every pair of some clients, the mean over pairs and features.

    `pairs` is of all pairs; where true groups are known, `alike` and `apart` are of pairs of one group and of two.
    """
    found = []
    for seed in settings.seeds:
        count = min(COMPARED, len(federation))
        clients = np.sort(generator(key(seed, "features figure")).choice(len(federation), count, replace=False))
        rows = [federation.x[federation.train[int(k)]].reshape(len(federation.train[int(k)]), -1) for k in clients]
        similar = 1.0 - kolmogorov_smirnov(rows)
        pairs = np.triu(np.ones_like(similar, dtype=bool), 1)
        found.append(Measured("pairs", "similarity", seed, float(similar[pairs].mean())))
        if federation.groups is not None:
            same = federation.groups[clients][:, None] == federation.groups[clients]
            for row, chosen in (("alike", pairs & same), ("apart", pairs & ~same)):
                found.append(Measured(row, "similarity", seed, float(similar[chosen].mean()) if chosen.any() else np.nan))
    return found


def gradient_map(federation: Federation, settings: Settings) -> list[Measured]:
    """Figure 4: all clients' gradients at an initial model on their two principal components, and ten clusters of them.

    `silhouette` says how dense and how far apart those are, from -1 to 1: the figure itself has no number.
    """
    world, found = World.of(federation, settings.model), []
    layout, everybody = world.model.layout, np.arange(len(federation), dtype=np.int64)
    with make_engine(world) as engine:
        for seed in settings.seeds:
            origin = world.model.initial(seed)(0)[None]
            told = answer(iter(Gradient(everybody, origin)), engine, seed=seed)
            places = coordinates(gram(layout.comparable(told.vectors)))[:, :2]
            labels = kmeans(places, min(CLUSTERS, len(places) - 1), generator(key(seed, "map figure")))
            found.append(Measured("clusters", "silhouette", seed, silhouette(places, labels)))
    return found
