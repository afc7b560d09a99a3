"""CFL-GP: clients are clustered by the gradients that they have at a set of models, accumulated over rounds.

Kim, Kim and de Veciana, "Clustered Federated Learning via Gradient-based Partitioning" (2024), Algorithm 1. A client's feature has a block
for each of the K models: a moving average of its gradients there. Features are clustered in the directions of the largest singular values.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Gradient, Gradients, Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Round, done
from coterie.core.settings import setting
from coterie.core.states import ClientTable
from coterie.grouping.kmeans import kmeans
from coterie.grouping.landmarks import MANY, compute_short_points
from coterie.grouping.similarity import compute_coordinates, compute_gram
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.controls import apply_control, get_true_groups
from coterie.methods.group_number import GroupNumber, GroupNumberMixin, SketchingMixin
from coterie.methods.grouped import GroupedMethod, Groups, average_within_groups, note_landmarks

FEWEST_DIRECTIONS = 3  # the authors' code: in which a number of groups is read from features


@dataclass(frozen=True)
class GradientGroups(Groups):
    """One model a group, and the clients' features."""

    features: tuple[ClientTable, ...]  # (n, r) a block for each model that gradients were taken at


@dataclass(frozen=True, kw_only=True)
class CFLGP(GroupedMethod[GradientGroups], GroupNumberMixin, SketchingMixin[GradientGroups]):
    """Clients are clustered by gradients at the groups' models in turn, every few rounds; groups are averaged.

    Example: ``ct.CFLGP(groups=4)``, or the spec ``cflgp(groups=4)``.
    """

    groups: GroupNumber = setting(3, "Models.", minimum=1)
    period: int = setting(2, "Clients are clustered every so many rounds.", minimum=1)
    until: int = setting(10, "The last round in which they may be.", minimum=1)
    at: Literal["turns", "own"] = setting("turns", "Where gradients are taken: at all models in turn, or at the client's own.")
    weighting: Weighting = setting("uniform", "How much a client counts: by its samples, or as much as any other.")

    @property
    def memory_needs(self) -> MemoryNeeds:
        blocks = 1 if self.at == "own" else self.most if self.groups == "auto" else self.groups
        gathered = self.count_trial_clients(self.groups)
        return MemoryNeeds(kept=float(blocks) if self.sketch is None and self.groups != 1 else 0.0, gathered=gathered)

    def start(self, init: InitialModels, ctx: Context) -> Round[GradientGroups]:
        if self.assign == "oracle":
            known: int | None = int(get_true_groups(ctx).max()) + 1
        else:
            known = yield from self.ask_number(self.groups, init()[None, :], init, ctx, sketch=self.sketching(ctx))
        models = np.stack([init(i) for i in range(min(self.most if known is None else known, len(ctx.roster)))])
        return GradientGroups(models, np.full(len(ctx.roster), -1, dtype=np.int64), ())

    def round(self, state: GradientGroups, ctx: Context) -> Round[GradientGroups]:
        before, cohort = state, ctx.cohort()
        if (ctx.round_ - 1) % self.period == 0 and ctx.round_ <= self.until and len(state.models) > 1:
            state = yield from self._partition(state, ctx)
        groups = yield from self.joined(state, cohort, ctx)
        cohort = cohort[groups[cohort] >= 0]
        trained = yield from Train(cohort, state.models, ctx.local, start=groups[cohort])
        if not len(trained):
            return before
        took, weights = groups[trained.clients], compute_weights(trained, self.weighting)
        models = average_within_groups(before, trained, took, weights, len(state.models), ctx)
        return replace(state, models=models, groups=groups)

    def _partition(self, state: GradientGroups, ctx: Context) -> Round[GradientGroups]:
        """All clients' gradients at one model, added to their features; then new groups, and the number of them where it is unknown."""
        clients, is_first = ctx.roster.available, not state.features
        turn = (ctx.round_ - 1) // self.period % len(state.models) if self.at == "turns" else 0
        rows = np.full(len(clients), turn) if self.at == "turns" else np.maximum(state.all_groups(ctx)[clients], 0)
        probes = yield from Gradient(clients, state.models, start=rows, sketch=self.sketching(ctx))
        if not len(probes):
            return state
        state = replace(state, features=self.accumulate(state.features, turn, probes, len(state.models), ctx))
        known, points = self.compute_points(state.features, ctx)
        if is_first and self.groups == "auto" and self.choice not in ("structure", "trial") and self.assign != "oracle":
            state = replace(state, models=state.models[: self.read_number(None, cut_points(points), ctx)])
        labels = kmeans(points[:, : len(state.models)], len(state.models), ctx.rng("clusters"))
        groups = state.all_groups(ctx)
        before = groups[known]
        groups[known] = match_labels(apply_control(labels, known, self.assign, ctx), before, len(state.models))
        ctx.note("switched", int(np.sum((before != groups[known]) & (before >= 0))))
        return replace(state, groups=groups)

    def place(self, state: GradientGroups, new: Ids, ctx: Context) -> Round[Ids]:
        """A client without features takes the lowest loss; before there are any features, the first model."""
        return done(np.zeros(len(new), dtype=np.int64)) if not state.features else super().place(state, new, ctx)

    def accumulate(
        self, features: tuple[ClientTable, ...], turn: int, probes: Gradients, models: int, ctx: Context
    ) -> tuple[ClientTable, ...]:
        """The features with these gradients in the block of this turn: (1 - beta) of what was there, and beta of the new."""
        sent = probes.vectors if self.sketch is not None else ctx.layout.comparable(probes.vectors)
        blocks = [block.grow(len(ctx.roster)) for block in features]
        empty = ClientTable.empty(len(ctx.roster), np.zeros(sent.shape[1], dtype=np.float32))
        blocks += [empty] * (turn + 1 - len(blocks))
        beta = 1 / (ctx.round_ // (models * self.period) + 1)  # 1 in the first turns, then 1/2, 1/3...
        share = np.where(blocks[turn].has_row[probes.clients], beta, 1.0)[:, None].astype(np.float32)
        blocks[turn] = blocks[turn].put(probes.clients, (1 - share) * blocks[turn].of(probes.clients) + share * np.asarray(sent))
        return tuple(blocks)

    def compute_points(self, features: tuple[ClientTable, ...], ctx: Context) -> tuple[Ids, Doubles]:
        """The clients that have sent gradients, and (n, r) their features in the directions of falling singular values.

        A block that a client has not sent is the mean of the others', which moves it towards no group.
        """
        known = np.flatnonzero(np.any([block.has_row for block in features], axis=0))
        columns: list[Floats] = []
        for block in features:
            rows = np.array(block.of(known))
            missing = ~block.has_row[known]
            rows[missing] = rows[~missing].mean(axis=0, dtype=np.float64) if not missing.all() else 0.0
            columns.append(rows)
        vectors = np.concatenate(columns, axis=1)
        if len(known) > MANY:
            note_landmarks(ctx)
            return known, compute_short_points(vectors, None, ctx.rng("landmarks"), centred=False)
        return known, compute_coordinates(compute_gram(vectors), centred=False)


def cut_points(points: Doubles) -> Doubles:
    """The authors' choice of directions to read a number of groups in: up to the largest gap of singular values, three at least."""
    singular = np.linalg.norm(points, axis=0)
    count = 1 + int(np.argmax(singular[:-1] - singular[1:])) if len(singular) > 1 else 1
    return points[:, : max(count, FEWEST_DIRECTIONS)]


def match_labels(labels: Ids, before: Ids, count: int) -> Ids:
    """The labels renamed so that most clients stay in the group that they had (-1: none)."""
    agree = np.zeros((max(count, int(labels.max(initial=-1)) + 1),) * 2)
    had = (before >= 0) & (labels >= 0)
    np.add.at(agree, (labels[had], before[had]), 1)
    _, renamed = linear_sum_assignment(-agree)
    return np.where(labels >= 0, np.asarray(renamed, dtype=np.int64)[labels], -1)
