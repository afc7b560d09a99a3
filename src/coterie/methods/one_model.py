"""What methods with a single shared model have in common: how they start, serve and are judged."""

from abc import ABC
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round, done
from coterie.core.serving import NamedModels, Serving
from coterie.core.states import Models

M = TypeVar("M", bound=Models)


@dataclass(frozen=True, kw_only=True)
class SharedModel(Method[M], ABC):
    """One model for all clients, unseen clients included; subclasses may keep other things beside it."""

    def serve(self, state: M, clients: Ids, ctx: Context) -> Round[Serving]:
        return done(Serving.one(clients, state.models))

    def central(self, state: M) -> NamedModels:
        return NamedModels(("global",), Serving.one(np.zeros(1, dtype=np.int64), state.models))


@dataclass(frozen=True, kw_only=True)
class OneModelMethod(SharedModel[Models], ABC):
    """Base of methods with one model and nothing else: a subclass has a ``round(self, state, ctx)``."""

    def start(self, init: InitialModels, ctx: Context) -> Round[Models]:
        return done(Models(init()[None, :]))

    @property
    def trains_once(self) -> bool:
        return True
