"""Structured: FedAvg within the groups that the test of structure finds, tested again as the model improves and refined by losses.

The number of groups and their members come from gradients of two halves of each client's samples (`grouping.structure`). Where no distinct
groups are found, the most prominent ones are used unless `distinct` asks for more: whether they help is for validation to say. While a
group's members are known from gradients alone, the test is repeated at rounds 2, 4, 8, ...; once the models differ, clients of the cohort
take the model with the lowest loss, as in IFCA.
"""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.asks import Train
from coterie.core.layout import InitialModels
from coterie.core.method import Choice, Context, Round
from coterie.core.settings import setting
from coterie.grouping.structure import MAX_TESTED, find_groups
from coterie.grouping.structure_views import has_enough_clients
from coterie.methods.client_probes import ask_probes
from coterie.methods.controls import apply_control
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups, compute_mean_model, find_lowest_loss

REFERENCES = 49  # draws of one population: the answer here is a start, which losses refine and validation judges


@dataclass(frozen=True)
class StructuredState(Groups):
    """A model a group; whether the groups are distinct by the test, and the rounds for which their models have trained apart."""

    distinct: bool
    age: int


@dataclass(frozen=True, kw_only=True)
class Structured(GroupedMethod[StructuredState]):
    """FedAvg within groups by the test of structure, refined by losses.

    Example: ``ct.Structured(distinct=True)``, or the spec ``structured(distinct=true)``.
    """

    most: int = setting(6, "The most groups.", minimum=1)
    distinct: bool = setting(False, "Whether only groups that pass the test are used.")
    refine: bool = setting(True, "Whether clients move to the model with the lowest loss once models differ.")

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
        is_new = distinct and not state.distinct
        if not is_new and len(state.models) > 1:
            groups = yield from self._refine(state, cohort, ctx)
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
        return StructuredState(models, groups, state.distinct, state.age + 1)

    def _refine(self, state: StructuredState, cohort: Ids, ctx: Context) -> Round[Ids]:
        """(roster,) the groups, clients of the cohort where their loss is lowest; at first, while models are equal, by the test."""
        if state.age < 2 or not self.refine or self.assign != "similar":
            return (yield from self.joined(state, cohort, ctx))
        groups = state.all_groups(ctx)
        rows = yield from find_lowest_loss(cohort, state.models)
        before = groups[cohort]
        groups[cohort] = np.where(rows >= 0, rows, before)
        ctx.note("switched", int(np.sum((before != groups[cohort]) & (before >= 0))))
        return groups
