"""A learning rate of its own for any method: how a tuned method is named, ``fedavg+rate(lr=0.1)``."""

from dataclasses import dataclass, replace
from math import inf

from coterie.core.arrays import Ids
from coterie.core.errors import UserError
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round, S
from coterie.core.serving import Panel, Serving


@dataclass(frozen=True, kw_only=True)
class AtRate(Method[S]):
    """The method it wraps, trained at another learning rate than the study's; everything else stays the study's."""

    method: Method[S]
    lr: float | None = None  # the plan's rate unless given

    def __post_init__(self) -> None:
        if self.lr is not None and not 0 < self.lr < inf:
            raise UserError(f"A method cannot train at lr={self.lr:g}: give a finite number above 0.")

    def start(self, init: InitialModels, ctx: Context) -> Round[S]:
        return self.method.start(init, self._own(ctx))

    def round(self, state: S, ctx: Context) -> Round[S]:
        return self.method.round(state, self._own(ctx))

    def serve(self, state: S, clients: Ids, ctx: Context) -> Round[Serving]:
        return self.method.serve(state, clients, self._own(ctx))

    def panel(self, state: S) -> Panel | None:
        return self.method.panel(state)

    def members(self, state: S) -> Ids | None:
        return self.method.members(state)

    def _own(self, ctx: Context) -> Context:
        """The context at this rate; what is recorded goes to the same place."""
        if self.lr is None:
            return ctx
        return replace(ctx, plan=replace(ctx.plan, local=ctx.plan.local.but(lr=self.lr)))
