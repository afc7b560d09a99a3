"""FedEx: experts for clusters of clients, and an online layer that combines their outputs.

Miles et al., "FedEx: An Exploration of Clustering Clients in Federated Learning": spectral clustering of clients' models after one round,
FedAvg in each cluster, Algorithm 2 at inference (see `combiners`).
"""

from abc import ABC
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Evaluate, Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import ALL_CLIENTS_TRAIN, Context, MemoryNeeds, Round, done
from coterie.core.mixing import Mixing, mix
from coterie.core.serving import COMBINED, Combiner, NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.vectors import map_row_chunks, prepare_rows
from coterie.grouping.clustering import merge_singletons_large, spectral_clustering, spectral_clustering_large
from coterie.grouping.kmeans import renumber_labels
from coterie.grouping.landmarks import MANY, compute_short_points
from coterie.grouping.similarity import compute_coordinates, compute_cosines, compute_gram
from coterie.methods.averaging import compute_weights
from coterie.methods.combiners import AccuracyGate, ByRow, Mean, MostConfident, Online
from coterie.methods.controls import apply_control, assign_newcomers
from coterie.methods.group_number import GroupNumber, GroupNumberMixin
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups, name_models, note_landmarks


@dataclass(frozen=True)
class FedExState(Groups):
    """The experts, which client trains which, and what a latecomer is compared with. One model, w_0, until the clustering round."""

    origin: Floats  # (1, d) w_0
    centres: Floats | None  # (G, d) each cluster's mean model in the clustering round; None before
    fresh: Floats | None  # (G, d) models for start_from="fresh", until they are used
    gate: Doubles | None  # (G, C) the accuracy gate's weights; None before clients were asked


@dataclass(frozen=True, kw_only=True)
class ExpertClusters(GroupedMethod[FedExState], GroupNumberMixin, ABC):
    """Clusters by the cosines of what clients send back after one round in which all clients train."""

    groups: GroupNumber = setting(3, "Experts.", minimum=1)
    warmup: int = setting(5, "Epochs of the clustering round.", minimum=1)
    on: Literal["updates", "weights"] = setting("updates", "What is compared; weights are the paper's letter.")
    start_from: Literal["w0", "fresh", "first_round"] = setting("w0", "Where experts begin.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return ALL_CLIENTS_TRAIN

    def clustered(self, state: FedExState, ctx: Context) -> Round[tuple[FedExState, Ids]]:
        """The state after the clustering round, and which clients took part: all train from w_0, and what comes back is grouped."""
        count = yield from self.ask_number(self.groups, state.origin, lambda i=0: state.origin[0], ctx)
        trained = yield from self._warm_up(ctx.roster.available, state, ctx)
        if not len(trained):
            return state, trained.clients  # no replies: the next round tries again
        labels = self._labels(count, state, trained, ctx)
        groups, count = state.all_groups(ctx), int(labels.max()) + 1
        groups[trained.clients] = labels
        ctx.note("experts", count)
        means = ctx.bound_mixing(Mixing.within(trained.clients, labels, np.ones(len(trained)), 1, count))
        centres = mix(means, trained.vectors, state.models)
        if state.fresh is not None:
            models = state.fresh[np.arange(count) % len(state.fresh)]  # made of no reply and no old model: there is no matrix
        elif self.start_from == "w0":
            models = ctx.mix(Mixing(trained.clients, np.zeros((count, len(trained))), np.ones((count, 1))), trained, state.models)
        else:
            models = average_within_groups(state, trained, labels, compute_weights(trained, "samples"), count, ctx)
        return FedExState(models, groups, state.origin, centres, None, None), trained.clients

    def _labels(self, count: int | None, state: FedExState, trained: Trained, ctx: Context) -> Ids:
        """(n,) the expert of each client that trained: no expert is empty, and none has a single client where there are others."""
        if len(trained) > MANY:
            return self._label_many(count, state, trained, ctx)
        alike = self._compute_cosines(trained.vectors, state, ctx)
        count = self.read_number(None, compute_coordinates(alike), ctx) if count is None else count
        affinity = (1.0 + alike) / 2.0
        labels = spectral_clustering(affinity, count, ctx.rng("clusters"))
        ctx.note("groups_missing", count - len(np.unique(labels)))  # fewer distinct clients than groups, or empty experts
        ctx.note("lone_clients", int(np.sum(np.bincount(labels) == 1)))
        return renumber_labels(apply_control(merge_lone_clients(labels, affinity), trained.clients, self.assign, ctx))

    def _label_many(self, count: int | None, state: FedExState, trained: Trained, ctx: Context) -> Ids:
        """The same from directions in few dimensions, without a matrix of pairs."""
        note_landmarks(ctx)
        sent, origin = ctx.layout.comparable(trained.vectors), self._get_origin(state, ctx)
        directions = compute_short_points(sent, origin, ctx.rng("landmarks"), centred=False, unit=True)
        count = self.read_number(count, directions, ctx)
        labels = spectral_clustering_large(directions, count, ctx.rng("clusters"))
        ctx.note("groups_missing", count - len(np.unique(labels)))
        ctx.note("lone_clients", int(np.sum(np.bincount(labels) == 1)))
        return renumber_labels(apply_control(merge_singletons_large(labels, directions), trained.clients, self.assign, ctx))

    def admit_latecomers(self, state: FedExState, ctx: Context) -> Round[Ids]:
        """(n,) the groups, with those that missed the clustering or came later: they warm up and join the nearest cluster by cosine."""
        groups = state.all_groups(ctx)
        new = ctx.roster.available[groups[ctx.roster.available] < 0]
        if not len(new):
            return groups
        trained = yield from self._warm_up(new, state, ctx)
        ctx.note("admitted", len(trained))
        if len(trained):
            assert state.centres is not None
            rows = self._find_nearest_centre(trained.vectors, state.centres, state, ctx)
            groups[trained.clients] = assign_newcomers(rows, trained.clients, groups, len(state.models), self.assign, ctx)
        return groups

    def _warm_up(self, clients: Ids, state: FedExState, ctx: Context) -> Round[Trained]:
        """Training from w_0; with the plan's own number of epochs it is a round of FedAvg like any other."""
        usual = self.warmup == ctx.local.epochs and state.centres is None
        local = ctx.local.replace(epochs=self.warmup)
        return (yield from Train(clients, state.origin, local, purpose="train" if usual else "pretrain"))

    def _compute_cosines(self, vectors: Floats, state: FedExState, ctx: Context) -> Doubles:
        return compute_cosines(compute_gram(ctx.layout.comparable(vectors), self._get_origin(state, ctx)))

    def _find_nearest_centre(self, vectors: Floats, centres: Floats, state: FedExState, ctx: Context) -> Ids:
        if len(vectors) > MANY:
            layout, origin = ctx.layout, self._get_origin(state, ctx)
            targets = prepare_rows(layout.comparable(centres), origin, unit=True)
            found = map_row_chunks(lambda block: (prepare_rows(block, origin) @ targets.T).argmax(axis=1), layout.comparable(vectors))
            return found.astype(np.int64)
        alike = self._compute_cosines(np.concatenate([vectors, centres]), state, ctx)
        return np.asarray(alike[: len(vectors), len(vectors) :].argmax(axis=1))

    def _get_origin(self, state: FedExState, ctx: Context) -> Floats | None:
        """What updates are measured from; nothing where weights are compared."""
        return ctx.layout.comparable(state.origin) if self.on == "updates" else None


def merge_lone_clients(labels: Ids, affinity: Doubles) -> Ids:
    """The labels after every cluster of one client has joined the cluster it is, on average, most alike; one after the other."""
    labels = renumber_labels(labels)
    while len(labels) > 1 and labels.max() > 0:
        lone = np.flatnonzero(np.bincount(labels)[labels] == 1)
        if not len(lone):
            break
        one = lone[0]
        others = [j for j in range(int(labels.max()) + 1) if j != labels[one]]
        means = [float(affinity[one, labels == j].mean()) for j in others]
        labels[one] = others[int(np.argmax(means))]
        labels = renumber_labels(labels)
    return labels


@dataclass(frozen=True, kw_only=True)
class FedEx(ExpertClusters):
    """Cluster all clients in the first round, train an expert in each cluster, combine the experts' answers.

    Example: ``ct.FedEx(groups=2, combiner="mean")``, or the spec ``fedex(groups=2,combiner=mean)``.
    """

    fraction: float | None = setting(None, "Share of each cluster that trains in a round; default: FedAvg's.", above=0, maximum=1)
    combiner: Literal["online", "mean", "confident", "gate", "own"] = setting("online", "How experts answer clients' own test parts.")
    per_class: bool = setting(False, "Whether the online layer counts time for each class.")
    frozen: bool = setting(False, "Whether the online layer stays at the weights it begins with.")
    gate_part: Literal["train", "validation"] = setting("validation", "Where clients count hits for the accuracy gate.")

    @property
    def combines_models(self) -> bool:
        return self.combiner != "own" and self.groups != 1

    def start(self, init: InitialModels, ctx: Context) -> Round[FedExState]:
        if self.combiner not in ("mean", "own") and not ctx.task.counts_classes:
            raise UserError(f"FedEx's combiner {self.combiner!r} goes by classes, and this is a {ctx.task}: use combiner=mean or own.")
        if self.combiner == "gate" and self.gate_part == "validation" and not ctx.validation:
            raise UserError("FedEx's accuracy gate counts on validation parts: give the data validation=0.1 or the method gate_part=train.")
        w0 = init()[None, :]
        count = self.most if self.groups == "auto" else self.groups
        fresh = np.stack([init(1 + i) for i in range(min(count, len(ctx.roster)))]) if self.start_from == "fresh" else None
        return done(FedExState(w0, np.full(len(ctx.roster), -1, dtype=np.int64), w0, None, fresh, None))

    def round(self, state: FedExState, ctx: Context) -> Round[FedExState]:
        if state.centres is None:  # it counts as a round
            state, clients = yield from self.clustered(state, ctx)
            return (yield from self._counted(state, clients, ctx))
        groups = yield from self.admit_latecomers(state, ctx)
        cohort = self._draw_cohort(groups, ctx)
        trained = yield from Train(cohort, state.models, ctx.local, start=groups[cohort])
        if not len(trained):
            return state if np.array_equal(groups, state.groups) else replace(state, groups=groups)
        models = average_within_groups(state, trained, groups[trained.clients], compute_weights(trained, "samples"), len(state.models), ctx)
        return (yield from self._counted(replace(state, models=models, groups=groups), trained.clients, ctx))

    def _draw_cohort(self, groups: Ids, ctx: Context) -> Ids:
        """ceil(fraction * |cluster|) clients of each cluster; one cluster draws the very cohort that FedAvg draws."""
        available = ctx.roster.available
        fraction = len(ctx.cohort()) / max(len(available), 1) if self.fraction is None else self.fraction
        picked = [available[:0]]
        for j in range(int(groups.max()) + 1):
            members = available[groups[available] == j]
            picked.append(ctx.sample(members, ceil(fraction * len(members) - 1e-9), "cohort"))
        return np.sort(np.concatenate(picked))

    def _counted(self, state: FedExState, clients: Ids, ctx: Context) -> Round[FedExState]:
        """With the accuracy gate's weights: clients count predictions and hits of every expert as it now is, where the gate answers."""
        if self.combiner != "gate" or len(state.models) == 1:
            return state
        hits, predictions = [], []
        for j in range(len(state.models)):
            judged = yield from Evaluate(Serving(clients, state.models, np.full(len(clients), j)), self.gate_part)
            if not len(judged):
                return state
            sizes = judged.sizes.astype(np.float64)
            factors = ctx.bound_weights(judged.clients, sizes) / np.maximum(sizes, 1)  # ones, or less for a site with too many samples
            hits.append(factors @ judged.hits)
            predictions.append(factors @ judged.predicted)
        return replace(state, gate=AccuracyGate.from_counts(np.array(hits), np.array(predictions)).weights)

    def _make_combiners(self, state: FedExState) -> dict[str, Combiner]:
        """By name. Before any client was asked the gate knows nothing and is the mean."""
        online = Online(per_class=self.per_class, frozen=self.frozen)
        found: dict[str, Combiner] = {"online": online, "mean": Mean(), "confident": MostConfident()}
        if self.combiner == "gate":
            found["gate"] = Mean() if state.gate is None else AccuracyGate(state.gate)
        return found

    def serve(self, state: FedExState, clients: Ids, ctx: Context) -> Round[Serving]:
        if self.combiner == "own" or len(state.models) == 1:
            return (yield from super().serve(state, clients, ctx))
        rows = np.full(len(clients), COMBINED, dtype=np.int64)
        return Serving(clients, state.models, rows, self._make_combiners(state)[self.combiner])

    def central(self, state: FedExState) -> NamedModels:
        """Every expert, and the ways to combine them, in one table; "online" is the paper's."""
        named = name_models(state.models)
        if len(state.models) == 1:
            return named
        combiners, experts = self._make_combiners(state), len(state.models)
        rows = np.concatenate([np.arange(experts), np.full(len(combiners), COMBINED)])
        serving = Serving(np.arange(len(rows)), state.models, rows, ByRow((*(None,) * experts, *combiners.values())))
        return NamedModels((*named.names, *combiners), serving)
