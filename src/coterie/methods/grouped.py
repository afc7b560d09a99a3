"""Base classes of methods with a model for each group: members, newcomers, and the model that a client is served.

`OneShotClustering` is the base of methods that cluster all clients in one round and keep these groups.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Losses, Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import ALL_CLIENTS_TRAIN, Context, MemoryNeeds, Method, Round, done
from coterie.core.mixing import Mixing
from coterie.core.serving import NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.states import Models, grow_rows
from coterie.grouping.kmeans import renumber_labels
from coterie.grouping.landmarks import LANDMARKS, MANY, compute_short_points
from coterie.grouping.similarity import compute_principal_points
from coterie.methods.controls import Assign, apply_control, assign_newcomers, find_largest_group


@dataclass(frozen=True)
class Groups(Models):
    """One model a group, and the group of each client."""

    groups: Ids  # (clients,) -1 for a client in no group

    def all_groups(self, ctx: Context) -> Ids:
        """A copy of the groups with a row for every client of the roster: newcomers are in none."""
        return np.array(grow_rows(self.groups, len(ctx.roster), -1))


G = TypeVar("G", bound=Groups)


@dataclass(frozen=True, kw_only=True)
class GroupedMethod(Method[G], ABC):
    """Base of methods with a model for each group: a subclass has ``start(self, init, ctx)`` and ``round(self, state, ctx)``.

    A client in no group joins one when it takes part or asks to be served; how is `place`.
    """

    assign: Assign = setting("similar", "What decides on groups: similarity, or a control.")

    def place(self, state: G, new: Ids, ctx: Context) -> Round[Ids]:
        """(n,) the group that each of these newcomers belongs to by similarity, -1 for one that does not answer: the lowest loss."""
        return (yield from find_lowest_loss(new, state.models))

    def joined(self, state: G, clients: Ids, ctx: Context) -> Round[Ids]:
        """(roster,) the group of every client, with the newcomers among these clients."""
        groups = state.all_groups(ctx)
        new = np.sort(clients[groups[clients] < 0])
        found = np.empty(len(new), np.int64)
        count = self.memory_needs.count_newcomers_at_once(ctx.layout.size, ctx.plan.cohort or len(ctx.roster))
        for begin in range(0, len(new), count):
            found[begin : begin + count] = yield from self.place(state, new[begin : begin + count], ctx)
        if len(new):  # assigned as a whole: controls depend on the other newcomers
            groups[new] = assign_newcomers(found, new, groups, len(state.models), self.assign, ctx)
        return groups

    def train_cohort(self, state: G, ctx: Context, *, grouped: bool) -> Round[tuple[Trained, Ids, Ids]]:
        """What the cohort trained, the model of each reply, and (roster,) the groups; while there are none, all train the first model."""
        cohort, groups = ctx.cohort(), state.all_groups(ctx)
        rows = np.zeros(len(ctx.roster), dtype=np.int64)
        if grouped:
            groups = rows = yield from self.joined(state, cohort, ctx)
            cohort = cohort[groups[cohort] >= 0]
        trained = yield from Train(cohort, state.models, ctx.local, start=rows[cohort])
        return trained, rows[trained.clients], groups

    def serve(self, state: G, clients: Ids, ctx: Context) -> Round[Serving]:
        """Each client its group's model, a newcomer that of the group it would join; one that does not answer the largest group's."""
        groups = yield from self.joined(state, clients, ctx)
        rows = groups[clients]
        return Serving(clients, state.models, np.where(rows >= 0, rows, find_largest_group(state.groups, len(state.models))))

    def central(self, state: G) -> NamedModels:
        return name_models(state.models)

    def members(self, state: G) -> Ids:
        return state.groups


def find_lowest_loss(clients: Ids, models: Floats) -> Round[Ids]:
    """(n,) the model with the lowest loss on each client's training part; -1 for a client that does not answer."""
    if len(models) == 1:
        return np.zeros(len(clients), dtype=np.int64)  # nothing to choose: no client need be asked
    rows = np.full(len(clients), -1, dtype=np.int64)
    if len(clients):
        table = yield from Losses(clients, models)
        place = dict(zip(table.clients.tolist(), table.losses.argmin(axis=1).tolist(), strict=True))
        rows[:] = [place.get(client, -1) for client in clients.tolist()]
    return rows


def match_models(losses: Doubles, labels: Ids) -> Ids:
    """(n,) the model of each client's cluster, from losses (n, models) and at most as many clusters: each cluster gets another model, and
    all together those with the lowest loss (the Hungarian method)."""
    cost = np.array([losses[labels == j].sum(axis=0) for j in range(int(labels.max()) + 1)])  # (clusters, models)
    _, model = linear_sum_assignment(cost)
    return np.asarray(model[labels], dtype=np.int64)


def average_within_groups(state: Groups, trained: Trained, groups: Ids, weights: Doubles, models: int, ctx: Context) -> Floats:
    """(models, d) each group's average of its members' replies; a group without replies keeps its model. `groups` are the
    replies'."""
    return ctx.mix(Mixing.within(trained.clients, groups, weights, len(state.models), models), trained, state.models)


def compute_mean_model(models: Floats) -> Floats:
    """(1, d) the plain mean of the groups' models, in float64; a single model keeps its bits."""
    mean: Doubles = models.mean(axis=0, dtype=np.float64)
    return mean.astype(np.float32)[None, :]


def name_models(models: Floats, *, mean: bool = False) -> NamedModels:
    """Each group's model for the central test set, and before them, where the method has one, the mean of all."""
    if len(models) == 1:
        return NamedModels(("global",), Serving.one(np.zeros(1, dtype=np.int64), models))
    names = tuple(f"group {j}" for j in range(len(models)))
    if mean:
        names, models = ("global", *names), np.concatenate([compute_mean_model(models), models])
    rows = np.arange(len(models), dtype=np.int64)
    return NamedModels(names, Serving(rows, models, rows))


@dataclass(frozen=True)
class OneShotState(Groups):
    """One model until the clustering, then one a group."""

    clustered: bool


@dataclass(frozen=True, kw_only=True)
class OneShotClustering(GroupedMethod[OneShotState], ABC):
    """A shared model for some rounds, one round of clustering, then a model a group."""

    @property
    def memory_needs(self) -> MemoryNeeds:
        return ALL_CLIENTS_TRAIN

    @abstractmethod
    def due(self, ctx: Context) -> bool:
        """Whether groups, where there are none yet, are made in this round."""

    @abstractmethod
    def labels(self, state: OneShotState, trained: Trained, ctx: Context) -> Round[Ids]:
        """(n,) the similar group of each client that has trained; may ask."""

    @abstractmethod
    def aggregate(self, state: OneShotState, trained: Trained, groups: Ids, models: int, ctx: Context) -> Floats:
        """(models, d) each group's new model from its members' replies; a group without any keeps the one it has."""

    def start(self, init: InitialModels, ctx: Context) -> Round[OneShotState]:
        return done(OneShotState(init()[None, :], np.full(len(ctx.roster), -1, dtype=np.int64), False))

    def round(self, state: OneShotState, ctx: Context) -> Round[OneShotState]:
        if not state.clustered and self.due(ctx):
            return (yield from self._cluster(state, ctx))
        trained, rows, groups = yield from self.train_cohort(state, ctx, grouped=state.clustered)
        if not len(trained):
            return state
        return OneShotState(self.aggregate(state, trained, rows, len(state.models), ctx), groups, state.clustered)

    def _cluster(self, state: OneShotState, ctx: Context) -> Round[OneShotState]:
        """All clients train once from the shared model; each group's first model is made from its members' replies."""
        trained = yield from Train(ctx.roster.available, state.models, ctx.local)
        if not len(trained):
            return state  # no replies: the next round tries again
        found = yield from self.labels(state, trained, ctx)
        labels = renumber_labels(apply_control(found, trained.clients, self.assign, ctx))
        groups = state.all_groups(ctx)
        groups[trained.clients] = labels
        count = int(labels.max()) + 1
        ctx.note("groups_found", count)
        return OneShotState(self.aggregate(state, trained, labels, count, ctx), groups, True)

    def central(self, state: OneShotState) -> NamedModels:
        return name_models(state.models, mean=True)


def compute_client_points(vectors: Floats, origin: Floats | None, ctx: Context, variance: float | None = None) -> Doubles:
    """(n, r) principal coordinates of what clients sent; of more than `MANY`, in the directions of landmarks, which is noted."""
    if len(vectors) <= MANY:
        return compute_principal_points(vectors, origin, variance)
    note_landmarks(ctx)
    return compute_short_points(vectors, origin, ctx.rng("landmarks"), variance=variance)


def note_landmarks(ctx: Context) -> None:
    """Record that a sample stood for all clients in this round's grouping."""
    ctx.note("landmarks", LANDMARKS)
