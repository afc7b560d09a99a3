"""FedEx's experts: how clients are clustered in one round, and how a client that comes later finds its expert.

Miles et al., "FedEx: An Exploration of Clustering Clients in Federated Learning": spectral clustering of clients' models after one round.
"""

from abc import ABC
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Train, Trained
from coterie.core.holdings import EVERYBODY_TRAINS, Holdings
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing, mix
from coterie.core.settings import setting
from coterie.grouping.clusterers import canonical, spectral
from coterie.grouping.controls import controlled, joining
from coterie.grouping.many.points import MANY, by_rows, laid_out, short_points
from coterie.grouping.many.spectra import spectral_of_many, without_lone_of_many
from coterie.grouping.principal import note_landmarks
from coterie.grouping.similarity import coordinates, cosines, gram
from coterie.methods.averaging import weights_of
from coterie.methods.grouped import GroupedMethod, Groups, within_groups
from coterie.methods.number import ChoosesGroups, GroupNumber


@dataclass(frozen=True)
class Experts(Groups):
    """The experts, who trains which, and what a latecomer is compared with. One model, w_0, until the clustering round."""

    origin: Floats  # (1, d) w_0
    centres: Floats | None  # (G, d) each cluster's mean model in the clustering round; None before
    fresh: Floats | None  # (G, d) models for start_from="fresh", until they are used
    gate: Doubles | None  # (G, C) the accuracy gate's weights; None before clients were asked


@dataclass(frozen=True, kw_only=True)
class ExpertClusters(GroupedMethod[Experts], ChoosesGroups, ABC):
    """Clusters by the cosines of what clients send back after one round in which everybody trains."""

    groups: GroupNumber = setting(3, "Experts.", least=1)
    warmup: int = setting(5, "Epochs of the clustering round.", least=1)
    on: Literal["updates", "weights"] = setting("updates", "What is compared; weights are the paper's letter.")
    start_from: Literal["w0", "fresh", "first_round"] = setting("w0", "Where experts begin.")

    @property
    def holdings(self) -> Holdings:
        return EVERYBODY_TRAINS

    def clustered(self, state: Experts, ctx: Context) -> Round[tuple[Experts, Ids]]:
        """The state after the clustering round, and who took part: everybody trains from w_0, and what comes back is grouped."""
        count = yield from self.asked_number(self.groups, state.origin, lambda i=0: state.origin[0], ctx)
        trained = yield from self._warm_up(ctx.roster.available, state, ctx)
        if not len(trained):
            return state, trained.clients  # nobody answered: the next round tries again
        labels = self._labels(count, state, trained, ctx)
        groups, count = state.everybody(ctx), int(labels.max()) + 1
        groups[trained.clients] = labels
        ctx.note("experts", count)
        means = ctx.bound_mixing(Mixing.within(trained.clients, labels, np.ones(len(trained)), 1, count))
        centres = mix(means, trained.vectors, state.models)
        if state.fresh is not None:
            models = state.fresh[np.arange(count) % len(state.fresh)]  # made of no reply and no old model: there is no matrix
        elif self.start_from == "w0":
            models = ctx.mix(Mixing(trained.clients, np.zeros((count, len(trained))), np.ones((count, 1))), trained, state.models)
        else:
            models = within_groups(state, trained, labels, weights_of(trained, "samples"), count, ctx)
        return Experts(models, groups, state.origin, centres, None, None), trained.clients

    def _labels(self, count: int | None, state: Experts, trained: Trained, ctx: Context) -> Ids:
        """(n,) the expert of each client that trained: no expert is empty, and none has a single client where there are others."""
        if len(trained) > MANY:
            return self._labels_of_many(count, state, trained, ctx)
        alike = self._cosines(trained.vectors, state, ctx)
        count = self.read_number(None, coordinates(alike), ctx) if count is None else count
        affinity = (1.0 + alike) / 2.0
        labels = spectral(affinity, count, ctx.rng("clusters"))
        ctx.note("groups_missing", count - len(np.unique(labels)))  # fewer distinct clients than groups, or empty experts
        ctx.note("lone_clients", int(np.sum(np.bincount(labels) == 1)))
        return canonical(controlled(without_lone(labels, affinity), trained.clients, self.assign, ctx))

    def _labels_of_many(self, count: int | None, state: Experts, trained: Trained, ctx: Context) -> Ids:
        """The same from directions in few dimensions, without a matrix of pairs."""
        note_landmarks(ctx)
        sent, origin = ctx.layout.comparable(trained.vectors), self._origin(state, ctx)
        directions = short_points(sent, origin, ctx.rng("landmarks"), centred=False, unit=True)
        count = self.read_number(count, directions, ctx)
        labels = spectral_of_many(directions, count, ctx.rng("clusters"))
        ctx.note("groups_missing", count - len(np.unique(labels)))
        ctx.note("lone_clients", int(np.sum(np.bincount(labels) == 1)))
        return canonical(controlled(without_lone_of_many(labels, directions), trained.clients, self.assign, ctx))

    def admitted(self, state: Experts, ctx: Context) -> Round[Ids]:
        """(n,) the groups, with those who missed the clustering or came later: they warm up and join the nearest cluster by cosine."""
        groups = state.everybody(ctx)
        new = ctx.roster.available[groups[ctx.roster.available] < 0]
        if not len(new):
            return groups
        trained = yield from self._warm_up(new, state, ctx)
        ctx.note("admitted", len(trained))
        if len(trained):
            assert state.centres is not None
            rows = self._nearest_centre(trained.vectors, state.centres, state, ctx)
            groups[trained.clients] = joining(rows, trained.clients, groups, len(state.models), self.assign, ctx)
        return groups

    def _warm_up(self, clients: Ids, state: Experts, ctx: Context) -> Round[Trained]:
        """Training from w_0; with the plan's own number of epochs it is a round of FedAvg like any other."""
        usual = self.warmup == ctx.local.epochs and state.centres is None
        local = ctx.local.but(epochs=self.warmup)
        return (yield from Train(clients, state.origin, local, purpose="train" if usual else "pretrain"))

    def _cosines(self, vectors: Floats, state: Experts, ctx: Context) -> Doubles:
        """(n, n) of updates from w_0, or of weights."""
        return cosines(gram(ctx.layout.comparable(vectors), self._origin(state, ctx)))

    def _nearest_centre(self, vectors: Floats, centres: Floats, state: Experts, ctx: Context) -> Ids:
        """(n,) the centre with the largest cosine."""
        if len(vectors) > MANY:
            layout, origin = ctx.layout, self._origin(state, ctx)
            targets = laid_out(layout.comparable(centres), origin, unit=True)
            found = by_rows(lambda block: (laid_out(block, origin) @ targets.T).argmax(axis=1), layout.comparable(vectors))
            return found.astype(np.int64)
        alike = self._cosines(np.concatenate([vectors, centres]), state, ctx)
        return np.asarray(alike[: len(vectors), len(vectors) :].argmax(axis=1))

    def _origin(self, state: Experts, ctx: Context) -> Floats | None:
        """What updates are measured from; nothing where weights are compared."""
        return ctx.layout.comparable(state.origin) if self.on == "updates" else None


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
