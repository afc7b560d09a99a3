"""Local-only: every client trains alone. The control that shows whether federating helps at all."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coterie.core.arrays import Doubles, Ids, Ints
from coterie.core.asks import Evaluate, Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Method, Round, done
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.states import ClientTable, State, grow_rows


@dataclass(frozen=True)
class LocalOnlyState(State):
    """Each client's model, the common start until it has trained; for early stopping, its best, and how long ago that was."""

    models: ClientTable
    best: ClientTable  # what is served
    losses: Doubles  # (n,) validation loss of the best
    stale: Ints  # (n,) trainings since

    def grow(self, n: int) -> "LocalOnlyState":
        """With a place for each of n clients: the roster may have grown."""
        models = self.models.grow(n)
        best = models if self.best is self.models else self.best.grow(n)
        return LocalOnlyState(models, best, grow_rows(self.losses, n, np.inf), grow_rows(self.stale, n, 0))


@dataclass(frozen=True, kw_only=True)
class LocalOnly(Method[LocalOnlyState]):
    """Every client trains its own model from the common start.

    `until="participation"` gives a client the training it would have had in FedAvg's cohorts. The fairer forms train all clients in every
    round: "epochs" up to a fixed number of epochs, "validation" until its validation loss has not improved `patience` times, serving the
    best.

    Example: ``ct.LocalOnly(until="epochs", epochs=50)``, or the spec ``local(until=epochs,epochs=50)``.
    """

    until: Literal["participation", "epochs", "validation"] = setting("participation", "How long a client trains.")
    epochs: int = setting(100, "Epochs of each client, with until=epochs.", minimum=1)
    patience: int = setting(3, "Trainings without improvement, with until=validation.", minimum=1)

    @property
    def memory_needs(self) -> MemoryNeeds:
        return MemoryNeeds(kept=2.0 if self.until == "validation" else 1.0, all_train=self.until != "participation")

    @property
    def is_local(self) -> bool:
        return True

    def start(self, init: InitialModels, ctx: Context) -> Round[LocalOnlyState]:
        n = len(ctx.roster)
        own = ClientTable.empty(n, init())
        return done(LocalOnlyState(own, own, np.full(n, np.inf), np.zeros(n, dtype=np.int64)))

    def round(self, state: LocalOnlyState, ctx: Context) -> Round[LocalOnlyState]:
        state = state.grow(len(ctx.roster))
        clients, epochs = self._select_clients(state, ctx)
        models, start = state.models.get_starts(clients)
        trained = yield from Train(clients, models, ctx.local, start=start, epochs=epochs, alone=True)
        if not len(trained):
            return state
        own = state.models.put(trained.clients, trained.vectors)
        if self.until != "validation":
            return replace(state, models=own, best=own)
        return (yield from self._keep_best(state, own, trained.clients))

    def _select_clients(self, state: LocalOnlyState, ctx: Context) -> tuple[Ids, Ints | None]:
        """The clients that train in this round, and for how many epochs where that is not the plan's number."""
        if self.until == "participation":
            return ctx.cohort(), None
        available = ctx.roster.available
        if self.until == "validation":
            return available[state.stale[available] < self.patience], None
        left = self.epochs - (ctx.round_ - 1) * ctx.local.epochs
        return (available if left > 0 else available[:0]), np.full(len(available), min(left, ctx.local.epochs))

    def _keep_best(self, state: LocalOnlyState, own: ClientTable, clients: Ids) -> Round[LocalOnlyState]:
        """Early stopping: keep the model with the lowest validation loss so far. Each client judges only its own model."""
        losses, stale = state.losses.copy(), state.stale.copy()
        judged = yield from Evaluate(Serving(clients, own.of(clients), np.arange(len(clients))), "validation", alone=True)
        # A client without validation samples has no loss (nan): it continues, and its latest model is its best.
        better = judged.clients[~(judged.loss >= state.losses[judged.clients])]
        stale[judged.clients] += 1
        stale[better] = 0
        losses[judged.clients] = np.fmin(judged.loss, state.losses[judged.clients])
        return replace(state, models=own, best=state.best.put(better, own.of(better)), losses=losses, stale=stale)

    def admit(self, state: LocalOnlyState, clients: Ids, ctx: Context) -> Round[LocalOnlyState]:
        """Train newcomers alone, in one go, for the epochs that a client of the study trains (with early stopping: at most)."""
        state = state.grow(len(ctx.roster))
        share = len(ctx.cohort()) / len(ctx.roster) if self.until == "participation" else 1.0
        epochs = self.epochs if self.until == "epochs" else max(round(ctx.plan.rounds * share), 1) * ctx.plan.local.epochs
        models, start = state.models.get_starts(clients)
        trained = yield from Train(clients, models, ctx.plan.local, start=start, epochs=np.full(len(clients), epochs), alone=True)
        own = state.best.put(trained.clients, trained.vectors)
        return replace(state, models=own, best=own)

    def serve(self, state: LocalOnlyState, clients: Ids, ctx: Context) -> Round[Serving]:
        return done(state.grow(len(ctx.roster)).best.serving(clients, state.models.common[None, :]))
