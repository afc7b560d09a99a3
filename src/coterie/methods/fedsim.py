"""FedSim: similarity-guided averaging. Clusters of similar gradients are averaged first, then the clusters, each counting the same.

Palihawadana et al., "FedSim: Similarity guided model aggregation for Federated Learning" (2022), Algorithms 1 and 2. `switch` is the future
work of its Section 7, "to dynamically switch aggregation methods": both averages are made, and the gain of the last rounds decides.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ids, Ints
from coterie.core.asks import Evaluate, Gradient, Gradients, Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.core.tasks import compute_credits
from coterie.core.vectors import Sketch
from coterie.grouping.clustering import cluster, clusterers
from coterie.grouping.kmeans import renumber_labels
from coterie.grouping.similarity import compute_gram, project_randomly
from coterie.methods.controls import Assign, apply_control
from coterie.methods.group_number import GroupNumber, GroupNumberMixin, SketchingMixin
from coterie.methods.grouped import compute_client_points
from coterie.methods.one_model import SharedModel


@dataclass(frozen=True)
class FedSimState(Models):
    """The shared model, and how many clusters a cohort is cut into; None where every round finds out."""

    clusters: int | None
    gains: tuple[float, ...] = ()  # of FedSim's average over FedAvg's, by validation score: those of the last rounds that `switch` reads


@dataclass(frozen=True, kw_only=True)
class FedSim(SketchingMixin[FedSimState], SharedModel[FedSimState], GroupNumberMixin):
    """One model; in each round the cohort's clusters, which live for that round only, decide how much each client counts.

    Example: ``ct.FedSim(clusters=4)``, or the spec ``fedsim(clusters=4)``.
    """

    clusters: GroupNumber = setting(5, "Clusters a round.", minimum=1)
    reducer: Literal["pca", "random_projection"] | None = setting("pca", "How gradients are made short before they are clustered.")
    variance: float = setting(0.95, "The share of variance that PCA keeps.", above=0, maximum=1)
    dimensions: int = setting(64, "Dimensions of a random projection.", minimum=1)
    clusterer: str = setting("kmeans", "How gradients are clustered: kmeans, spectral, agglomerative, or one of an installed package.")
    assign: Assign = setting("similar", "What decides on clusters: similarity, or a control.")
    across: Literal["uniform", "samples"] = setting("uniform", "How much a cluster counts.")
    mu: float = setting(0.0, "Above 0, clients train as in FedProx.", minimum=0)
    switch: int | None = setting(None, "Rounds whose validation gains decide between FedSim and FedAvg; none: always FedSim.", minimum=1)
    switch_margin: float = setting(0.0, "The mean gain in validation score from which FedSim is used.", infinite=True)

    switch_on: Literal["cohort", "sample"] = setting("cohort", "Which clients judge: those that trained, or another sample of all.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = clusterers[self.clusterer]  # an unknown one is refused here

    def start(self, init: InitialModels, ctx: Context) -> Round[FedSimState]:
        if self.switch is not None and not ctx.validation:
            raise UserError("FedSim's switch compares averages on validation parts: give the data validation=0.1, or omit switch.")
        model = init()[None, :]
        number = yield from self.ask_number(self.clusters, model, init, ctx, "clusters", self.sketching(ctx))
        return FedSimState(model, number)

    @property
    def proximal(self) -> float:
        return self.mu

    def round(self, state: FedSimState, ctx: Context) -> Round[FedSimState]:
        cohort, sketch = ctx.cohort(), self.sketching(ctx)  # Alg. 1, line 3
        probes = yield from Gradient(cohort, state.models, sketch=sketch)  # Alg. 2, lines 1-4
        clusters = self.cluster(probes, sketch, state.clusters, ctx)  # Alg. 2, lines 5-7
        local = ctx.local.replace(mu=self.mu) if self.mu else ctx.local
        trained = yield from Train(cohort, state.models, local, partial=self.mu > 0)  # Alg. 1, line 7
        if not len(trained):
            return state
        labels = match_clusters(clusters, probes, trained, state, ctx)
        ctx.notes.clusters = (trained.clients, labels)
        weights, gains = self.weights(labels, trained.sizes), state.gains
        if self.switch is not None:
            weights, gains = yield from self.choose_weights(weights, trained, state, self.switch, ctx)
        mixing = Mixing(trained.clients, weights[None, :], np.zeros((1, 1)))
        return replace(state, models=ctx.mix(mixing, trained, state.models), gains=gains)

    def choose_weights(
        self, similar: Doubles, trained: Trained, state: FedSimState, window: int, ctx: Context
    ) -> Round[tuple[Doubles, tuple[float, ...]]]:
        """FedSim's weights or FedAvg's, by their mean gain over the last rounds, this one included; and these gains."""
        fedavg = self.weights(np.zeros(len(trained), dtype=np.int64), trained.sizes)  # all in one cluster
        judges = trained.clients if self.switch_on == "cohort" else ctx.cohort("switch")
        gain = yield from compute_validation_gain(similar, fedavg, trained, judges, state.models, ctx)
        gains = state.gains if gain is None else (*state.gains, gain)[-window:]
        uses_clusters = (float(np.mean(gains)) if gains else 0.0) >= self.switch_margin
        ctx.note("validation_gain", gain)
        ctx.note("used_clusters", float(uses_clusters))
        return similar if uses_clusters else fedavg, gains

    def cluster(self, probes: Gradients, sketch: Sketch | None, number: int | None, ctx: Context) -> Ids:
        """(n,) the cluster of each client that sent a gradient."""
        if not len(probes):
            return np.zeros(0, dtype=np.int64)
        gradients = probes.vectors if sketch is not None else ctx.layout.comparable(probes.vectors)
        if self.reducer == "random_projection":
            points = project_randomly(gradients, self.dimensions, ctx.rng("projection"))
        else:  # without a reducer, in as many dimensions as keep every distance
            points = compute_client_points(gradients, None, ctx, self.variance if self.reducer == "pca" else None)
        # The *reduced* points are clustered; line 6 of Alg. 2 prints the unreduced ones.
        labels = cluster(points, self.read_number(number, points, ctx), self.clusterer, ctx.rng("clusters"))
        labels = renumber_labels(apply_control(labels, probes.clients, self.assign, ctx, each_round=True))
        ctx.note("components", points.shape[1])
        ctx.note("clusters_found", int(labels.max()) + 1)  # fewer than asked for where the cohort or its differences are
        if sketch is None:  # no loss leaves with a sketch
            ctx.note("F_O", float(probes.losses.mean()))  # Eq. 5
            ctx.note("F_G", float(np.mean([probes.losses[labels == c].mean() for c in np.unique(labels)])))  # Eq. 6-7
        return labels

    def weights(self, labels: Ids, sizes: Ints) -> Doubles:
        """(n,) the client's share in its cluster's model times the cluster's share in the global one: Eq. 13 and 14 in one."""
        samples = np.bincount(labels, weights=sizes)
        within = sizes / samples[labels]  # Eq. 13 over the cluster's own samples: over all of them, as printed, the model shrinks
        share = 1 / len(np.unique(labels)) if self.across == "uniform" else samples[labels] / sizes.sum()  # Eq. 14
        return np.asarray(within * share)

    @property
    def groups_cohort(self) -> bool:
        return True

    @property
    def weighs_alike(self) -> bool:
        return self.across == "uniform"


def compute_validation_gain(one: Doubles, two: Doubles, trained: Trained, judges: Ids, before: Floats, ctx: Context) -> Round[float | None]:
    """By how much the first average of the replies scores higher on the validation parts of these clients.

    Of the clients that answer for both; None where these have no validation samples. Nothing of it is kept but the number.
    """
    judged = []
    for weights in (one, two):
        mixing = ctx.bound_mixing(Mixing(trained.clients, weights[None, :], np.zeros((1, 1))))
        model, _ = ctx.aggregate(mixing, trained.vectors, before)
        judged.append((yield from Evaluate(Serving.one(judges, model), "validation")))
    both = np.intersect1d(judged[0].clients, judged[1].clients)
    first, second = (reply.of(both) for reply in judged)
    samples = int(first.sizes.sum())
    if not samples:
        return None
    gain = float(compute_credits(first, ctx.task).sum() - compute_credits(second, ctx.task).sum()) / samples
    return gain if np.isfinite(gain) else None


def match_clusters(clusters: Ids, probes: Gradients, trained: Trained, state: FedSimState, ctx: Context) -> Ids:
    """(n,) the cluster of each client that sent a model: its own, or, without a probe, the one with the nearest mean update."""
    labels = np.full(len(trained), -1, dtype=np.int64)
    known = np.isin(trained.clients, probes.clients)
    labels[known] = clusters[np.searchsorted(probes.clients, trained.clients[known])]
    if known.all():
        return labels
    if not known.any():  # no cluster to join: all are one, which is FedAvg
        return np.zeros(len(trained), dtype=np.int64)
    inner = compute_gram(ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models))
    present = np.unique(labels[known])
    members = (labels == present[:, None]) / np.sum(labels == present[:, None], axis=1, keepdims=True)  # (C, n): a row averages a cluster
    # ||u_i - mean_c||^2 without ||u_i||^2, which is the same for every cluster
    apart = -2 * inner @ members.T + np.einsum("ci,ij,cj->c", members, inner, members)
    labels[~known] = present[np.argmin(apart[~known], axis=1)]
    return labels
