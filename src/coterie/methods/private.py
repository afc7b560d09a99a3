"""Layers that stay with the client, around any method: FedPer, FedRep, FedBABU and LG-FedAvg as settings of one wrapper.

FedPer (Arivazhagan et al. 2019) keeps the head with the client and trains all layers together. FedRep (Collins et al. 2021, Algorithm 1)
trains the head first and then the rest. FedBABU (Oh et al. 2022) never trains the head, which is the common start's, until clients are
served: ``private(layers=head,train=shared)+finetune``. LG-FedAvg (Liang et al. 2020) keeps all but the head. `fedbn` is the same for batch
norms (`own_norm`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Bools, Ids, Ints
from coterie.core.asks import Ask, Evaluate, Gradient, ModelAsk, Together, Train
from coterie.core.descriptions import AskSubspaces, Describe
from coterie.core.layout import InitialModels, Layout, Slice
from coterie.core.local import Local, LocalRule, Step, make_optimizer
from coterie.core.method import Context, MemoryNeeds, Round, S, T, map_asks
from coterie.core.serving import COMBINED, NamedModels, Serving
from coterie.core.settings import setting
from coterie.core.states import ClientTable, State
from coterie.methods.wrapper import Wrapper

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class PrivateState(State, Generic[S]):
    """The method's own state, and what each client keeps."""

    inner: S
    own: ClientTable  # (clients, b)


@dataclass(frozen=True, kw_only=True)
class PrivateColumns(Wrapper[PrivateState[S], S], ABC):
    """Base of wrappers under which some numbers of a model stay with the client; one that has not trained yet has the initial ones."""

    word: ClassVar[str]  # its name in specs
    what: ClassVar[str]  # what stays, in words

    @abstractmethod
    def find_columns(self, layout: Layout) -> Ints:
        """(b,) where the numbers that stay are in a vector."""

    def arrange(self, script: Round[T], layout: Layout) -> Round[T]:
        """The script with its trainings changed; default: as they are."""
        return script

    def inner(self, state: PrivateState[S]) -> S:
        return state.inner

    def start(self, init: InitialModels, ctx: Context) -> Round[PrivateState[S]]:
        own = ClientTable.empty(len(ctx.roster), np.zeros(len(self.find_columns(ctx.layout)), dtype=np.float32))
        return self._run(self.method.start(init, ctx), own, ctx)

    def round(self, state: PrivateState[S], ctx: Context) -> Round[PrivateState[S]]:
        return self._run(self.method.round(state.inner, ctx), state.own.grow(len(ctx.roster)), ctx)

    def serve(self, state: PrivateState[S], clients: Ids, ctx: Context) -> Round[Serving]:
        exchange = _Exchange(self, state.own.grow(len(ctx.roster)), ctx.layout)
        serving = yield from exchange.run(self.method.serve(state.inner, clients, ctx))
        return exchange.fill(serving)

    def central(self, state: PrivateState[S]) -> NamedModels | None:
        return None  # no model is meant for all clients

    def _run(self, script: Round[S], own: ClientTable, ctx: Context) -> Round[PrivateState[S]]:
        exchange = _Exchange(self, own, ctx.layout)
        inner = yield from exchange.run(self.arrange(script, ctx.layout))
        return PrivateState(inner, exchange.own)


class _Exchange:
    """Puts what each client keeps into what it is sent, and takes it out of what it sends back."""

    def __init__(self, wrapper: PrivateColumns[Any], own: ClientTable, layout: Layout) -> None:
        self.wrapper, self.own, self.columns = wrapper, own, wrapper.find_columns(layout)

    def run(self, script: Round[T]) -> Round[T]:
        return map_asks(script, self.insert, self.take_out) if len(self.columns) else script

    def insert(self, ask: Ask[Any]) -> Ask[Any]:
        if isinstance(ask, Evaluate) and ask.part not in ("central", "marked"):
            return replace(ask, serving=self.fill(ask.serving))
        if not isinstance(ask, ModelAsk) or isinstance(ask, AskSubspaces):  # which sends no model
            return ask
        if not isinstance(ask, (Train, Gradient, Describe)):
            what, word = self.wrapper.what, self.wrapper.word
            raise UserError(f"A method that evaluates several models on a client cannot keep {what} with it: omit {word}.")
        rule = ask.local.rule if isinstance(ask, Train) else None
        if isinstance(ask, Train) and rule is not None and set(rule.loops[1:]) - set(ask.kept):
            what, word = self.wrapper.what, self.wrapper.word
            raise UserError(f"A method that trains several models on a client cannot keep {what} with it: omit {word}.")
        has = self.own.has_row[ask.clients]
        models = ask.models[ask.start]
        models[np.ix_(has, self.columns)] = self.own.of(ask.clients[has])
        changes: dict[str, Any] = {"models": models, "start": np.arange(len(ask.clients)), "held": len(self.columns)}
        if isinstance(ask, Train) and ask.anchors is not None:
            changes["anchors"] = np.array(ask.anchors)
            changes["anchors"][:, self.columns] = models[:, self.columns]
        return replace(ask, **changes)

    def take_out(self, ask: Ask[Any], reply: Any) -> Any:
        rule = ask.local.rule if isinstance(ask, Train) else None
        works_alone = isinstance(ask, Train) and ask.alone and not isinstance(rule, PartRule)  # fine-tuning: nothing is kept
        if not isinstance(ask, Train) or ask.sketch is not None or works_alone or not len(reply):
            return reply
        if not (isinstance(rule, PartRule) and rule.is_shared):
            self.own = self.own.put(reply.clients, reply.vectors[:, self.columns])
        vectors = np.array(reply.vectors)
        vectors[:, self.columns] = ask.get_sent_models(reply.clients)[:, self.columns]  # to the method nothing has moved there
        return replace(reply, vectors=vectors)

    def fill(self, serving: Serving) -> Serving:
        """Each client that keeps anything its model with that in it."""
        if not len(self.columns):
            return serving
        if np.any(serving.rows == COMBINED):
            raise UserError(
                f"Models that answer together have no one's {self.wrapper.what}: serve one model a client, or omit {self.wrapper.word}."
            )
        which = np.flatnonzero(self.own.has_row[serving.clients])
        models, rows = serving.models[serving.rows[which]], serving.rows.copy()
        models[:, self.columns] = self.own.of(serving.clients[which])
        rows[which] = len(serving.models) + np.arange(len(which))
        return replace(serving, models=np.concatenate([serving.models, models]), rows=rows)


@dataclass(frozen=True, kw_only=True)
class PartRule(LocalRule):
    """The study's loss and optimiser, of which only some tensors are trained; the others stay exactly as they are."""

    trains: tuple[bool, ...]  # by trained tensor, in the order of the layout
    is_shared: bool  # whether it is the shared part that is trained

    def objective(self, step: Step) -> "Tensor":
        return step.loss(step.outputs())

    def optimizer(self, weights: "list[Tensor]", local: Local) -> "torch.optim.Optimizer":
        return make_optimizer([w for w, trained in zip(weights, self.trains, strict=True) if trained], local)


@dataclass(frozen=True, kw_only=True)
class PrivateLayers(PrivateColumns[S]):
    """The wrapped method with layers that no client sends; a client that has not trained yet has the initial ones.

    Example: ``ct.PrivateLayers(method=ct.FedAvg(), layers="head")``, or the spec ``fedavg+private(layers=head)``.
    """

    word = "private"
    what = "layers"

    layers: str | None = setting("head", "What stays: head (the last dense layer), body (all else), none, or a part of tensors' names.")
    train: Literal["together", "private_first", "shared"] = setting(
        "together", "What a client trains: all layers together, the private ones before the shared ones, or the shared ones alone."
    )
    private_epochs: int | None = setting(None, "Epochs of private_first's first part; default: the plan's.", minimum=1)

    @property
    def memory_needs(self) -> MemoryNeeds:
        inside = super().memory_needs
        return inside if self.layers is None else replace(inside, kept=inside.kept + 1.0, served=inside.served + 1.0)

    def find_columns(self, layout: Layout) -> Ints:
        parts = self._find_slices(layout)
        return np.concatenate([np.arange(s.begin, s.end) for s in parts]) if parts else np.zeros(0, np.int64)

    def _find_slices(self, layout: Layout) -> list[Slice]:
        """The tensors that stay."""
        if self.layers is None:
            return []
        if self.layers not in ("head", "body"):
            if not (parts := [s for s in layout.slices if self.layers in s.name]):
                names = ", ".join(s.name for s in layout.slices[:8])
                raise UserError(f"No tensor of the model has {self.layers!r} in its name: give layers=head, body, or a part of {names}.")
            return parts
        head = list(layout.head)
        if not head or len([s for s in head if s.kind == "weight"]) == len(layout.weights):
            missing = "no dense layer at its end" if not head else "no layer before its last one"
            raise UserError(f"The model has {missing}, so head and body cannot be kept apart: choose another model, or omit private.")
        return head if self.layers == "head" else [s for s in layout.slices if s not in head]

    def arrange(self, script: Round[T], layout: Layout) -> Round[T]:
        private = np.array([s in self._find_slices(layout) for s in layout.weights], dtype=np.bool_)
        if self.train == "together" or not private.any():
            return script
        return self._train_parts(script, private)

    def _train_parts(self, script: Round[T], private: Bools) -> Round[T]:
        """The script whose trainings are of the shared layers alone; where the private ones are first, they are trained before."""
        reply: Any = None
        while True:
            try:
                ask = script.send(reply)
            except StopIteration as end:
                value: T = end.value
                return value
            trainings = [single for single in ask.unpack() if isinstance(single, Train)]
            if trainings and self.train == "private_first":
                yield from Together(*(self._train_part(single, private, is_shared=False) for single in trainings))
            reply = yield ask.map(lambda single: self._train_part(single, ~private, is_shared=True))

    def _train_part(self, ask: Ask[Any], trains: Bools, *, is_shared: bool) -> Ask[Any]:
        if not isinstance(ask, Train):
            return ask
        if ask.local.rule is not None:
            raise UserError(f"A method with a local rule of its own cannot train layers apart: omit train={self.train}.")
        changed = replace(ask, local=ask.local.replace(rule=PartRule(trains=tuple(trains.tolist()), is_shared=is_shared)))
        if is_shared:
            return changed
        epochs = changed.epochs if self.private_epochs is None else np.full(len(ask.clients), self.private_epochs)
        return replace(changed, alone=True, epochs=epochs, purpose=f"{ask.purpose} private")  # the second ask sends the shared layers
