"""IFCA, also called HypoCluster: every client takes the model that fits it best.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning" (2020), Algorithm 1, option II (model averaging); Mansour et al.,
"Three Approaches for Personalization with Applications to Federated Learning" (2020), HypCluster.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Losses, Train, Trained
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round
from coterie.core.mixing import Mixing, mix
from coterie.core.serving import Panel, Serving
from coterie.core.states import Models
from coterie.grouping.clusterers import How, choose
from coterie.grouping.controls import Assign, controlled
from coterie.grouping.similarity import coordinates, cosines, gram
from coterie.methods.fedavg import Weighting
from coterie.methods.joining import drawn, grown, largest, lowest_loss, panel_of, served


@dataclass(frozen=True)
class Hypotheses(Models):
    """k models of each start that is still in the running, one start after the other."""

    groups: Ids  # (n,) the model each client took last, counted within the leading start; -1 before it took any
    losses: Doubles  # (starts,) mean training loss of each start when last asked, every client taking its best model

    @property
    def leading(self) -> int:
        return int(self.losses.argmin())

    def of(self, start: int) -> Floats:
        """(k, d) the models of one start."""
        k = len(self.models) // len(self.losses)
        return self.models[start * k : (start + 1) * k]


@dataclass(frozen=True, kw_only=True)
class IFCA(Method[Hypotheses]):
    """Clients take the model with the lowest loss, train it, and those who took the same are averaged.

    A bad start is common and final, so `starts` of them run side by side for `trial` rounds; then the one with the lowest training loss
    stays. Those rounds count like any other, and all that they send and train is charged.
    """

    groups: int | Literal["auto"] = 3
    starts: int = 5
    trial: int = 3
    weighting: Weighting = "uniform"
    assign: Assign = "similar"
    choice: How = "silhouette"  # how groups="auto" chooses
    most: int = 10  # up to how many
    probe: int = 100  # and by the updates of how many clients

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("groups", "starts", "trial", "most", "probe"):
            if getattr(self, name) != "auto" and getattr(self, name) < 1:
                raise UserError(f"IFCA cannot use {name}={getattr(self, name)!r}: give 1 or more.")

    def start(self, init: InitialModels, ctx: Context) -> Round[Hypotheses]:
        k = yield from self._count(init, ctx)
        starts = self.starts if k > 1 and self.assign in ("similar", "random") else 1  # where clients cannot choose, no start is bad
        models = np.stack([init(i) for i in range(starts * k)])
        return Hypotheses(models, np.full(len(ctx.roster), -1, dtype=np.int64), np.zeros(starts))

    def _count(self, init: InitialModels, ctx: Context) -> Round[int]:
        """The number of groups: as set, as the oracle says, or read from the updates of a short probe; at most one a client."""
        k = 2 if self.groups == "auto" else self.groups
        if self.assign == "oracle" and ctx.roster.true_groups is not None:
            k = int(ctx.roster.true_groups.max()) + 1
        elif self.groups == "auto":
            clients = drawn(ctx.roster.available, self.probe, "probe", ctx)
            model = init()[None, :]
            trained = yield from Train(clients, model, ctx.local.but(epochs=1), purpose="probe")
            if len(trained):
                alike = cosines(gram(ctx.layout.comparable(trained.vectors), ctx.layout.comparable(model)))
                choice = choose(coordinates(alike), ctx.rng("count"), self.most, self.choice)
                k = choice.k
                ctx.record("choice", np.array(choice.curve))
        ctx.record("groups_asked", float(k))
        return min(k, len(ctx.roster))

    def round(self, state: Hypotheses, ctx: Context) -> Round[Hypotheses]:
        cohort = ctx.cohort()
        took, losses = yield from self._take(state, cohort, ctx)  # line 6: every client estimates its group
        best = int(losses.argmin())
        if len(losses) > 1:
            ctx.record("start_losses", losses)
            if ctx.round_ <= self.trial:
                return (yield from self._try(state, cohort, took, losses, ctx))
            ctx.record("start_kept", float(best))
        models = state.of(best)
        trained, mixing = yield from self._train(models, cohort, took[best], ctx)
        if not len(trained):
            return state
        kept = np.zeros((len(models), len(state.models)))
        kept[:, best * len(models) : (best + 1) * len(models)] = mixing.before
        models = ctx.mix(Mixing(trained.clients, mixing.replies, kept), trained, state.models)
        return Hypotheses(models, self._joined(state, mixing, ctx), losses[[best]])

    def _take(self, state: Hypotheses, cohort: Ids, ctx: Context) -> Round[tuple[Ids, Doubles]]:
        """(starts, n) the model with the lowest loss of each start for each client, and (starts,) the mean of those losses.

        A client that does not answer goes on with the model it took last; one that never took any is left out (-1).
        """
        starts = len(state.losses)
        last = np.zeros_like(cohort) if len(state.models) == 1 else grown(state.groups, len(ctx.roster))[cohort]
        took = np.where(np.arange(starts)[:, None] == state.leading, last, -1)
        if len(state.models) == 1 or not len(cohort):
            return took, state.losses  # one model: nothing to ask
        table = yield from Losses(cohort, state.models)
        if not len(table):
            return took, state.losses
        by_start = table.losses.reshape(len(table), starts, -1)
        took[:, np.searchsorted(cohort, table.clients)] = by_start.argmin(axis=2).T
        return took, np.average(by_start.min(axis=2), axis=0, weights=table.sizes)

    def _train(self, models: Floats, cohort: Ids, took: Ids, ctx: Context) -> Round[tuple[Trained, Mixing]]:
        """Every client trains the model it took; those who took the same are averaged."""
        rows = controlled(took, cohort, self.assign, ctx, groups=len(models))
        who = rows >= 0
        trained = yield from Train(cohort[who], models, ctx.local, start=rows[who])  # line 9
        weights = trained.sizes if self.weighting == "samples" else np.ones(len(trained))
        return trained, Mixing.within(trained.clients, rows[np.searchsorted(cohort, trained.clients)], weights, len(models))  # line 13, II

    def _try(self, state: Hypotheses, cohort: Ids, took: Ids, losses: Doubles, ctx: Context) -> Round[Hypotheses]:
        """A round of the trial: every start goes one round on. There are as many matrices as starts, and none is kept as evidence."""
        models, groups, heard = state.models.copy(), state.groups, 0
        k = len(models) // len(losses)
        for s in range(len(losses)):
            trained, mixing = yield from self._train(state.of(s), cohort, took[s], ctx)
            models[s * k : (s + 1) * k] = mix(mixing, trained.vectors, state.of(s))
            heard += len(trained)
            if s == int(losses.argmin()):
                groups = self._joined(state, mixing, ctx)
        return Hypotheses(models, groups, losses) if heard else state

    def _joined(self, state: Hypotheses, mixing: Mixing, ctx: Context) -> Ids:
        """The groups after this round; a model that nobody takes any more is a collapse, and is written down."""
        groups = grown(state.groups, len(ctx.roster)).copy()
        groups[mixing.clients] = mixing.replies.argmax(axis=0)
        known = groups[groups >= 0]
        ctx.record("switched", float(np.sum((groups != grown(state.groups, len(groups))) & (grown(state.groups, len(groups)) >= 0))))
        ctx.record("collapsed", float(min(len(mixing.replies), len(known)) - len(np.unique(known))))
        return groups

    def serve(self, state: Hypotheses, clients: Ids, ctx: Context) -> Round[Serving]:
        models = state.of(state.leading)
        if self.assign != "similar":
            return (yield from served(state.groups, models, clients, self.assign, ctx))
        rows = yield from lowest_loss(clients, models)  # old clients and new ones alike take what fits them now
        groups = grown(state.groups, len(ctx.roster))
        rows = np.where(rows >= 0, rows, groups[clients])
        return Serving(clients, models, np.where(rows >= 0, rows, largest(groups, len(models))))

    def panel(self, state: Hypotheses) -> Panel:
        return panel_of(state.of(state.leading), mean=False)

    def members(self, state: Hypotheses) -> Ids:
        return state.groups


@dataclass(frozen=True, kw_only=True)
class HypoCluster(IFCA):
    """IFCA under the name that FeSEM's paper (004) gives it."""
