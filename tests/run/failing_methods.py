"""Methods that fail on a worker."""

from dataclasses import dataclass, fields
from typing import Any

from coterie._util.errors import UserError
from coterie.core.method import Context, Round
from coterie.core.states import Models
from coterie.methods.fedavg import FedAvg


@dataclass(frozen=True)
class UnwritableModels(Models):
    """A state that no checkpoint can hold."""

    value: Any = None


@dataclass(frozen=True, kw_only=True)
class RefusingMethod(FedAvg):
    """Its round is an error of the user."""

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        yield from ()
        raise UserError(f"The method cannot run round {ctx.round_}: choose another one.")


@dataclass(frozen=True, kw_only=True)
class BrokenMethod(FedAvg):
    """Its state cannot be sent, which is an error of the code."""

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        yield from ()
        return UnwritableModels(**{f.name: getattr(state, f.name) for f in fields(Models)}, value=object())
