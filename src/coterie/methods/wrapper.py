"""Wrappers: methods around another method, and the one that sets its learning rate or optimiser (``fedavg+rate(lr=0.1)``)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from coterie.core.arrays import Ids
from coterie.core.layout import InitialModels
from coterie.core.method import Context, MemoryNeeds, Method, Round, S
from coterie.core.serving import NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.states import State

W = TypeVar("W", bound=State)


@dataclass(frozen=True, kw_only=True)
class Wrapper(Method[W], ABC, Generic[W, S]):
    """A method around another, with a state of its own; `inner` is the other's state in it."""

    method: Method[S]

    @abstractmethod
    def inner(self, state: W) -> S:
        """The state of the method inside."""

    def serve(self, state: W, clients: Ids, ctx: Context) -> Round[Serving]:
        return self.method.serve(self.inner(state), clients, ctx)

    def central(self, state: W) -> NamedModels | None:
        return self.method.central(self.inner(state))

    def members(self, state: W) -> Ids | None:
        return self.method.members(self.inner(state))

    @property
    def sees_truth(self) -> bool:
        return self.method.sees_truth

    @property
    def memory_needs(self) -> MemoryNeeds:
        return self.method.memory_needs

    @property
    def weighs_alike(self) -> bool:
        return self.method.weighs_alike

    @property
    def proximal(self) -> float:
        return self.method.proximal

    @property
    def is_local(self) -> bool:
        return self.method.is_local

    @property
    def combines_models(self) -> bool:
        return self.method.combines_models


@dataclass(frozen=True, kw_only=True)
class ContextWrapper(Wrapper[S, S], ABC):
    """A wrapper without a state of its own, which runs the method inside in a context of its own."""

    def inner(self, state: S) -> S:
        return state

    def context(self, ctx: Context) -> Context:
        """The context of the method inside."""
        return ctx

    def start(self, init: InitialModels, ctx: Context) -> Round[S]:
        return self.method.start(init, self.context(ctx))

    def round(self, state: S, ctx: Context) -> Round[S]:
        return self.method.round(state, self.context(ctx))

    def serve(self, state: S, clients: Ids, ctx: Context) -> Round[Serving]:
        return self.method.serve(state, clients, self.context(ctx))

    def admit(self, state: S, clients: Ids, ctx: Context) -> Round[S]:
        return self.method.admit(state, clients, self.context(ctx))

    @property
    def trains_once(self) -> bool:
        return self.method.trains_once


def unwrap(method: Method[Any]) -> Method[Any]:
    """The method without its wrappers."""
    return unwrap(method.method) if isinstance(method, Wrapper) else method


def has_wrapper(method: Method[Any], kind: type) -> bool:
    """Whether a wrapper of this kind is around the method, at any depth."""
    return isinstance(method, kind) or (isinstance(method, Wrapper) and has_wrapper(method.method, kind))


@dataclass(frozen=True, kw_only=True)
class RateOverride(ContextWrapper[S]):
    """The method it wraps, trained at another learning rate, or by another optimiser, than the study's; the rest stays the study's.

    Example: ``ct.RateOverride(method=ct.FedAvg(), lr=0.1)``, or the spec ``fedavg+rate(lr=0.1)``.
    """

    lr: float | None = setting(None, "The learning rate; default: the plan's.", above=0)
    optimizer: Literal["sgd", "adam", "adamw"] | None = setting(None, "The local optimiser; default: the plan's.")

    def context(self, ctx: Context) -> Context:
        own: dict[str, Any] = {name: value for name, value in (("lr", self.lr), ("optimizer", self.optimizer)) if value is not None}
        return replace(ctx, plan=replace(ctx.plan, local=ctx.plan.local.replace(**own))) if own else ctx
