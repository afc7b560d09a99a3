"""Clustered federated learning: split a group when its clients pull its settled model apart.

Sattler, Mueller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under Privacy Constraints"
(2019), Algorithms 1 and 2; called FedCluster in FeSEM's paper. The criteria are judged only when all members of a group have trained: the
mean update of a part of them is not short at a stationary point.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.core.arrays import Bools, Doubles, Ids
from coterie.core.asks import Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import ALL_CLIENTS_TRAIN, Context, MemoryNeeds, Round, done
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import grow_rows
from coterie.grouping.clustering import Bipartition, summarize_updates
from coterie.grouping.landmarks import MANY
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.controls import apply_control, find_largest_group
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups, find_lowest_loss, note_landmarks


@dataclass(frozen=True)
class CFLState(Groups):
    """One model a group; every client is in exactly one. Everything about a client stands at its number: no positions within groups."""

    settled: Bools  # (n,) False: it missed the split of its group (or came later) and takes the lowest loss when it next takes part
    scale: float  # the longest mean update of any group when all its members trained; 0 before


@dataclass(frozen=True, kw_only=True)
class CFL(GroupedMethod[CFLState]):
    """FedAvg in each group; a group whose mean update is short while a member's is long is cut in two.

    Example: ``ct.CFL(look=5)``, or the spec ``cfl(look=5)``.
    """

    eps1: float = setting(0.4, "The mean update is short below this.", minimum=0)
    eps2: float = setting(1.0, "Some update is long above this.", minimum=0)
    gamma: float = setting(0.6, "A cut counts when sqrt((1 - the largest cosine across it) / 2) is above this.", minimum=0, maximum=1)
    relative: bool = setting(True, "Both as shares of the longest mean update so far, as the paper advises; else as they are.")
    look: int = setting(3, "Every so many rounds all members train and the group is looked at.", minimum=1)
    linkage: Literal["single", "complete"] = setting("single", "How a group is cut; complete is the public code's choice.")
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        return ALL_CLIENTS_TRAIN

    def start(self, init: InitialModels, ctx: Context) -> Round[CFLState]:
        n = len(ctx.roster)
        return done(CFLState(init()[None, :], np.zeros(n, np.int64), np.ones(n, np.bool_), 0.0))

    def round(self, state: CFLState, ctx: Context) -> Round[CFLState]:
        before, cohort = state, ctx.cohort()
        looks = ctx.round_ % self.look == 0 or len(cohort) == len(ctx.roster.available)
        asked = ctx.roster.available if looks else cohort
        state = yield from self._settle(_add_newcomers(state, len(ctx.roster)), asked)
        trained = yield from Train(asked, state.models, ctx.local, start=state.groups[asked])
        if not len(trained):
            return before
        weights, old = compute_weights(trained, self.weighting), state.groups[trained.clients]
        for j in np.unique(old) if looks else ():
            state = self._check_group(state, int(j), trained.take(old == j), weights[old == j], ctx)
        count = int(state.groups.max()) + 1
        ctx.note("splits", count - len(before.models))
        models = average_within_groups(before, trained, state.groups[trained.clients], weights, count, ctx)
        return replace(state, models=models)

    def _check_group(self, state: CFLState, j: int, trained: Trained, weights: Doubles, ctx: Context) -> CFLState:
        """Group j after its updates have been looked at: as it was, or cut in two (its model comes later)."""
        sent, origin = ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models[j : j + 1])
        weights = ctx.bound_weights(trained.clients, weights)
        mean, longest, cut = summarize_updates(sent, origin, weights / weights.sum(), ctx.rng("landmarks"))
        state = replace(state, scale=max(state.scale, mean))
        unit = state.scale if self.relative else 1.0
        ctx.note(f"mean_update {j}", mean / unit if unit else 0.0)
        ctx.note(f"longest_update {j}", longest / unit if unit else 0.0)
        if not (mean < self.eps1 * unit and longest > self.eps2 * unit):  # Alg. 1: stationary, and not for all clients
            return state
        if len(trained) > MANY:
            note_landmarks(ctx)
        return self._split(state, j, trained.clients, cut(self.linkage), ctx)

    def _split(self, state: CFLState, j: int, clients: Ids, cut: Bipartition, ctx: Context) -> CFLState:
        """Two groups out of one: the cut with the smallest largest cosine across it (single linkage), Alg. 1, line 5."""
        parts, across = cut
        if not parts.any():
            return state
        ctx.note(f"cross_cosine {j}", across)
        if np.sqrt(max(1.0 - across, 0.0) / 2) <= self.gamma:  # the paper's gamma_max
            return state
        labels = apply_control(parts.astype(np.int64), clients, self.assign, ctx)
        leaves = labels != labels[0]  # the oracle may know more than two: they part one after the other
        if not leaves.any():
            return state
        groups, settled = state.groups.copy(), state.settled.copy()
        absent, new = np.setdiff1d(np.flatnonzero(groups == j), clients), int(groups.max()) + 1
        groups[clients[leaves]] = new
        groups[absent] = new if 2 * leaves.sum() > len(leaves) else j  # for now, with the larger part
        settled[clients], settled[absent] = True, False
        return replace(state, groups=groups, settled=settled)

    def _settle(self, state: CFLState, asked: Ids) -> Round[CFLState]:
        """Clients that missed a split take the group whose model fits them best."""
        lost = asked[~state.settled[asked]]
        rows = yield from find_lowest_loss(lost, state.models)
        groups, settled = state.groups.copy(), state.settled.copy()
        groups[lost[rows >= 0]], settled[lost[rows >= 0]] = rows[rows >= 0], True
        return replace(state, groups=groups, settled=settled) if len(lost) else state

    def serve(self, state: CFLState, clients: Ids, ctx: Context) -> Round[Serving]:
        """One that missed a split takes the lowest loss, as a newcomer does."""
        return (yield from super().serve(replace(state, groups=np.where(state.settled, state.groups, -1)), clients, ctx))


def _add_newcomers(state: CFLState, clients: int) -> CFLState:
    """The state with a row for every client of the roster: a newcomer is with the largest group for now."""
    if clients == len(state.groups):
        return state
    groups = grow_rows(state.groups, clients, find_largest_group(state.groups, len(state.models)))
    return replace(state, groups=groups, settled=grow_rows(state.settled, clients, False))
