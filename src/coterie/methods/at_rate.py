"""A learning rate of its own for any method: how a tuned method is named, ``fedavg+rate(lr=0.1)``."""

from dataclasses import dataclass, replace

from coterie.core.method import Context, S
from coterie.core.settings import setting
from coterie.methods.wrapper import Layer


@dataclass(frozen=True, kw_only=True)
class AtRate(Layer[S]):
    """The method it wraps, trained at another learning rate than the study's; everything else stays the study's."""

    lr: float | None = setting(None, "The learning rate; the plan's unless given.", above=0)

    def context(self, ctx: Context) -> Context:
        return ctx if self.lr is None else replace(ctx, plan=replace(ctx.plan, local=ctx.plan.local.but(lr=self.lr)))
