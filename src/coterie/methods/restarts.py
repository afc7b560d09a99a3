"""Several starts of a method side by side, of which the best continues: for methods whose first models decide how they end.

Under half of IFCA's starts find the right groups on rotated digits, and a bad start is final. All starts run for `trial` rounds; then the
one with the lowest training loss on the cohort stays. These rounds count like any other, and all that is sent and trained is charged.
"""

from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from coterie.core.arrays import Doubles
from coterie.core.asks import Evaluate
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Notes, Round, S
from coterie.core.settings import setting
from coterie.core.states import State
from coterie.methods.group_number import rekey_training
from coterie.methods.wrapper import Wrapper

MODELS_PER_START = 1000  # initial models that a start may use: start i draws from init(i * SPAN) on


@dataclass(frozen=True)
class RestartsState(State, Generic[S]):
    """The states of the starts that are still in the running, and the one that leads."""

    running: tuple[S, ...]
    leading: int


@dataclass(frozen=True, kw_only=True)
class Restarts(Wrapper[RestartsState[S], S]):
    """The method it wraps from several starts; after some rounds the one with the lowest training loss stays.

    Example: ``ct.Restarts(method=ct.IFCA(groups=4), starts=5)``, or the spec ``ifca(groups=4)+restarts(starts=5)``.
    """

    starts: int = setting(5, "Starts.", minimum=1)
    trial: int = setting(3, "Rounds for which all of them run.", minimum=1)

    @property
    def memory_needs(self) -> MemoryNeeds:
        return super().memory_needs.times(self.starts)

    def inner(self, state: RestartsState[S]) -> S:
        return state.running[state.leading]

    def start(self, init: InitialModels, ctx: Context) -> Round[RestartsState[S]]:
        states = []
        for i in range(self.starts):
            first = i * MODELS_PER_START
            script = self.method.start(lambda i=0, first=first: init(first + i), ctx if i == 0 else replace(ctx, notes=Notes()))
            states.append((yield from script if i == 0 else rekey_training(script, f"start {i}")))
        return RestartsState(tuple(states), 0)

    def round(self, state: RestartsState[S], ctx: Context) -> Round[RestartsState[S]]:
        if len(state.running) == 1:
            return RestartsState(((yield from self.method.round(state.running[0], ctx)),), 0)
        contexts = [replace(ctx, notes=Notes()) for _ in state.running]  # all draw the same cohorts; each writes notes of its own
        running = []
        for i, (own, inside) in enumerate(zip(state.running, contexts, strict=True)):
            script = self.method.round(own, inside)
            running.append((yield from script if i == state.leading else rekey_training(script, f"start {i}")))
        if all(after is before for after, before in zip(running, state.running, strict=True)):
            return state  # no replies
        losses = yield from self._compute_losses(running, ctx)
        known = bool(np.isfinite(losses).any())
        best = int(np.argmin(losses)) if known else state.leading
        vars(ctx.notes).update(vars(contexts[best].notes))  # the round's notes are those of the start that is served after it
        ctx.note("start_losses", losses)
        if ctx.round_ < self.trial or not known:  # nothing to choose by: the next round tries again
            return RestartsState(tuple(running), best)
        ctx.note("start_kept", best)
        return RestartsState((running[best],), 0)

    def _compute_losses(self, running: list[S], ctx: Context) -> Round[Doubles]:
        """(starts,) the mean training loss of the cohort, each client with the model it would be served; infinite without replies."""
        losses = np.full(len(running), np.inf)
        for i, state in enumerate(running):
            serving = yield from rekey_training(self.method.serve(state, ctx.cohort(), replace(ctx, notes=Notes())), f"start {i}")
            judged = yield from Evaluate(serving, "train")
            if judged.sizes.sum():
                losses[i] = np.average(judged.loss, weights=ctx.bound_weights(judged.clients, judged.sizes.astype(np.float64)))
        return losses
