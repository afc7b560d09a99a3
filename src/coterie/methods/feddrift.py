"""FedDrift: clients whose loss rises leave for a model of their own, and models that fit each other's clients are merged.

Jothimurugesan, Hsieh, Wang, Joshi and Gibbons, "Federated Learning under Distributed Concept Drift" (2023): FedDrift, with the loss of its
paper where the authors' code counts right answers. Steps are those of the method's page. A time step of the paper is `every` rounds here.
"""

from dataclasses import dataclass, replace

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats, Ids
from coterie.core.asks import Losses, LossTable
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round, done
from coterie.core.settings import setting
from coterie.core.states import grow_rows
from coterie.grouping.clustering import agglomerative_clustering
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.controls import apply_control
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups

FAR = 1e6  # the distance to a model without clients: there is nothing to compare it on


@dataclass(frozen=True)
class FedDriftState(Groups):
    """One model a concept, and the last loss of each client."""

    losses: Doubles  # (clients,) of its best model at the last step; inf: not known yet


@dataclass(frozen=True, kw_only=True)
class FedDrift(GroupedMethod[FedDriftState]):
    """Several models: a client whose best loss has risen trains a new one alone for a step, after which models that are alike are merged.

    Example: ``ct.FedDrift(delta=0.1)``, or the spec ``feddrift(delta=0.1)``.
    """

    delta: float = setting(0.1, "The rise of the loss that is a drift, and the distance below which models are merged.", above=0)
    every: int = setting(5, "Rounds of a time step, which begins with the test.", minimum=1)
    most: int = setting(20, "The most models.", minimum=1)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    def start(self, init: InitialModels, ctx: Context) -> Round[FedDriftState]:
        n = len(ctx.roster)
        return done(FedDriftState(init()[None, :], np.zeros(n, np.int64), np.full(n, np.inf)))  # step 1

    def round(self, state: FedDriftState, ctx: Context) -> Round[FedDriftState]:
        if ctx.round_ > 1 and (ctx.round_ - 1) % self.every == 0:
            state = yield from self._begin_step(state, ctx)
        trained, rows, groups = yield from self.train_cohort(state, ctx, grouped=True)  # step 5
        if not len(trained):
            return replace(state, groups=groups)
        models = average_within_groups(state, trained, rows, compute_weights(trained, self.weighting), len(state.models), ctx)
        return replace(state, models=models, groups=groups)

    def _begin_step(self, state: FedDriftState, ctx: Context) -> Round[FedDriftState]:
        """All clients report the loss of every model: some leave for new ones, and the models that were there may be merged."""
        table = yield from Losses(ctx.roster.available, state.models)
        if not len(table):
            return state
        groups, losses = state.all_groups(ctx), np.array(grow_rows(state.losses, len(ctx.roster), np.inf))
        best = table.losses.argmin(axis=1)  # step 2
        lowest = table.losses.min(axis=1)
        drifted = lowest > losses[table.clients] + self.delta  # step 3
        drifted &= np.cumsum(drifted) <= self.most - len(state.models)
        labels = best.copy()
        labels[drifted] = len(state.models) + np.arange(int(drifted.sum()))
        losses[table.clients] = lowest
        ctx.note("drifted", int(drifted.sum()))
        labels = apply_control(labels, table.clients, self.assign, ctx)
        added = np.zeros(max(int(labels.max()) + 1 - len(state.models), 0), np.int64)
        added[: int(drifted.sum())] = best[drifted][: len(added)]  # a new model begins as the best one
        groups[table.clients] = labels
        models = np.concatenate([state.models, state.models[added]])
        merged = self._find_merged(table, labels, len(state.models)) if self.assign == "similar" else np.arange(len(state.models))
        sizes: Doubles = np.bincount(labels, weights=table.sizes.astype(np.float64), minlength=len(models)).astype(np.float64)
        return _apply_merge(FedDriftState(models, groups, losses), np.r_[merged, np.arange(len(state.models), len(models))], sizes, ctx)

    def _find_merged(self, table: LossTable, labels: Ids, count: int) -> Ids:
        """(k,) for each model that was there, the first one that it is merged with (step 4)."""
        matrix = np.full((count, count), FAR)  # [i, j]: the loss of model i on the clients of model j
        for j in range(count):
            own = labels == j
            if table.sizes[own].sum():
                matrix[:, j] = np.average(table.losses[own], axis=0, weights=table.sizes[own])
        rises = matrix - np.diag(matrix)[:, None]  # how much worse model i is on the clients of j than on its own
        rises[np.diag(matrix) == FAR] = FAR
        distances = np.maximum(np.maximum(rises, rises.T), 0.0)
        np.fill_diagonal(distances, 0.0)
        if count == 1:
            return np.zeros(1, np.int64)
        found = agglomerative_clustering(distances, threshold=self.delta, linkage="complete")
        return np.array([int(np.flatnonzero(found == label)[0]) for label in found], dtype=np.int64)


def _apply_merge(state: FedDriftState, into: Ids, sizes: Doubles, ctx: Context) -> FedDriftState:
    """The state with models averaged by the samples of their clients, and numbered again."""
    kept = np.unique(into)
    ctx.note("merged", len(into) - len(kept))
    ctx.note("models", len(kept))
    models = np.stack([_average(state.models, into == row, sizes) for row in kept])
    groups = np.where(state.groups >= 0, np.searchsorted(kept, into[np.maximum(state.groups, 0)]), -1)
    return replace(state, models=models, groups=groups)


def _average(models: Floats, which: Bools, sizes: Doubles) -> Floats:
    """(d,) one model, or the mean of several."""
    rows = np.flatnonzero(which)
    if len(rows) == 1:
        return np.asarray(models[rows[0]])
    weights = sizes[rows] if sizes[rows].sum() else np.ones(len(rows))
    return np.average(models[rows].astype(np.float64), axis=0, weights=weights).astype(np.float32)
