"""Clustered federated learning: split a group when its clients pull its settled model apart.

Sattler, Mueller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under Privacy Constraints"
(2019), Algorithms 1 and 2; called FedCluster in FeSEM's paper.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.core.arrays import Bools, Doubles, Ids
from coterie.core.asks import Train, Trained
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round, done
from coterie.core.mixing import Mixing
from coterie.core.serving import Panel, Serving
from coterie.core.states import Models
from coterie.grouping.clusterers import bipartition
from coterie.grouping.controls import Assign, controlled
from coterie.grouping.similarity import cosines, gram
from coterie.methods.fedavg import Weighting
from coterie.methods.joining import grown, largest, lowest_loss, panel_of, served


@dataclass(frozen=True)
class Branches(Models):
    """One model a group. Everything about a client stands at its number: no positions within groups."""

    groups: Ids  # (n,) every client is in exactly one group, always
    settled: Bools  # (n,) False: it missed the split of its group (or came later) and takes the lowest loss when it next takes part
    scales: Doubles  # (k,) the norm of the group's mean update in its first round; nan before
    due: Bools  # (k,) the group looked settled on some of its members: all are asked in the next round


@dataclass(frozen=True, kw_only=True)
class CFL(Method[Branches]):
    """FedAvg in each group; a group whose mean update is short while a member's is long is cut in two."""

    eps1: float = 0.4  # the mean update is short: below this
    eps2: float = 0.6  # some update is long: above this
    relative: bool = True  # both as shares of the norm of the group's mean update in its first round; False: as they are, like the paper
    linkage: Literal["single", "complete"] = "single"
    weighting: Weighting = "samples"
    assign: Assign = "similar"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("eps1", "eps2"):
            if not (getattr(self, name) >= 0 and np.isfinite(getattr(self, name))):
                raise UserError(f"CFL cannot use {name}={getattr(self, name)!r}: give 0 or more.")

    def start(self, init: InitialModels, ctx: Context) -> Round[Branches]:
        n = len(ctx.roster)
        return done(Branches(init()[None, :], np.zeros(n, np.int64), np.ones(n, np.bool_), np.full(1, np.nan), np.zeros(1, np.bool_)))

    def round(self, state: Branches, ctx: Context) -> Round[Branches]:
        before = state
        state = yield from self._settle(_with_newcomers(state, len(ctx.roster)), ctx.cohort(), ctx)
        asked = ctx.roster.available[np.isin(ctx.roster.available, ctx.cohort()) | state.due[state.groups[ctx.roster.available]]]
        trained = yield from Train(asked, state.models, ctx.local, start=state.groups[asked])
        if not len(trained):
            return before
        weights = trained.sizes if self.weighting == "samples" else np.ones(len(trained))
        old = state.groups[trained.clients]
        for j in np.unique(old):
            state = self._look(state, int(j), asked, trained.take(old == j), weights[old == j], ctx)
        mixing = Mixing.within(trained.clients, state.groups[trained.clients], weights, len(before.models), len(state.scales))
        ctx.record("splits", float(len(state.scales) - len(before.models)))
        return state.with_models(ctx.mix(mixing, trained, before.models))

    def _look(self, state: Branches, j: int, asked: Ids, trained: Trained, weights: Doubles, ctx: Context) -> Branches:
        """Group j after its updates have been looked at: as it was, marked for a full round, or cut in two (its model comes later)."""
        vectors, origin = ctx.layout.comparable(trained.vectors), ctx.layout.comparable(state.models[j : j + 1])
        inner = gram(vectors, origin)  # of the updates
        share = weights / weights.sum()
        mean = float(np.sqrt(max(share @ inner @ share, 0.0)))
        longest = float(np.sqrt(inner.diagonal().max()))
        scales, due = state.scales.copy(), state.due.copy()
        scales[j] = mean if np.isnan(scales[j]) else scales[j]
        unit = scales[j] if self.relative else 1.0
        ctx.record(f"mean_update {j}", mean / unit if unit else 0.0)
        ctx.record(f"longest_update {j}", longest / unit if unit else 0.0)
        due[j] = mean < self.eps1 * unit and longest > self.eps2 * unit  # Alg. 1: stationary, and not for everybody
        state = replace(state, scales=scales, due=due)
        members = np.flatnonzero(state.groups == j)
        if not due[j] or not np.isin(members[ctx.roster.reachable[members]], asked).all():
            return state
        return self._split(state, j, trained.clients, cosines(inner), ctx)

    def _split(self, state: Branches, j: int, clients: Ids, alike: Doubles, ctx: Context) -> Branches:
        """Two groups out of one: the cut with the smallest largest cosine across it (single linkage), Alg. 1, line 5."""
        labels = controlled(bipartition(alike, self.linkage).astype(np.int64), clients, self.assign, ctx)
        leaves = labels != labels[0]  # the oracle may know more than two: they part one after the other
        due = state.due.copy()
        due[j] = False
        if not leaves.any():
            return replace(state, due=due)
        ctx.record(f"cross_cosine {j}", float(alike[np.ix_(leaves, ~leaves)].max()))
        new = len(state.scales)
        groups, settled, scales = state.groups.copy(), state.settled.copy(), state.scales.copy()
        absent = np.setdiff1d(np.flatnonzero(groups == j), clients)
        groups[clients[leaves]] = new
        groups[absent] = new if 2 * leaves.sum() > len(leaves) else j  # for the time being, with the larger part
        settled[clients], settled[absent] = True, False
        scales[j] = np.nan
        return replace(state, groups=groups, settled=settled, scales=np.append(scales, np.nan), due=np.append(due, False))

    def _settle(self, state: Branches, cohort: Ids, ctx: Context) -> Round[Branches]:
        """Clients of the cohort that missed a split take the group whose model fits them best."""
        lost = cohort[~state.settled[cohort]]
        if not len(lost):
            return state
        rows = yield from lowest_loss(lost, state.models)
        groups, settled = state.groups.copy(), state.settled.copy()
        groups[lost[rows >= 0]], settled[lost[rows >= 0]] = rows[rows >= 0], True
        return replace(state, groups=groups, settled=settled)

    def serve(self, state: Branches, clients: Ids, ctx: Context) -> Round[Serving]:
        return (yield from served(np.where(state.settled, state.groups, -1), state.models, clients, self.assign, ctx))

    def panel(self, state: Branches) -> Panel:
        return panel_of(state.models, mean=False)

    def members(self, state: Branches) -> Ids:
        return state.groups


def _with_newcomers(state: Branches, clients: int) -> Branches:
    """The state with a row for every client of the roster: who came since is for the time being with the largest group."""
    if clients == len(state.groups):
        return state
    groups = grown(state.groups, clients)
    settled = np.arange(clients) < len(state.groups)
    settled[: len(state.groups)] = state.settled
    return replace(state, groups=np.where(groups >= 0, groups, largest(groups, len(state.models))), settled=settled)
