"""A wrapper that gives a method its own learning rate or optimiser: ``fedavg+rate(lr=0.1)``, the spec of a tuned method."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from coterie.core.method import Context, S
from coterie.core.settings import setting
from coterie.methods.wrapper import ContextWrapper


@dataclass(frozen=True, kw_only=True)
class RateOverride(ContextWrapper[S]):
    """The method it wraps, trained at another learning rate, or by another optimiser, than the study's; the rest stays the study's."""

    lr: float | None = setting(None, "The learning rate; the plan's unless given.", above=0)
    optimizer: Literal["sgd", "adam", "adamw"] | None = setting(None, "The local optimiser; the plan's unless given.")

    def context(self, ctx: Context) -> Context:
        own: dict[str, Any] = {name: value for name, value in (("lr", self.lr), ("optimizer", self.optimizer)) if value is not None}
        return replace(ctx, plan=replace(ctx.plan, local=ctx.plan.local.replace(**own))) if own else ctx
