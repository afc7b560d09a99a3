"""Structured: FedAvg within the groups that the test of structure finds, tested again as the model improves and refined by losses.

The number of groups and their members come from gradients of two halves of each client's samples (`grouping.structure`). Where no distinct
groups are found, the most prominent ones are used unless `distinct` asks for more: whether they help is for validation to say. While a
group's members are known from gradients alone, the test is repeated at rounds 2, 4, 8, ....

Once the models differ, losses refine the groups, as in CLoVE: clients are clustered by their losses under all models, and each cluster gets
another model. A choice of the lowest loss by each client alone can end with all clients in one group. What a client loses under every model
says how hard its samples are, and not which group it belongs to, so the mean over models is subtracted. Refinement stops when no client
has moved for some rounds.
"""

from dataclasses import dataclass, replace

import numpy as np

from coterie._util.threads import use_one_thread
from coterie.core.arrays import Ids
from coterie.core.asks import Losses, Train
from coterie.core.layout import InitialModels
from coterie.core.method import Choice, Context, Round
from coterie.core.settings import setting
from coterie.grouping.kmeans import kmeans
from coterie.grouping.structure import MAX_TESTED, find_groups
from coterie.grouping.structure_views import has_enough_clients
from coterie.methods.client_probes import ask_probes
from coterie.methods.controls import apply_control
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups, compute_mean_model, match_models

PATIENCE = 3  # rounds without a move after which clients are no longer asked for losses
REFERENCES = 19  # draws of one population, the fewest at which p can be .05: a start, which losses refine and validation judges


@dataclass(frozen=True)
class StructuredState(Groups):
    """A model a group; whether the groups are distinct by the test, the rounds for which their models have trained apart, and those in a
    row in which losses moved no client."""

    distinct: bool
    age: int
    settled: int = 0


@dataclass(frozen=True, kw_only=True)
class Structured(GroupedMethod[StructuredState]):
    """FedAvg within groups by the test of structure, refined by losses.

    Example: ``ct.Structured(distinct=True)``, or the spec ``structured(distinct=true)``.
    """

    most: int = setting(6, "The most groups.", minimum=1)
    distinct: bool = setting(False, "Whether only groups that pass the test are used.")
    refine: bool = setting(True, "Whether losses refine the groups once models differ.")

    def start(self, init: InitialModels, ctx: Context) -> Round[StructuredState]:
        state = StructuredState(init()[None, :], np.zeros(len(ctx.roster), dtype=np.int64), False, 0)
        labels, distinct = yield from self._test(state, ctx)
        if labels.max(initial=0) < 1:
            return state
        models = np.repeat(state.models, int(labels.max()) + 1, axis=0)
        return StructuredState(models, labels, distinct, 0)

    def _test(self, state: StructuredState, ctx: Context) -> Round[tuple[Ids, bool]]:
        """(roster,) the groups of the clients asked (-1: not asked), and whether they are distinct; all 0 where there is one group."""
        clients = ctx.sample(ctx.roster.available, MAX_TESTED, "structure clients")
        model = compute_mean_model(state.models)
        probes = yield from ask_probes(model, clients, ctx.outputs, ctx, labels=ctx.task.counts_classes)
        if not has_enough_clients(probes):
            return np.zeros(len(ctx.roster), dtype=np.int64), False
        with use_one_thread():  # of matrices this small: more threads wait for each other
            found = find_groups(probes, ctx.rng("structure"), REFERENCES, most=self.most)
        ctx.notes.choice = Choice(found.k if found.distinct or not self.distinct else 1, "structure", p=found.p)
        if ctx.notes.choice.k == 1:
            return np.zeros(len(ctx.roster), dtype=np.int64), False
        labels = np.full(len(ctx.roster), -1, dtype=np.int64)
        labels[probes.clients] = apply_control(found.labels, probes.clients, self.assign, ctx)
        return labels, found.distinct

    def round(self, state: StructuredState, ctx: Context) -> Round[StructuredState]:
        groups, cohort = state.all_groups(ctx), ctx.cohort()
        if len(state.models) == 1:
            groups = np.maximum(groups, 0)  # newcomers, too: there is one group
        labels, distinct = groups, state.distinct
        if not state.distinct and ctx.round_ > 1 and ctx.round_ & (ctx.round_ - 1) == 0:
            labels, distinct = yield from self._test(state, ctx)
        is_new, settled = distinct and not state.distinct, state.settled
        if not is_new and len(state.models) > 1:
            groups, settled = yield from self._refine(state, cohort, ctx)
            cohort, labels = cohort[groups[cohort] >= 0], groups
        trained = yield from Train(cohort, state.models, ctx.local, start=np.maximum(groups[cohort], 0))
        if not len(trained):
            return state
        count = int(labels.max()) + 1
        if is_new and len(np.unique(labels[trained.clients][labels[trained.clients] >= 0])) == count:
            known = trained.take(labels[trained.clients] >= 0)
            models = average_within_groups(state, known, labels[known.clients], known.sizes.astype(np.float64), count, ctx)
            return StructuredState(models, labels, True, 1)
        models = average_within_groups(state, trained, groups[trained.clients], trained.sizes.astype(np.float64), len(state.models), ctx)
        ctx.note("group_sizes", np.bincount(groups[groups >= 0], minlength=len(models)))
        return StructuredState(models, groups, state.distinct, state.age + 1, settled)

    def _refine(self, state: StructuredState, cohort: Ids, ctx: Context) -> Round[tuple[Ids, int]]:
        """(roster,) the groups by losses, and the rounds in which they stayed; at first, while models are equal, those of the test. Not
        only the cohort is asked: a few clients need not have one of every group among them."""
        if state.age < 2 or state.settled >= PATIENCE or not self.refine or self.assign != "similar":
            return (yield from self.joined(state, cohort, ctx)), state.settled
        groups, moved = state.all_groups(ctx), 0
        table = yield from Losses(ctx.sample(ctx.roster.available, MAX_TESTED, "structure clients"), state.models)
        if len(table):
            before = groups[table.clients]
            clusters = kmeans(table.losses - table.losses.mean(axis=1, keepdims=True), len(state.models), ctx.rng("clusters"))
            groups[table.clients] = match_models(table.losses, clusters)
            moved = int(np.sum((before != groups[table.clients]) & (before >= 0)))
        ctx.note("switched", moved)
        groups = yield from self.joined(replace(state, groups=groups), cohort, ctx)  # those that were not asked, and are in no group yet
        return groups, 0 if moved else state.settled + 1
