"""Coterie's messages, and calls of a user's own functions, as Flower's records."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from coterie._util.errors import UserError
from coterie.core.arrays import Array as Numbers
from coterie.deploy.messages import MessageError
from coterie.flower.functions import Abilities, Call, Config

ACTION = "coterie"  # of the message type query.coterie: a ClientApp keeps its own train, evaluate and query
MESSAGE, ABILITIES, STATE = "message", "abilities", "coterie"  # names of records and fields
Function = Callable[[Message, Context], Message]


def to_records(data: bytes, abilities: Abilities | None = None) -> RecordDict:
    """A message's bytes as the content of one of Flower's: as an array, which Flower sends in pieces however large it is. Beside a node's
    card stands what it answers."""
    records = {MESSAGE: ArrayRecord({MESSAGE: Array(np.frombuffer(data, dtype=np.uint8))})}
    if abilities is not None:
        records[ABILITIES] = ConfigRecord(
            {f.name: list(value) if isinstance(value := getattr(abilities, f.name), tuple) else value for f in fields(abilities)}
        )
    return RecordDict(records)


def from_records(content: RecordDict) -> bytes:
    """The bytes that `to_records` packed."""
    try:
        return bytes(content[MESSAGE][MESSAGE].numpy().tobytes())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MessageError("no message of Coterie's") from error


def read_abilities(content: RecordDict) -> Abilities:
    """What a node's ClientApp answers, as it states it beside its card."""
    try:
        found = content[ABILITIES]
        return Abilities(tuple(map(str, found["own"])), bool(found["engine"]), bool(found["proximal"]), str(found["layout"]))
    except (KeyError, TypeError) as error:
        raise MessageError("no list of the asks that it answers") from error


def make_call(function: Function, kind: str, message: Message, context: Context, frozen: Mapping[str, Numbers], order: list[str]) -> Call:
    """A user's own `train` or `evaluate` as a function of named arrays and a config.

    It gets the message that Flower's own strategies would send: the records `arrays` and `config`, of type `kind`. `frozen` are the arrays
    that are not sent, and `order` that of the state dict.
    """

    def call(arrays: Mapping[str, Numbers], config: Config) -> tuple[Mapping[str, Numbers], Mapping[str, Any]]:
        whole = {**frozen, **arrays}
        state = {name: Array(whole[name]) for name in order}
        metadata = deepcopy(message.metadata)
        metadata.message_type = kind
        request = Message(content=RecordDict({"arrays": ArrayRecord(state), "config": ConfigRecord(config)}), metadata=metadata)
        reply = function(request, context)
        if not isinstance(reply, Message) or not reply.has_content():
            raise UserError(f"{kind} returned no message with content: return Message(RecordDict(...), reply_to=message).")
        found = next((record for record in reply.content.values() if isinstance(record, ArrayRecord)), ArrayRecord())
        metrics = [record for record in reply.content.values() if isinstance(record, MetricRecord)]
        return {name: value.numpy() for name, value in found.items()}, {key: record[key] for record in metrics for key in record}

    return call
