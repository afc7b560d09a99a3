"""What methods with a single shared model have in common: how they start, serve and are judged."""

from abc import ABC
from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round, done
from coterie.core.serving import Panel, Serving
from coterie.core.states import Models


@dataclass(frozen=True, kw_only=True)
class OneModelMethod(Method[Models], ABC):
    """One model for everybody, unseen clients included."""

    def start(self, init: InitialModels, ctx: Context) -> Round[Models]:
        return done(Models(init()[None, :]))

    def serve(self, state: Models, clients: Ids, ctx: Context) -> Round[Serving]:
        return done(Serving.one(clients, state.models))

    def panel(self, state: Models) -> Panel:
        return Panel(("global",), Serving.one(np.zeros(1, dtype=np.int64), state.models))
