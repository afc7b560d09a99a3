"""The ClientApp: answers Coterie's asks by the user's own functions, by Coterie's engine on the user's model and data, or by both.

A function answers the asks of its kind; the engine, where there is one, all others. What neither answers is stated beside the node's card,
so that the server refuses a method that needs it before the first round.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from coterie._util.errors import UserError, summarize_error
from coterie.core.arrays import Array
from coterie.core.asks import Evaluate, Train
from coterie.core.layout import Layout
from coterie.core.model import MakeModule, make_layout
from coterie.data.federation import Federation, Parts
from coterie.data.readers.objects import LABEL, read_dataset
from coterie.deploy.messages import (
    PROTOCOL,
    AskBatch,
    Denial,
    Hello,
    MessageError,
    SiteCard,
    from_message,
    get_version,
    is_kind,
    to_message,
)
from coterie.deploy.server.validation import REASON, clean_text
from coterie.deploy.site.ask_fields import find_fault
from coterie.deploy.site.policy import Policy
from coterie.deploy.site.process import answer_batch, make_site_card
from coterie.engines.batched import make_engine
from coterie.engines.engine import Engine, StampedAsk
from coterie.engines.sketching import remove_sketch, sketch_reply
from coterie.engines.world import World, check_fit
from coterie.flower.functions import (
    ALL_SAMPLES,
    Abilities,
    Call,
    Config,
    evaluate_by_function,
    layout_from_json,
    layout_to_json,
    train_by_function,
)
from coterie.flower.records import ACTION, STATE, Function, from_records, make_call, to_records
from coterie.models.catalogue import GivenModel, resolve_model

LoadData = Callable[[Context], Any]
MOST_KEPT = 64  # nodes whose data and engine a process of a simulation keeps
CLIENT_KEYS = ("client", "partition-id")  # of a node's config: the first that is there is its client's id
_kept: OrderedDict[tuple[int, int], "Holding"] = OrderedDict()
_log = logging.getLogger("flwr")


def client_app(
    train: Function | None = None,
    evaluate: Function | None = None,
    *,
    model: GivenModel | None = None,
    data: LoadData | None = None,
    proximal: bool = False,
    device: str = "cpu",
    mods: Sequence[Any] | None = None,
) -> ClientApp:
    """A ClientApp that answers Coterie's asks, and still answers Flower's own strategies by the same functions.

    Args:
        train: Your function ``(message, context) -> message``, as for Flower's strategies: it gets the records `arrays` (a state dict) and
            `config` (`lr`, `epochs`, `batch-size`, `server-round` and others), and returns arrays and `num-examples`.
        evaluate: Likewise; it returns `num-examples`, a loss and an accuracy.
        model: The model: a class or function that makes a module, a module, or a spec. With `data`, Coterie answers all asks that your
            functions do not.
        data: A function of the node's context that returns ``(train, test)`` as data sets or data loaders, ``{"train": ..., "test": ...,
            "validation": ...}``, or a `Federation`.
        proximal: Whether your `train` adds the proximal term of ``config["proximal-mu"]``.
        device: Where Coterie trains.
        mods: Flower's mods, for all messages.

    Returns:
        The app, for a SuperNode or a simulation.

    Raises:
        UserError: Neither a function nor model and data are given.

    Example:
        >>> app = client_app(train, evaluate)  # doctest: +SKIP
        >>> app = client_app(model=Net, data=load_data)  # doctest: +SKIP
    """
    given = Given(train, evaluate, model, data, proximal, device)
    given.check()
    app = ClientApp(mods=list(mods or ()))
    for register, function in ((app.train, train), (app.evaluate, evaluate)):
        if function is not None:
            register()(function)
    app.query(ACTION)(given.answer)
    return app


@dataclass(frozen=True)
class Holding:
    """A node's data, and the engine that answers from them."""

    world: World
    engine: Engine


@dataclass(frozen=True)
class StateDict:
    """The tensors of a model: those that are sent, the names of all in their order, and the values of those that are not sent."""

    layout: Layout
    order: list[str]
    frozen: Mapping[str, Array]

    @classmethod
    def from_module(cls, module: torch.nn.Module) -> "StateDict":
        layout, state = make_layout(module), module.state_dict()
        sent = {s.name for s in layout.slices}
        return cls(layout, list(state), {name: value.numpy() for name, value in state.items() if name not in sent})

    @classmethod
    def from_hello(cls, text: str) -> "StateDict":
        """What the server states of its model, which has nothing that is not sent."""
        try:
            tree = json.loads(text)
            layout, order = layout_from_json(tree["layout"]), [str(name) for name in tree["order"]]
        except (ValueError, TypeError, KeyError) as error:
            raise MessageError("a hello without a layout: install the same version of coterie on both sides") from error
        if not order:
            raise UserError("The server's model has no fixed shape, which train and evaluate need: give server_app a class or a module.")
        if frozen := set(order) - {s.name for s in layout.slices}:
            raise UserError(f"{min(frozen)!r} of the model is frozen and not sent: give client_app the model, too (model=...).")
        return cls(layout, order, {})


@dataclass(frozen=True)
class Given:
    """What a ClientApp was made of. A class and no closure, so that a simulation can send it to its workers."""

    train: Function | None
    evaluate: Function | None
    model: GivenModel | None
    data: LoadData | None
    proximal: bool
    device: str

    @property
    def abilities(self) -> Abilities:
        own = [name for name, function in (("Train", self.train), ("Evaluate", self.evaluate)) if function is not None]
        return Abilities(tuple(own), self.data is not None, self.proximal)

    def check(self) -> None:
        """Refuse what could answer nothing."""
        for name in ("train", "evaluate", "data"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise UserError(f"{name} should be a function, not a value of type {type(value).__name__}.")
        if self.data is not None and self.model is None:
            raise UserError("client_app has data and no model to train on them: give model=, too.")
        if self.data is None and (self.train is None or self.evaluate is None):
            raise UserError("client_app needs train and evaluate, or model= and data=.")

    @cached_property
    def _named(self) -> tuple[str, MakeModule]:
        assert self.model is not None
        return resolve_model(self.model)

    def answer(self, message: Message, context: Context) -> Message:
        """The reply to a message of Coterie's server. What goes wrong is a denial in one sentence."""
        try:
            data = from_records(message.content)
            if is_kind(data, Hello):
                content = self._introduce(from_message(data, Hello), context)
            else:
                content = to_records(self._answer_asks(from_message(data, AskBatch), message, context))
        except Exception as error:  # whatever the user's own code may raise
            content = to_records(to_message(_deny(error)))
        return Message(content, reply_to=message)

    def _introduce(self, hello: Hello, context: Context) -> RecordDict:
        """The node's card and what it answers. What the server states of the model is kept for the asks that follow."""
        context.state[STATE] = ConfigRecord({"terms": hello.terms})
        if self.data is None:
            one, none = np.ones(1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
            fixed: dict[str, Any] = {"input_shape": (1,), "classes": (ALL_SAMPLES,), "validation": False}
            card = SiteCard(PROTOCOL, hello.run, hello.number, get_version(), (_get_client_id(context),), one, none, **fixed)
            layout = self._read_state_dict(context, None).layout
        else:
            world = self._hold(context).world
            card = replace(make_site_card(hello, world), schema="")
            if self.evaluate is not None:  # whose samples need not be those of `data`
                card = replace(card, actual=np.zeros_like(card.actual))
            if self.abilities.own and len(world.federation) > 1:
                raise UserError("data returns several clients, and train and evaluate answer for one: return one client's data.")
            layout = world.model.layout
        return to_records(to_message(card), replace(self.abilities, layout=layout_to_json(layout)))

    def _answer_asks(self, batch: AskBatch, message: Message, context: Context) -> bytes:
        holding = None if self.data is None else self._hold(context)
        ids = (_get_client_id(context),) if holding is None else holding.world.federation.ids

        def answer(asked: Sequence[StampedAsk]) -> list[Any]:
            return [self._answer_one(stamped, holding, message, context) for stamped in asked]

        return answer_batch(batch, ids, answer)

    def _answer_one(self, stamped: StampedAsk, holding: Holding | None, message: Message, context: Context) -> Any:
        try:
            if (obstacle := self.abilities.find_obstacle(stamped.ask)) is not None:
                return Denial(f"This node does not answer {obstacle}.")
            if isinstance(stamped.ask, (Train, Evaluate)) and type(stamped.ask).__name__ in self.abilities.own:
                return self._answer_by_function(stamped.ask, stamped, holding, message, context)
            assert holding is not None  # or there would be an obstacle
            if (fault := find_fault(stamped, holding.world, Policy())) is not None:
                return Denial(fault)
            return holding.engine.run([stamped])[0]
        except Exception as error:
            return _deny(error)

    def _answer_by_function(
        self, ask: Train | Evaluate, stamped: StampedAsk, holding: Holding | None, message: Message, context: Context
    ) -> Any:
        state = self._read_state_dict(context, holding)
        stamp: Config = {"server-round": int(stamped.round_), "seed": int(stamped.seed)}
        if isinstance(ask, Evaluate):
            classes = 1 if holding is None else len(holding.world.federation.classes)
            return evaluate_by_function(ask, stamp, state.layout, classes, self._call("evaluate", message, context, state))
        whole = remove_sketch(ask)
        assert isinstance(whole, Train)
        reply = train_by_function(whole, stamp, state.layout, self._call("train", message, context, state))
        return sketch_reply(ask, reply, state.layout)

    def _call(self, kind: str, message: Message, context: Context, state: StateDict) -> Call:
        function = self.train if kind == "train" else self.evaluate
        assert function is not None
        return make_call(function, kind, message, context, state.frozen, state.order)

    def _read_state_dict(self, context: Context, holding: Holding | None) -> StateDict:
        """The node's own model's, where it has one, else the server's."""
        if self.model is None:
            return StateDict.from_hello(str(context.state[STATE]["terms"]))
        named, make = self._named
        return StateDict.from_module(make(named, (1,), 1) if holding is None else holding.world.model.module())

    def _hold(self, context: Context) -> Holding:
        """The node's data and engine; a process of a simulation keeps those of its last nodes."""
        key = (context.run_id, context.node_id)
        if key not in _kept:
            assert self.data is not None
            named, make = self._named
            world = World.from_spec(_read_data(self.data(context), context, named, make), named, make=make)
            check_fit(world, None)
            _kept[key] = Holding(world, make_engine(world, "auto", self.device, 1))
            while len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)[1].engine.close()
        _kept.move_to_end(key)
        return _kept[key]


def _deny(error: Exception) -> Denial:
    """The sentence of an error as it goes to the server; the node's own log has all of it."""
    if isinstance(error, (UserError, MessageError)):
        return Denial(clean_text(error, REASON - 3), "failure")
    _log.error("Coterie's ask failed at this node.", exc_info=error)
    return Denial(clean_text(f"{type(error).__name__}: {summarize_error(error)}", REASON - 3), "failure")


def _get_client_id(context: Context) -> str:
    """By what a node's client is known, and its random numbers are drawn: it should be the same in every run."""
    found = next((context.node_config[key] for key in CLIENT_KEYS if key in context.node_config), context.node_id)
    return str(found)


def _read_data(given: Any, context: Context, named: str, make: MakeModule) -> Federation:
    """What the user's `data` returned, as a federation of one client."""
    if isinstance(given, Federation):
        if not given.task.counts_classes or given.inputs is not None:
            raise UserError(f"its data are a {given.task} or have several inputs: Flower's nodes carry classifications of one input")
        return given
    if isinstance(given, (tuple, list)) and len(given) == 2:
        given = {"train": given[0], "test": given[1]}
    if not isinstance(given, Mapping) or not {"train", "test"} <= set(given) <= {"train", "test", "validation"}:
        raise UserError("data should return (train, test), a dictionary of train, test and validation, or a Federation")
    rows = {part: read_dataset(getattr(held, "dataset", held), f"The {part} data", LABEL, None) for part, held in given.items()}
    x, y = (np.concatenate([getattr(own, name) for own in rows.values()]) for name in ("x", "y"))
    if y.ndim != 1 or y.dtype.kind not in "iub" or y.min() < 0:
        raise UserError(f"labels should be class numbers from 0, not {y.dtype} of shape {y.shape}")
    x = x if x.dtype.kind in "iu" else x.astype(np.float32)
    classes = next((own.classes for own in rows.values() if own.classes is not None), None) or _name_outputs(named, make, x)
    if int(y.max()) >= len(classes):
        raise UserError(f"a label is {int(y.max())}, and the model has {len(classes)} outputs")
    ends = np.cumsum([0, *(len(own.y) for own in rows.values())]).tolist()
    parts = {part: Parts.from_lists([np.arange(*span)]) for part, span in zip(rows, pairwise(ends), strict=True)}
    ids = (_get_client_id(context),)
    return Federation("flower", x, y.astype(np.int64), classes, ids, parts["train"], parts["test"], parts.get("validation"))


def _name_outputs(named: str, make: MakeModule, x: Array) -> tuple[str, ...]:
    """The classes by number, as many as the model has outputs.

    Raises:
        UserError: The model has as many as it is told.
    """
    shape, sample = tuple(x.shape[1:]), torch.as_tensor(x[:2])
    sample = sample.float() if sample.is_floating_point() else sample
    with torch.no_grad():
        found = {int(make(named, shape, outputs).eval()(sample).shape[-1]) for outputs in (2, 3)}
    if len(found) > 1:
        raise UserError(f"how many classes there are is not known: give the data sets an attribute 'classes', or let {named!r} fix it")
    return tuple(map(str, range(max(found.pop(), 2))))
