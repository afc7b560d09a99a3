"""FedSim: similarity-guided averaging. Clusters of similar gradients are averaged first, then the clusters, each counting the same.

Palihawadana et al., "FedSim: Similarity guided model aggregation for Federated Learning" (2022), Algorithms 1 and 2.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Ids, Ints
from coterie.core.asks import Gradient, Gradients, Train, Trained
from coterie.core.errors import UserError
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing
from coterie.core.states import Models
from coterie.grouping.clusterers import How, agglomerative, canonical, choose, kmeans, spectral
from coterie.grouping.controls import Assign, controlled
from coterie.grouping.similarity import coordinates, distances, gaussian, gram, sketch
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class FedSim(OneModelMethod):
    """One model; in each round the cohort's clusters, which live for that round only, decide who counts how much."""

    clusters: int | Literal["auto"] = 5
    reducer: Literal["pca", "random_projection"] | None = "pca"
    variance: float = 0.95  # the share that PCA keeps
    dimensions: int = 64  # of a random projection
    clusterer: Literal["kmeans", "spectral", "agglomerative"] = "kmeans"
    assign: Assign = "similar"
    across: Literal["uniform", "samples"] = "uniform"
    mu: float = 0.0  # above 0, clients train as in FedProx
    criterion: How = "silhouette"  # how "auto" chooses
    most: int = 10  # the largest number that "auto" tries

    def __post_init__(self) -> None:
        super().__post_init__()
        checks = {
            "clusters": (self.clusters == "auto" or self.clusters >= 1, "give 1 or more, or auto"),
            "variance": (0 < self.variance <= 1, "give a share above 0 and at most 1"),
            "dimensions": (self.dimensions >= 1, "give 1 or more"),
            "mu": (self.mu >= 0, "give 0 or more"),
            "most": (self.most >= 1, "give 1 or more"),
        }
        for name, (fine, advice) in checks.items():
            if not fine:
                raise UserError(f"FedSim cannot use {name}={getattr(self, name)!r}: {advice}.")

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort = ctx.cohort()  # Alg. 1, line 3
        probes = yield from Gradient(cohort, state.models)  # Alg. 2, lines 1-4
        clusters = self.cluster(probes, ctx)  # Alg. 2, lines 5-7
        local = ctx.local.but(mu=self.mu) if self.mu else ctx.local
        trained = yield from Train(cohort, state.models, local, partial=self.mu > 0)  # Alg. 1, line 7
        if not len(trained):
            return state
        labels = matched(clusters, probes, trained, state, ctx)
        ctx.record("clusters", labels)  # in the order of the matrix's clients
        weights = self.weights(labels, trained.sizes)
        mixing = Mixing(trained.clients, weights[None, :], np.zeros((1, 1)))
        return state.with_models(ctx.mix(mixing, trained, state.models))

    def cluster(self, probes: Gradients, ctx: Context) -> Ids:
        """(n,) the cluster of each client that sent a gradient."""
        if not len(probes):
            return np.zeros(0, dtype=np.int64)
        points = self.reduced(probes, ctx)
        k = self.clusters
        if k == "auto":
            choice = choose(points, ctx.rng("number of clusters"), self.most, self.criterion)
            ctx.record("chosen", np.array(choice.curve))
            k = choice.k
        labels = self.grouped(points, k, ctx)
        labels = canonical(controlled(labels, probes.clients, self.assign, ctx, each_round=True))
        ctx.record("components", points.shape[1])
        ctx.record("clusters_found", int(labels.max()) + 1)  # fewer than asked for where the cohort or its differences are
        ctx.record("F_O", float(probes.losses.mean()))  # Eq. 5
        ctx.record("F_G", float(np.mean([probes.losses[labels == c].mean() for c in np.unique(labels)])))  # Eq. 6-7
        return labels

    def reduced(self, probes: Gradients, ctx: Context) -> Doubles:
        """(n, r) the gradients in few dimensions; without a reducer, in as many as keep every distance."""
        gradients = ctx.layout.comparable(probes.vectors)
        if self.reducer == "random_projection":
            return sketch(gradients, self.dimensions, ctx.rng("projection"))
        return coordinates(gram(gradients), self.variance if self.reducer == "pca" else None)

    def grouped(self, points: Doubles, k: int, ctx: Context) -> Ids:
        """(n,) at most k clusters of the *reduced* points (line 6 of Alg. 2 prints the unreduced ones)."""
        if self.clusterer == "kmeans":
            return kmeans(points, k, ctx.rng("clusters"))
        apart = distances(points @ points.T)
        if self.clusterer == "spectral":
            return spectral(gaussian(apart), k, ctx.rng("clusters"))
        return agglomerative(apart, groups=k, linkage="ward")

    def weights(self, labels: Ids, sizes: Ints) -> Doubles:
        """(n,) the client's share in its cluster's model times the cluster's share in the global one: Eq. 13 and 14 in one."""
        samples = np.bincount(labels, weights=sizes)
        within = sizes / samples[labels]  # Eq. 13 over the cluster's own samples: over all of them, as printed, the model shrinks
        present = np.unique(labels)
        share = 1 / len(present) if self.across == "uniform" else samples[labels] / sizes.sum()  # Eq. 14
        return np.asarray(within * share)


def matched(clusters: Ids, probes: Gradients, trained: Trained, state: Models, ctx: Context) -> Ids:
    """(n,) the cluster of each client that sent a model: its own, or, without a probe, the one with the nearest mean update."""
    labels = np.full(len(trained), -1, dtype=np.int64)
    known = np.isin(trained.clients, probes.clients)
    labels[known] = clusters[np.searchsorted(probes.clients, trained.clients[known])]
    if known.all():
        return labels
    if not known.any():  # no cluster to join: all are one, which is FedAvg
        return np.zeros(len(trained), dtype=np.int64)
    inner = gram(ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models))
    present = np.unique(labels[known])
    members = (labels == present[:, None]) / np.sum(labels == present[:, None], axis=1, keepdims=True)  # (C, n): a row averages a cluster
    # ||u_i - mean_c||^2 without ||u_i||^2, which is the same for every cluster
    apart = -2 * inner @ members.T + np.einsum("ci,ij,cj->c", members, inner, members)
    labels[~known] = present[np.argmin(apart[~known], axis=1)]
    return labels
