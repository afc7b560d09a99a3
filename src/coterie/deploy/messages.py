"""What crosses the wire between a server and a site, as safetensors bytes with a JSON header. No pickle; only kinds that are listed here.

How asks are cut for a site is in `parcels`. Every message names the run and the hash of its order; names and texts are bounded where a
message is read, whoever sent it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

from coterie.core.arrays import Array
from coterie.core.asks import Error, Errors, Evaluate, Evaluated, Gradient, Gradients, Losses, LossTable, Share, Train, Trained
from coterie.core.local import Local
from coterie.core.serving import Mixture, Serving
from coterie.core.sketches import Sketch
from coterie.core.trees import UnknownKindError, pack, unpack
from coterie.data.schema import Schema
from coterie.deploy.denied import Denied
from coterie.deploy.names import LONGEST_TEXT, escape_text, is_name
from coterie.engines.engine import Stamped
from coterie.methods.combiners import AccuracyGate, Mean, MostConfident, Online, OwnExpert
from coterie.methods.ditto import Beside
from coterie.methods.moon import Contrast

PROTOCOL = 3
LIMIT = 1 << 31  # bytes of a message, unless a side sets less
LONGEST_SCHEMA = 1 << 22  # characters
LONGEST_WORD = 200  # of a column, a category or a class


M = TypeVar("M", "Parcel", "Answers", "Hello", "SiteCard", "Delivery", "Received")


class MessageError(ValueError):
    """Bytes that are no message, or not the one that was waited for."""


class PendingError(MessageError):
    """The site has not approved the order yet: it may be asked again."""


@dataclass(frozen=True)
class Parcel:
    """The asks of one phase for one site. `number` is drawn anew for each exchange: an answer must name it, so none counts twice."""

    protocol: int
    run: str
    number: str
    ids: tuple[str, ...]  # the site's clients that the asks are about: the asks say their places here
    asks: tuple[Stamped, ...]
    order: str = ""  # the hash of the order that the asks are part of


@dataclass(frozen=True)
class Answers:
    """A site's answers, in the order of the parcel's asks."""

    protocol: int
    run: str
    number: str
    ids: tuple[str, ...]
    answers: tuple[Any, ...]  # a Reply or a Denied each
    order: str = ""


@dataclass(frozen=True)
class Hello:
    """The first question of a run: who is there? With it travels the order in full, as canonical JSON (`orders.OrderTerms`).

    Without a schema a site describes its own columns. With one it answers in that schema, or says why it cannot.
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
    """What a site tells of itself: clients and counts as far as its policy lets it, and what its samples look like."""

    protocol: int
    run: str
    number: str
    version: str
    ids: tuple[str, ...]
    sizes: Array  # (n,) training samples; 1 where the site does not tell
    actual: Array  # (n, C) test samples by class; zeros where the site does not tell
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    validation: bool
    features: tuple[str, ...] = ()
    order: str = ""
    schema: str = ""  # its columns as JSON: the hello's schema, or its own; empty where samples have no named columns


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
class Received:
    """A site's receipt."""

    protocol: int
    run: str
    number: str
    folder: str
    order: str = ""


KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Parcel, Denied, Answers, Hello, SiteCard, Delivery, Received, Stamped),
        *(Train, Gradient, Losses, Error, Evaluate, Local, Share, Serving, Sketch),
        *(Trained, Gradients, LossTable, Errors, Evaluated),
        *(Mixture, Online, Mean, MostConfident, AccuracyGate, OwnExpert),
        *(Beside, Contrast),
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
        raise MessageError("nothing but an error of the other side, which its own log tells")
    if len(data) > limit:
        raise MessageError(f"a message of {len(data):,} bytes is over the limit of {limit:,}")
    try:
        found = unpack(data, KINDS)
    except UnknownKindError as error:
        raise MessageError(f"a message of an unknown kind ({error})") from error
    except (ValueError, OverflowError) as error:
        raise MessageError(f"no message that can be read ({escape_text(str(error), 200)})") from error
    if isinstance(found, Denied):
        raise (PendingError if found.cause == "pending" else MessageError)(f"the other side says: {escape_text(str(found.reason))}")
    if not isinstance(found, kind):
        raise MessageError(f"a {type(found).__name__} where a {kind.__name__} was waited for")
    if found.protocol != PROTOCOL:
        raise MessageError(
            f"a message of protocol {escape_text(str(found.protocol), 40)}, this side speaks {PROTOCOL}: "
            "install the same version of coterie on both sides"
        )
    if (fault := next(_find_faults(found), None)) is not None:
        raise MessageError(f"a {kind.__name__} with {fault}")
    return found


def _find_faults(message: Any) -> Iterator[str]:
    """What is wrong with the names and texts of a message: they become folders, files and lines of logs."""
    for name in ("run", "number"):
        if not is_name(getattr(message, name)):
            yield f"a {name} that is no name (letters, digits, - . = and _, at most 100 characters)"
    if not isinstance(message.order, str) or (message.order and not is_name(message.order)):
        yield "an order that is no hash"
    if isinstance(message, Received) and not is_name(message.folder):
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
    apart = ("terms", "schema")  # which have limits of their own
    if any(len(text) > LONGEST_TEXT for f in fields(message) if f.name not in apart for text in _texts(getattr(message, f.name))):
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
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise MessageError("a schema that cannot be read") from error
    words = [*found.classes, *(word for column in found.columns for word in (column.name, *column.categories))]
    if not found.columns or not all(0 < len(word) <= LONGEST_WORD and word.isprintable() for word in words):
        raise MessageError(f"a schema without columns, or with a name that is not printable text of 1 to {LONGEST_WORD} characters")
    if len(set(found.features)) < len(found.features):
        raise MessageError("a schema that names a feature twice")
    return found


def _texts(value: Any) -> Iterator[str]:
    """All texts within a value that was read from a message."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _texts(getattr(value, f.name))


def is_kind(data: bytes, kind: type) -> bool:
    """Whether the header names this kind; what is in it is checked when it is read."""
    head = data[8 : 8 + int.from_bytes(data[:8], "little")]
    return kind.__name__ in KINDS and f'\\"state\\": \\"{kind.__name__}\\"'.encode() in head
