"""Batch norm that stays with the client, around any method.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (2021), Algorithm 1: scale, shift and statistics of
every batch norm are the client's own, and all else is the method's. With ``keep=statistics`` only the running moments stay, and scale and
shift are averaged: Andreux et al., "Siloed Federated Learning for Multi-Centric Histopathology Datasets" (2020).
"""

from dataclasses import dataclass, replace
from typing import Any, Generic, Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Bools, Floats, Ids, Ints
from coterie.core.asks import Ask, Gradient, ModelAsk, Train
from coterie.core.layout import InitialModels, Layout
from coterie.core.method import Context, Round, S, T
from coterie.core.serving import COMBINED, NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.states import State, grow_rows
from coterie.methods.wrapper import Wrapper


@dataclass(frozen=True)
class OwnNormState(State, Generic[S]):
    """The method's own state, and each client's norms."""

    inner: S
    own: Floats  # (clients, b)
    seen: Bools  # (clients,) which have trained any


@dataclass(frozen=True, kw_only=True)
class OwnNorm(Wrapper[OwnNormState[S], S]):
    """The wrapped method with batch norms that no client sends; a client that has not trained yet has the initial ones.

    Example: ``ct.OwnNorm(method=ct.FedAvg())``, or the spec ``fedavg+fedbn``.
    """

    keep: Literal["layers", "statistics"] = setting("layers", "What stays: whole batch norms (FedBN), or their running statistics alone.")

    def inner(self, state: OwnNormState[S]) -> S:
        return state.inner

    def start(self, init: InitialModels, ctx: Context) -> Round[OwnNormState[S]]:
        own = np.zeros((len(ctx.roster), len(self.columns(ctx.layout))), dtype=np.float32)
        return self._run_with_norms(self.method.start(init, ctx), own, np.zeros(len(ctx.roster), dtype=np.bool_), ctx)

    def round(self, state: OwnNormState[S], ctx: Context) -> Round[OwnNormState[S]]:
        return self._run_with_norms(self.method.round(state.inner, ctx), *self._known(state, ctx), ctx)

    def serve(self, state: OwnNormState[S], clients: Ids, ctx: Context) -> Round[Serving]:
        own, seen = self._known(state, ctx)
        serving = yield from self._exchange_norms(self.method.serve(state.inner, clients, ctx), own, seen, ctx)
        if np.any(serving.rows == COMBINED):
            raise UserError("Models that answer together have no one's batch norms: serve one model a client, or omit fedbn.")
        which = np.flatnonzero(seen[serving.clients])
        models, rows = serving.models[serving.rows[which]], serving.rows.copy()
        models[:, self.columns(ctx.layout)] = own[serving.clients[which]]
        rows[which] = len(serving.models) + np.arange(len(which))
        return replace(serving, models=np.concatenate([serving.models, models]), rows=rows)

    def central(self, state: OwnNormState[S]) -> NamedModels | None:
        return None  # no model is meant for all clients

    def columns(self, layout: Layout) -> Ints:
        """(b,) where the numbers that stay are in a vector."""
        parts = [s for s in layout.slices if s.norm and (self.keep == "layers" or s.kind != "weight")]
        return np.concatenate([np.arange(s.begin, s.end) for s in parts]) if parts else np.zeros(0, np.int64)

    def _run_with_norms(self, script: Round[S], own: Floats, seen: Bools, ctx: Context) -> Round[OwnNormState[S]]:
        inner = yield from self._exchange_norms(script, own, seen, ctx)
        return OwnNormState(inner, own, seen)

    def _known(self, state: OwnNormState[S], ctx: Context) -> tuple[Floats, Bools]:
        """Copies, with rows for clients that have come since."""
        nothing = np.zeros(state.own.shape[1], dtype=np.float32)
        return np.array(grow_rows(state.own, len(ctx.roster), nothing)), np.array(grow_rows(state.seen, len(ctx.roster), False))

    def _exchange_norms(self, script: Round[T], own: Floats, seen: Bools, ctx: Context) -> Round[T]:
        """The script with each client's own norms put into what it is sent, and taken out of what it sends back."""
        columns = self.columns(ctx.layout)
        reply: Any = None
        while True:
            try:
                ask: Any = script.send(reply)
            except StopIteration as end:
                value: T = end.value
                return value
            sent = self._insert_norms(ask, columns, own, seen)
            reply = yield sent
            if len(columns) and isinstance(sent, Train) and sent.sketch is None and not sent.alone and len(reply):
                own[reply.clients], seen[reply.clients] = reply.vectors[:, columns], True
                vectors = np.array(reply.vectors)
                vectors[:, columns] = ask.get_sent_models(reply.clients)[:, columns]  # to the method nothing has moved there
                reply = replace(reply, vectors=vectors)

    def _insert_norms(self, ask: Ask[Any], columns: Ints, own: Floats, seen: Bools) -> Ask[Any]:
        if not len(columns) or not isinstance(ask, ModelAsk):
            return ask
        if not isinstance(ask, (Train, Gradient)):
            raise UserError("A method that evaluates several models on a client cannot keep batch norms with it: omit fedbn.")
        which = seen[ask.clients]
        models = ask.models[ask.start]
        models[np.ix_(which, columns)] = own[ask.clients[which]]
        changes: dict[str, Any] = {"models": models, "start": np.arange(len(ask.clients)), "held": len(columns)}
        if isinstance(ask, Train) and ask.anchors is not None:
            changes["anchors"] = np.array(ask.anchors)
            changes["anchors"][:, columns] = models[:, columns]
        return replace(ask, **changes)
