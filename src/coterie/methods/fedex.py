"""FedEx: experts for clusters of clients, and an online layer that combines their answers.

Miles et al., "FedEx: An Exploration of Clustering Clients in Federated Learning" (001): spectral clustering of the clients' models after
one round, FedAvg in each cluster, Algorithm 2 at inference.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Evaluate, Train, Trained
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round, done
from coterie.core.mixing import Mixing, mix
from coterie.core.serving import COMBINED, Combiner, Panel, Serving
from coterie.core.states import Models
from coterie.grouping.clusterers import How, canonical, choose, spectral
from coterie.grouping.controls import Assign, controlled
from coterie.grouping.similarity import coordinates, cosines, gram
from coterie.methods.combiners import AccuracyGate, ByRow, Mean, MostConfident, Online
from coterie.methods.joining import drawn, grown, panel_of, served, under_control


@dataclass(frozen=True)
class Experts(Models):
    """The experts, who trains which, and what a latecomer is compared with. One model, w_0, until the clustering round."""

    groups: Ids  # (n,) the expert of each client; -1 before it has one
    origin: Floats  # (1, d) w_0
    centres: Floats | None  # (G, d) each cluster's mean model in the clustering round; None before
    fresh: Floats | None  # (G, d) models for start="fresh", until they are used
    gate: Doubles | None  # (G, C) the accuracy gate's weights; None before clients were asked


@dataclass(frozen=True, kw_only=True)
class FedEx(Method[Experts]):
    """Cluster all clients in the first round, train an expert in each cluster, combine the experts' answers."""

    groups: int | Literal["auto"] = 3
    warmup: int = 5  # epochs of the clustering round
    on: Literal["updates", "weights"] = "updates"  # what is compared; "weights" is the paper's letter
    start_from: Literal["w0", "fresh", "first_round"] = "w0"
    fraction: float | None = None  # of each cluster, a round; by default the share of all clients that FedAvg would train
    combiner: Literal["online", "mean", "confident", "gate", "own"] = "online"  # for clients' own test parts
    per_class: bool = False  # the online layer counts time for each class
    frozen: bool = False  # the online layer stays at the weights it begins with
    gate_part: Literal["train", "validation", "none"] = "train"  # where clients count hits for the accuracy gate
    assign: Assign = "similar"
    choice: How = "silhouette"  # how groups="auto" chooses
    most: int = 10  # and up to how many

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups != "auto" and self.groups < 1:
            raise UserError(f"FedEx cannot make groups={self.groups!r}: give 1 or more.")
        if self.warmup < 1:
            raise UserError(f"FedEx cannot use warmup={self.warmup!r}: give 1 or more epochs.")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise UserError(f"FedEx cannot use fraction={self.fraction!r}: give a share above 0 and at most 1.")

    def start(self, init: InitialModels, ctx: Context) -> Round[Experts]:
        w0 = init()[None, :]
        count = self.most if self.groups == "auto" else self.groups
        fresh = np.stack([init(1 + i) for i in range(min(count, len(ctx.roster)))]) if self.start_from == "fresh" else None
        return done(Experts(w0, np.full(len(ctx.roster), -1, dtype=np.int64), w0, None, fresh, None))

    def round(self, state: Experts, ctx: Context) -> Round[Experts]:
        if state.centres is None:
            return (yield from self._cluster(state, ctx))  # it counts as a round
        groups = yield from self._admit(state, ctx)
        cohort = self._cohort(groups, ctx)
        trained = yield from Train(cohort, state.models, ctx.local, start=groups[cohort])
        if not len(trained):
            return state if np.array_equal(groups, state.groups) else replace(state, groups=groups)
        mixing = Mixing.within(trained.clients, groups[trained.clients], trained.sizes, len(state.models))  # FedAvg in each cluster
        state = replace(state, models=ctx.mix(mixing, trained, state.models), groups=groups)
        return (yield from self._count(state, trained.clients, ctx))

    def _cluster(self, state: Experts, ctx: Context) -> Round[Experts]:
        """The clustering round: everybody trains from w_0, and the models they send back are grouped by their cosines."""
        trained = yield from self._warm_up(ctx.roster.available, state, ctx)
        if not len(trained):
            return state  # nobody answered: the next round tries again
        labels = self._labels(state, trained, ctx)
        groups = grown(state.groups, len(ctx.roster)).copy()
        groups[trained.clients] = labels
        count = int(labels.max()) + 1
        ctx.record("experts", float(count))
        centres = mix(Mixing.within(trained.clients, labels, np.ones(len(trained)), 1, count), trained.vectors, state.models)
        if state.fresh is not None:
            models = state.fresh[np.arange(count) % len(state.fresh)]  # made of no reply and no old model: there is no matrix
        elif self.start_from == "w0":
            models = ctx.mix(Mixing(trained.clients, np.zeros((count, len(trained))), np.ones((count, 1))), trained, state.models)
        else:
            models = ctx.mix(Mixing.within(trained.clients, labels, trained.sizes, 1, count), trained, state.models)
        state = Experts(models, groups, state.origin, centres, None, None)
        return (yield from self._count(state, trained.clients, ctx))

    def _labels(self, state: Experts, trained: Trained, ctx: Context) -> Ids:
        """(n,) the expert of each client that trained: no expert is empty, and none has a single client where there are others."""
        origin = ctx.layout.comparable(state.origin) if self.on == "updates" else None
        alike = cosines(gram(ctx.layout.comparable(trained.vectors), origin))
        if self.groups == "auto":
            choice = choose(coordinates(alike), ctx.rng("count"), self.most, self.choice)
            count = choice.k
            ctx.record("choice", np.array(choice.curve))
        else:
            count = self.groups
        affinity = (1.0 + alike) / 2.0
        labels = spectral(affinity, count, ctx.rng("clusters"))
        ctx.record("groups_missing", float(count - len(np.unique(labels))))  # fewer distinct clients than groups, or empty experts
        ctx.record("lone_clients", float(np.sum(np.bincount(labels) == 1)))
        return canonical(controlled(without_lone(labels, affinity), trained.clients, self.assign, ctx))

    def _warm_up(self, clients: Ids, state: Experts, ctx: Context) -> Round[Trained]:
        """Training from w_0; with the plan's own number of epochs it is a round of FedAvg like any other."""
        usual = self.warmup == ctx.local.epochs and state.centres is None
        local = ctx.local.but(epochs=self.warmup)
        return (yield from Train(clients, state.origin, local, purpose="train" if usual else "pretrain"))

    def _admit(self, state: Experts, ctx: Context) -> Round[Ids]:
        """(n,) the groups, with those who missed the clustering or came later: they warm up and join the nearest cluster by cosine."""
        groups = grown(state.groups, len(ctx.roster))
        new = ctx.roster.available[groups[ctx.roster.available] < 0]
        if not len(new):
            return groups
        trained = yield from self._warm_up(new, state, ctx)
        ctx.record("admitted", float(len(trained)))
        if not len(trained):
            return groups
        assert state.centres is not None
        origin = ctx.layout.comparable(state.origin) if self.on == "updates" else None
        everybody = ctx.layout.comparable(np.concatenate([trained.vectors, state.centres]))
        rows = cosines(gram(everybody, origin))[: len(trained), len(trained) :].argmax(axis=1)
        groups = groups.copy()
        groups[trained.clients] = under_control(rows, trained.clients, groups, len(state.models), self.assign, ctx)
        return groups

    def _cohort(self, groups: Ids, ctx: Context) -> Ids:
        """ceil(fraction * |cluster|) clients of each cluster; one cluster draws the very cohort that FedAvg draws."""
        available = ctx.roster.available
        fraction = len(ctx.cohort()) / max(len(available), 1) if self.fraction is None else self.fraction
        picked = [available[:0]]
        for j in range(int(groups.max()) + 1):
            members = available[groups[available] == j]
            picked.append(drawn(members, ceil(fraction * len(members) - 1e-9), "cohort", ctx))
        return np.sort(np.concatenate(picked))

    def _count(self, state: Experts, clients: Ids, ctx: Context) -> Round[Experts]:
        """For the accuracy gate: the round's clients count the predictions and hits of every expert as it now is."""
        if self.gate_part == "none" or len(state.models) == 1:
            return state
        hits, predictions = [], []
        for j in range(len(state.models)):
            judgement = yield from Evaluate(Serving(clients, state.models, np.full(len(clients), j)), self.gate_part)
            if not len(judgement):
                return state
            hits.append(judgement.hits.sum(axis=0))
            predictions.append(judgement.predicted.sum(axis=0))
        ctx.record("gate_part", self.gate_part)
        return replace(state, gate=AccuracyGate.of(np.array(hits), np.array(predictions)).weights)

    def _combiners(self, state: Experts) -> dict[str, Combiner]:
        """By name. Before anybody was asked the gate knows nothing and is the mean."""
        gate = Mean() if state.gate is None else AccuracyGate(state.gate)
        online = Online(per_class=self.per_class, frozen=self.frozen)
        return {"online": online, "mean": Mean(), "confident": MostConfident(), "gate": gate}

    def serve(self, state: Experts, clients: Ids, ctx: Context) -> Round[Serving]:
        if self.combiner == "own" or len(state.models) == 1:
            return (yield from served(state.groups, state.models, clients, self.assign, ctx))
        rows = np.full(len(clients), COMBINED, dtype=np.int64)
        return Serving(clients, state.models, rows, self._combiners(state)[self.combiner])

    def panel(self, state: Experts) -> Panel:
        """Every expert, and all the ways to combine them, in one table; "online" is the paper's."""
        panel = panel_of(state.models, mean=False)
        if len(state.models) == 1:
            return panel
        combiners, experts = self._combiners(state), len(state.models)
        rows = np.concatenate([np.arange(experts), np.full(len(combiners), COMBINED)])
        serving = Serving(np.arange(len(rows)), state.models, rows, ByRow((*(None,) * experts, *combiners.values())))
        return Panel((*panel.names, *combiners), serving)

    def members(self, state: Experts) -> Ids:
        return state.groups


def without_lone(labels: Ids, affinity: Doubles) -> Ids:
    """The labels after every cluster of one client has joined the cluster it is, on average, most alike; one after the other."""
    labels = canonical(labels)
    while len(labels) > 1 and labels.max() > 0:
        lone = np.flatnonzero(np.bincount(labels)[labels] == 1)
        if not len(lone):
            break
        one = lone[0]
        others = [j for j in range(int(labels.max()) + 1) if j != labels[one]]
        means = [float(affinity[one, labels == j].mean()) for j in others]
        labels[one] = others[int(np.argmax(means))]
        labels = canonical(labels)
    return labels
