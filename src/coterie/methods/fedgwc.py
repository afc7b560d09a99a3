"""FedGWC: clients are compared by how usual their losses are in the rounds that they share, and groups are split by that.

Licciardi, Leo, Fanì, Caputo and Ciccone, "Interaction-Aware Gaussian Weighting for Clustered Federated Learning" (2025). Steps are those of
the method's page.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from sklearn.metrics import davies_bouldin_score

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Ids, Ints
from coterie.core.asks import Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing
from coterie.core.settings import setting
from coterie.core.states import grow_rows
from coterie.grouping.clustering import spectral_clustering
from coterie.grouping.kmeans import renumber_labels
from coterie.methods.averaging import Weighting, compute_weights
from coterie.methods.controls import apply_control
from coterie.methods.group_number import choose_from_structure
from coterie.methods.grouped import GroupedMethod, Groups
from coterie.methods.reporting_rules import LossRule

MAX_CLIENTS = 5000  # of which a matrix is kept: 200 MB
TINY = 1e-16
ALIKE = 1e-9  # affinities that differ by less are equal but for rounding


@dataclass(frozen=True)
class InteractionGroups(Groups):
    """One model a group, and what is known of the clients' interactions."""

    interactions: Doubles  # (clients, clients) W; only entries within a group are used
    change: Doubles  # (groups,) the smoothed squared change of W
    calm: Ints  # (groups,) rounds in a row in which that was small
    final: Ints  # (groups,) 1 for a group that is not split again


@dataclass(frozen=True, kw_only=True)
class FedGWC(GroupedMethod[InteractionGroups]):
    """FedAvg in each group; a group is split when the rewards for usual losses have settled and speak for parts.

    Example: ``ct.FedGWC(eps=1e-4)``, or the spec ``fedgwc(eps=1e-4)``.
    """

    steps: int = setting(7, "Local steps whose losses clients report.", minimum=1, maximum=100)
    gamma: float = setting(0.1, "How fast the affinity of two clients falls with the distance of their interactions.", above=0)
    eps: float = setting(1e-5, "The interactions have settled when their smoothed squared change is below this.", above=0)
    most: int = setting(4, "The most parts of a split.", minimum=2)
    number: Literal["index", "structure"] = setting("index", "How many parts: by the Davies-Bouldin index, or by the structure test, once.")
    smallest: int | None = setting(None, "A part of at most so many clients is final. Default: a cohort.", minimum=1)
    weighting: Weighting = setting("samples", "How much a client counts: by its samples, or as much as any other.")

    def start(self, init: InitialModels, ctx: Context) -> Round[InteractionGroups]:
        n = len(ctx.roster)
        self._check_size(n)
        yield from ()
        none = np.zeros(1, np.int64)
        return InteractionGroups(init()[None, :], np.zeros(n, np.int64), np.full((n, n), 1 / n**2), np.ones(1), none, none)

    def _check_size(self, clients: int) -> None:
        if clients > MAX_CLIENTS:
            raise UserError(f"FedGWC compares every two clients, and {clients:,} are more than {MAX_CLIENTS:,}: use cfl or ifca.")

    def round(self, state: InteractionGroups, ctx: Context) -> Round[InteractionGroups]:
        cohort = ctx.cohort()
        groups = yield from self.joined(state, cohort, ctx)
        cohort = cohort[groups[cohort] >= 0]
        local = ctx.local.replace(rule=LossRule(first=self.steps))  # step 1
        trained = yield from Train(cohort, state.models, local, start=groups[cohort])
        if not len(trained):
            return state
        before, took = len(state.models), groups[trained.clients]
        state = self._learn(_add_newcomers(replace(state, groups=groups), len(ctx.roster)), trained, took, ctx)
        origin = np.arange(before)  # the group that each group was before
        for j in np.flatnonzero((state.calm >= self._count_calm_rounds(ctx)) & (state.final == 0)):
            state, origin = yield from self._split(state, int(j), origin, ctx)
        weights = compute_weights(trained, self.weighting)
        within = Mixing.within(trained.clients, took, weights, before)
        models = ctx.mix(replace(within, replies=within.replies[origin], before=within.before[origin]), trained, state.models)
        return replace(state, models=models)

    def _count_calm_rounds(self, ctx: Context) -> int:
        """Rounds in which every client has been drawn once on average: N / cohort (step 4)."""
        clients = len(ctx.roster)
        return max(round(clients / min(ctx.plan.cohort_size(clients), clients)), 1)

    def _learn(self, state: InteractionGroups, trained: Trained, took: Ids, ctx: Context) -> InteractionGroups:
        """The interactions after a round's losses, group by group."""
        table, change, calm = state.interactions.copy(), state.change.copy(), state.calm.copy()
        for j in np.flatnonzero(state.final == 0):
            here = took == j
            if not here.any():
                continue
            clients = trained.clients[here]
            reward = compute_rewards(trained.losses[here], trained.sizes[here])
            share = len(clients) / int((state.groups == j).sum())
            block = np.ix_(clients, clients)
            new = (1 - share) * table[block] + share * (reward / reward.sum())[:, None]  # step 3
            moved = float(((new - table[block]) ** 2).mean())
            table[block] = new
            change[j] = (1 - share) * change[j] + share * moved
            calm[j] = calm[j] + 1 if change[j] < self.eps else 0  # step 4
            ctx.note(f"change {j}", float(change[j]))
        return replace(state, interactions=table, change=change, calm=calm)

    def _split(self, state: InteractionGroups, j: int, origin: Ints, ctx: Context) -> Round[tuple[InteractionGroups, Ints]]:
        """Group j in parts, the first of which keeps its number; or as it was, to be looked at again."""
        clients = np.flatnonzero(state.groups == j)
        affinity = compute_affinity(state.interactions[np.ix_(clients, clients)], self.gamma)
        if self.number == "structure":
            ctx.notes.choice = yield from choose_from_structure(state.models[j : j + 1], ctx, self.most)
            labels = spectral_clustering(affinity, ctx.notes.choice.k, ctx.rng(f"split {j}"))
        else:
            labels, index = self._find_parts(affinity, ctx.rng(f"split {j}"))
            ctx.note(f"davies_bouldin {j}", index)
        labels = renumber_labels(apply_control(labels, clients, self.assign, ctx))
        change, calm, final, count = state.change.copy(), state.calm.copy(), state.final.copy(), int(labels.max()) + 1
        change[j], calm[j] = 1.0, 0
        if self.number == "structure":
            final[j] = 1
        if count == 1:
            return replace(state, change=change, calm=calm, final=final), origin
        numbers = np.array([j, *range(len(final), len(final) + count - 1)])
        groups = state.groups.copy()
        groups[clients] = numbers[labels]
        smallest = min(ctx.plan.cohort_size(len(ctx.roster)), len(ctx.roster)) if self.smallest is None else self.smallest
        done = (np.bincount(labels) <= smallest) | (self.number == "structure")  # step 6
        final[j] = int(done[0])
        return (
            replace(
                state,
                groups=groups,
                change=np.append(change, np.ones(count - 1)),
                calm=np.append(calm, np.zeros(count - 1, np.int64)),
                final=np.append(final, done[1:].astype(np.int64)),
            ),
            np.append(origin, np.full(count - 1, origin[j])),
        )

    def _find_parts(self, affinity: Doubles, rng: np.random.Generator) -> tuple[Ids, float]:
        """Step 5: the parts with the lowest Davies-Bouldin index, if that is below one; else all clients together."""
        best, labels = 1.0, np.zeros(len(affinity), np.int64)
        pairs = affinity[~np.eye(len(affinity), dtype=np.bool_)]
        if not len(pairs) or np.ptp(pairs) < ALIKE:  # any parts would be as good: as where all clients are in each round
            return labels, best
        for k in range(2, min(self.most, len(affinity) - 1) + 1):
            found = spectral_clustering(affinity, k, rng)
            if 1 < int(found.max()) + 1 < len(found):
                index = float(davies_bouldin_score(compute_embedding(affinity, k), found))
                if index < best:
                    best, labels = index, found
        return labels, best


def compute_rewards(losses: Doubles, sizes: Ints) -> Doubles:
    """(n,) how usual the losses (n, S) of each client are: the mean over steps of exp(-(l - mean)^2 / (2 variance)) (step 2)."""
    share = (sizes / sizes.sum())[:, None]
    gaps = losses - (share * losses).sum(axis=0)
    variance = (share * gaps**2).sum(axis=0) + TINY
    return np.asarray(np.exp(-(gaps**2) / (2 * variance)).mean(axis=1))


def compute_affinity(interactions: Doubles, gamma: float) -> Doubles:
    """(n, n) P_ij = exp(-gamma |W_.i - W_.j|^2), without rows i and j, of W scaled to 0..1 (step 4)."""
    span = float(np.ptp(interactions))
    table = (interactions - interactions.min()) / max(span, 1e-8)
    gram = table.T @ table
    squares, own = np.diag(gram), np.diag(table)
    apart = squares[:, None] + squares[None, :] - 2 * gram
    apart = apart - (own[:, None] - table) ** 2 - (table.T - own[None, :]) ** 2  # rows i and j of the two columns
    affinity = np.exp(-gamma * np.maximum(apart, 0.0))
    np.fill_diagonal(affinity, 0.0)
    return np.asarray(affinity)


def compute_embedding(affinity: Doubles, size: int) -> Doubles:
    """(n, size) spectral coordinates: the eigenvectors of the normalised affinity after the first, scaled by degree."""
    scale = 1 / np.sqrt(affinity.sum(axis=1) + TINY)
    _, vectors = np.linalg.eigh(scale[:, None] * affinity * scale[None, :])
    return np.asarray(vectors[:, ::-1][:, 1 : size + 1] * scale[:, None])


def _add_newcomers(state: InteractionGroups, clients: int) -> InteractionGroups:
    """With a row and a column of even interactions for each client of the roster."""
    known = len(state.interactions)
    if clients == known:
        return state
    rows = grow_rows(state.interactions, clients, 1 / clients**2)
    more = np.full((clients, clients - known), 1 / clients**2)
    return replace(state, interactions=np.concatenate([rows, more], axis=1))
