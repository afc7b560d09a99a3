"""What methods that keep a model for each group have in common: who is in which group, who joins, who is served what."""

from abc import ABC
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Losses, Trained
from coterie.core.method import Context, Method, Round
from coterie.core.mixing import Mixing
from coterie.core.serving import NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.states import Models, grown
from coterie.grouping.controls import Assign, joining, largest


@dataclass(frozen=True)
class Groups(Models):
    """One model a group, and who is in it."""

    groups: Ids  # (clients,) -1 for a client in no group

    def everybody(self, ctx: Context) -> Ids:
        """A copy of the groups with a row for every client of the roster: those who came since are in none."""
        return np.array(grown(self.groups, len(ctx.roster), -1))


G = TypeVar("G", bound=Groups)


@dataclass(frozen=True, kw_only=True)
class GroupedMethod(Method[G], ABC):
    """A model for each group. A client in no group joins one when it takes part or asks to be served; how is `place`."""

    assign: Assign = setting("similar", "What decides on groups: similarity, or a control.")

    def place(self, state: G, new: Ids, ctx: Context) -> Round[Ids]:
        """(n,) the group that each of these newcomers belongs to by similarity, -1 for one that does not answer: the lowest loss."""
        return (yield from lowest_loss(new, state.models))

    def joined(self, state: G, clients: Ids, ctx: Context) -> Round[Ids]:
        """(roster,) everybody's group, with the newcomers among these clients."""
        groups = state.everybody(ctx)
        new = np.sort(clients[groups[clients] < 0])
        found, count = np.empty(len(new), np.int64), self.holdings.placed_at_once(ctx.layout.size, ctx.plan.cohort or len(ctx.roster))
        for begin in range(0, len(new), count):
            found[begin : begin + count] = yield from self.place(state, new[begin : begin + count], ctx)
        if len(new):  # dealt out as a whole: controls depend on who else comes
            groups[new] = joining(found, new, groups, len(state.models), self.assign, ctx)
        return groups

    def serve(self, state: G, clients: Ids, ctx: Context) -> Round[Serving]:
        """Each client its group's model, a newcomer that of the group it would join; one that does not answer the largest group's."""
        groups = yield from self.joined(state, clients, ctx)
        rows = groups[clients]
        return Serving(clients, state.models, np.where(rows >= 0, rows, largest(state.groups, len(state.models))))

    def central(self, state: G) -> NamedModels:
        return named_models(state.models)

    def members(self, state: G) -> Ids:
        return state.groups

    @property
    def weighs_alike(self) -> bool:
        return getattr(self, "weighting", None) == "uniform"


def lowest_loss(clients: Ids, models: Floats) -> Round[Ids]:
    """(n,) the model with the lowest loss on each client's training part; -1 for a client that does not answer."""
    if len(models) == 1:
        return np.zeros(len(clients), dtype=np.int64)  # nothing to choose: nobody need be asked
    rows = np.full(len(clients), -1, dtype=np.int64)
    if len(clients):
        table = yield from Losses(clients, models)
        place = dict(zip(table.clients.tolist(), table.losses.argmin(axis=1).tolist(), strict=True))
        rows[:] = [place.get(client, -1) for client in clients.tolist()]
    return rows


def within_groups(state: Groups, trained: Trained, groups: Ids, weights: Doubles, models: int, ctx: Context) -> Floats:
    """(models, d) each group's average of its members' replies; a group from which nobody answered keeps its model. `groups` are the
    replies'."""
    return ctx.mix(Mixing.within(trained.clients, groups, weights, len(state.models), models), trained, state.models)


def mean_model(models: Floats) -> Floats:
    """(1, d) the plain mean of the groups' models, in float64; a single model keeps its bits."""
    mean: Doubles = models.mean(axis=0, dtype=np.float64)
    return mean.astype(np.float32)[None, :]


def named_models(models: Floats, *, mean: bool = False) -> NamedModels:
    """Each group's model for the central test set, and before them, where the method has one, the mean of all."""
    if len(models) == 1:
        return NamedModels(("global",), Serving.one(np.zeros(1, dtype=np.int64), models))
    names = tuple(f"group {j}" for j in range(len(models)))
    if mean:
        names, models = ("global", *names), np.concatenate([mean_model(models), models])
    rows = np.arange(len(models), dtype=np.int64)
    return NamedModels(names, Serving(rows, models, rows))
