"""Messages between the server and the sites: what crosses the wire, as safetensors bytes with a JSON header.

No pickle is used, and only the listed kinds are read. Asks are cut for each site, so that it gets only the models its clients need.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, TypeVar

import numpy as np

from coterie.core.arrays import Array, Ids, Ints
from coterie.core.asks import (
    Ask,
    AskErrors,
    Errors,
    Evaluate,
    Evaluated,
    Gradient,
    Gradients,
    Losses,
    LossTable,
    ModelAsk,
    Reply,
    Share,
    Train,
    Trained,
)
from coterie.core.descriptions import AskSubspaces, Describe, Described, Subspaces
from coterie.core.local import Local
from coterie.core.serving import COMBINED, Combiner, Mixture, Neighbours, Serving
from coterie.core.states import UnknownKindError, pack, unpack
from coterie.core.vectors import Sketch
from coterie.data.schema import Schema
from coterie.deploy.files import LONGEST_TEXT, escape_text, is_name
from coterie.engines.engine import StampedAsk
from coterie.methods.apfl import APFLRule
from coterie.methods.combiners import AccuracyGate, ByRow, Mean, MostConfident, Online, OwnExpert
from coterie.methods.ditto import DittoRule
from coterie.methods.fedala import ALARule
from coterie.methods.moon import MOONRule
from coterie.methods.pfedgraph import GraphRule
from coterie.methods.private import PartRule
from coterie.methods.reporting_rules import LossRule, MixtureRule


@dataclass(frozen=True)
class Denial:
    """Why an ask has no reply, in one sentence that may leave the site."""

    reason: str
    # the site does not want to, no longer may, could not, or has not approved the order yet
    cause: Literal["policy", "budget", "failure", "pending"] = "policy"

    def __str__(self) -> str:
        return self.reason


def get_version() -> str:
    """The version of the package; "source" for what runs from a source tree."""
    try:
        return version("coterie")
    except PackageNotFoundError:
        return "source"


@dataclass(frozen=True)
class OversizedMessage:
    """In the place of a message: it was larger than it can be, and was dropped while it came in."""

    size: int
    limit: int


RawMessage = bytes | OversizedMessage
PROTOCOL = 6
LIMIT = 1 << 31  # bytes of a message; default of both sides
LONGEST_SCHEMA = 1 << 22  # characters
LONGEST_WORD = 200  # of a column, a category or a class
M = TypeVar("M", "AskBatch", "ReplyBatch", "Hello", "SiteCard", "Delivery", "Receipt", "TableAsk", "TableReply")


class MessageError(ValueError):
    """Bytes that are no message, or not the one that was waited for."""


class PendingError(MessageError):
    """The site has not approved the order yet: it may be asked again."""


@dataclass(frozen=True)
class AskBatch:
    """The asks of one phase for one site. `number` is new for each exchange: an answer must name it, so none counts twice."""

    protocol: int
    run: str
    number: str
    ids: tuple[str, ...]  # the site's clients that the asks are about: the asks hold their places here
    asks: tuple[StampedAsk, ...]
    order: str = ""  # the hash of the order that the asks are part of


@dataclass(frozen=True)
class ReplyBatch:
    """A site's answers, in the order of the batch's asks."""

    protocol: int
    run: str
    number: str
    ids: tuple[str, ...]
    answers: tuple[Any, ...]  # a Reply or a Denial each
    order: str = ""


@dataclass(frozen=True)
class Hello:
    """The first question of a run: which sites are there? With it travels the order in full, as canonical JSON (`orders.OrderTerms`).

    Without a schema a site describes its own columns. With one it answers in that schema, or with a reason why it cannot.
    """

    protocol: int
    run: str
    number: str
    model: str
    version: str
    order: str = ""
    terms: str = ""
    schema: str = ""  # the columns that the sites of the run agree on, as JSON (`data.schema.Schema`)


@dataclass(frozen=True)
class SiteCard:
    """What a site discloses of itself: clients and counts as far as its policy lets it, and what its samples look like."""

    protocol: int
    run: str
    number: str
    version: str
    ids: tuple[str, ...]
    sizes: Array  # (n,) training samples; 1 where the site does not disclose them
    actual: Array  # (n, C) test samples by class; zeros where the site does not disclose them
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    validation: bool
    features: tuple[str, ...] = ()
    order: str = ""
    schema: str = ""  # its columns as JSON: the hello's schema, or its own; empty where samples have no named columns
    aggregated: bool = False  # whether its one client stands for all of the site


@dataclass(frozen=True)
class Delivery:
    """What a site gets at the end of a run: what its clients are served by one method."""

    protocol: int
    run: str
    number: str
    method: str
    seed: int
    round_: int
    ids: tuple[str, ...]  # the clients that the serving's places mean
    serving: Serving
    names: tuple[str, ...]  # of the serving's models
    order: str = ""


@dataclass(frozen=True)
class Receipt:
    """A site's receipt."""

    protocol: int
    run: str
    number: str
    folder: str
    order: str = ""


@dataclass(frozen=True)
class TableAsk:
    """A question about a site's table, which the order holds: its plan names it. `terms` are the order in full, as in a hello; empty
    within a study, whose sites have approved it before and then report what all of them are prepared by: `question` is which."""

    protocol: int
    run: str
    number: str
    version: str
    order: str
    terms: str = ""
    question: str = "SummarizeTable"


@dataclass(frozen=True)
class TableReply:
    """A site's answer, as JSON (`deploy.table_answers`)."""

    protocol: int
    run: str
    number: str
    version: str
    order: str
    body: str


KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(AskBatch, Denial, ReplyBatch, Hello, SiteCard, Delivery, Receipt, StampedAsk, TableAsk, TableReply),
        *(Train, Gradient, Losses, AskErrors, Evaluate, Describe, AskSubspaces, Local, Share, Serving, Sketch),
        *(Trained, Gradients, LossTable, Errors, Evaluated, Described, Subspaces),
        *(Mixture, Online, Mean, MostConfident, AccuracyGate, OwnExpert, Neighbours),
        *(ALARule, APFLRule, DittoRule, GraphRule, LossRule, MixtureRule, MOONRule, PartRule),
        dict,
    )
}


def to_message(value: Any) -> bytes:
    """A message as bytes."""
    return pack(value, lambda kind: kind.__name__ if KINDS.get(kind.__name__) is kind else None)


def from_message(data: bytes, kind: type[M], limit: int = LIMIT) -> M:
    """The message of this kind that the bytes are."""
    if not isinstance(data, bytes):
        raise MessageError(f"a message is bytes, not {type(data).__name__}")
    if not data:
        raise MessageError("nothing but an error of the other side: see its own log")
    if len(data) > limit:
        raise MessageError(f"a message of {len(data):,} bytes is over the limit of {limit:,}")
    try:
        found = unpack(data, KINDS)
    except UnknownKindError as error:
        raise MessageError(f"a message of an unknown kind ({error})") from error
    except (ValueError, OverflowError) as error:
        raise MessageError(f"no message that can be read ({escape_text(str(error), 200)})") from error
    if isinstance(found, Denial):
        raise (PendingError if found.cause == "pending" else MessageError)(f"the other side reports: {escape_text(str(found.reason))}")
    if not isinstance(found, kind):
        raise MessageError(f"{type(found).__name__} instead of {kind.__name__}")
    if found.protocol != PROTOCOL:
        raise MessageError(
            f"a message of protocol {escape_text(str(found.protocol), 40)}, this side speaks {PROTOCOL}: "
            "install the same version of coterie on both sides"
        )
    if (fault := next(_find_faults(found), None)) is not None:
        raise MessageError(f"{kind.__name__} with {fault}")
    return found


def _find_faults(message: Any) -> Iterator[str]:
    """What is wrong with the names and texts of a message: they become folders, files and lines of logs."""
    for name in ("run", "number"):
        if not is_name(getattr(message, name)):
            yield f"a {name} that is no name (letters, digits, - . = and _, at most 100 characters)"
    if not isinstance(message.order, str) or (message.order and not is_name(message.order)):
        yield "an order that is no hash"
    if isinstance(message, Receipt) and not is_name(message.folder):
        yield "a folder that is no name"
    if isinstance(message, Delivery) and not isinstance(message.method, str):
        yield "a method that is no text"
    for name in ("ids", "names", "classes", "features"):
        texts = getattr(message, name, ())
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
            yield f"{name} that are no texts"
    if isinstance(message, (Hello, SiteCard)) and message.schema != "":
        try:
            read_schema(message.schema)
        except MessageError as error:
            yield str(error)
    apart = ("terms", "schema", "body")  # which have limits of their own
    if any(len(text) > LONGEST_TEXT for f in fields(message) if f.name not in apart for text in _list_texts(getattr(message, f.name))):
        yield f"a text of over {LONGEST_TEXT:,} characters"


def read_schema(text: str) -> Schema:
    """The schema that a message holds.

    Raises:
        MessageError: It is too long, no schema, or has a name that cannot be shown.
    """
    if not isinstance(text, str) or len(text) > LONGEST_SCHEMA:
        raise MessageError(f"a schema that is no text of at most {LONGEST_SCHEMA:,} characters")
    try:
        found = Schema.from_json(text)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # a UserError is a ValueError, too
        raise MessageError("a schema that cannot be read") from error
    words = [*found.classes, *(word for column in found.columns for word in (column.name, *column.categories))]
    if not found.columns or not all(0 < len(word) <= LONGEST_WORD and word.isprintable() for word in words):
        raise MessageError(f"a schema without columns, or with a name that is not printable text of 1 to {LONGEST_WORD} characters")
    if len(set(found.features)) < len(found.features):
        raise MessageError("a schema that names a feature twice")
    return found


def _list_texts(value: Any) -> Iterator[str]:
    """All texts within a value that was read from a message."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _list_texts(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _list_texts(key)
            yield from _list_texts(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _list_texts(getattr(value, f.name))


def is_kind(data: bytes, kind: type) -> bool:
    """Whether the header names this kind; what is in it is checked when it is read."""
    head = data[8 : 8 + int.from_bytes(data[:8], "little")]
    return kind.__name__ in KINDS and f'\\"state\\": \\"{kind.__name__}\\"'.encode() in head


COMBINERS: dict[str, type] = {
    kind.__name__: kind for kind in (AccuracyGate, ByRow, Mean, Mixture, MostConfident, Online, OwnExpert)
}  # all that a bundle may name


def get_combiner_name(kind: type) -> str | None:
    """How a bundle calls a kind of combiner; None for one that a reader would not know."""
    return kind.__name__ if COMBINERS.get(kind.__name__) is kind else None


def restrict_combiner(combiner: Combiner, places: Ints) -> Combiner:
    """The combiner with rows for these places only, in this order: a site does not learn what others are served."""
    match combiner:
        case Mixture():
            return replace(combiner, weights=combiner.weights[places])
        case OwnExpert():
            return replace(combiner, experts=combiner.experts[places])
        case ByRow():
            own = [combiner.combiners[place] for place in places.tolist()]
            return ByRow(tuple(None if one is None else restrict_combiner(one, places) for one in own))
    return combiner


def make_batch(asks: Sequence[StampedAsk], ids: Sequence[str], rows: Sequence[Ids], run: str, number: str, order: str = "") -> AskBatch:
    """The asks cut for one site: `rows[i]` are the places of its clients in ask i, `ids[c]` is the id of the server's client c."""
    numbers = sorted({int(c) for stamped, own in zip(asks, rows, strict=True) for c in get_clients(stamped.ask)[own]})
    place = {client: i for i, client in enumerate(numbers)}
    cut = []
    for stamped, own in zip(asks, rows, strict=True):
        ask = drop_unused_models(stamped.ask.take(own))  # type: ignore[attr-defined]
        renumbered = np.array([place[int(c)] for c in get_clients(ask)], dtype=np.int64)
        cut.append(replace(stamped, ask=replace_clients(ask, renumbered), lane=0))
    return AskBatch(PROTOCOL, run, number, tuple(ids[c] for c in numbers), tuple(cut), order)


def get_clients(ask: Ask[Any]) -> Ids:
    """The clients that an ask is about."""
    found: Ids = ask.clients  # type: ignore[attr-defined]
    return found


def replace_clients(ask: Any, clients: Ids) -> Any:
    """The same question with other numbers for the same clients."""
    if isinstance(ask, Evaluate):
        return replace(ask, serving=replace(ask.serving, clients=clients))
    return replace(ask, clients=clients)


def drop_unused_models(ask: Any) -> Any:
    """The ask with only the models that its clients need: other groups' models stay with those groups."""
    if isinstance(ask, Evaluate):  # which samples are right stays at the site
        return replace(ask, serving=restrict_serving(ask.serving), answers=False)
    if not isinstance(ask, ModelAsk) or ask.every_model or not len(ask.clients):
        return ask
    used, start = np.unique(ask.start, return_inverse=True)
    return replace(ask, models=ask.models[used], start=start.astype(np.int64))


def restrict_serving(serving: Serving) -> Serving:
    """The serving with the models of its clients alone, and a combiner without the other clients."""
    places = np.arange(len(serving.clients), dtype=np.int64)
    if serving.neighbours is not None:
        serving = replace(serving, neighbours=replace(serving.neighbours, weights=serving.neighbours.weights[serving.places]))
    if (serving.rows == COMBINED).any() and serving.combiner is not None:
        return replace(serving, combiner=restrict_combiner(serving.combiner, serving.places), places=places)
    if not len(serving.rows):
        return serving
    used, rows = np.unique(serving.rows, return_inverse=True)
    return replace(serving, models=serving.models[used], rows=rows.astype(np.int64), combiner=None, places=places)


def split_by_client(reply: Reply) -> dict[int, dict[str, Array]]:
    """By client, its row of every column."""
    names = reply.columns()
    return {int(client): {name: getattr(reply, name)[i] for name in names} for i, client in enumerate(reply.clients)}
