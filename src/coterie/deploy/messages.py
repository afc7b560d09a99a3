"""What crosses the wire between a server and a site, as safetensors bytes with a JSON header. No pickle; only kinds that are listed here.

How asks are cut for a site is in `parcels`.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.core.arrays import Array
from coterie.core.asks import Error, Errors, Evaluate, Evaluated, Gradient, Gradients, Losses, LossTable, Share, Train, Trained
from coterie.core.local import Local
from coterie.core.serving import Mixture, Serving
from coterie.core.sketches import Sketch
from coterie.core.trees import UnknownKindError, pack, unpack
from coterie.deploy.denied import Denied
from coterie.engines.engine import Stamped
from coterie.methods.combiners import AccuracyGate, Mean, MostConfident, Online, OwnExpert
from coterie.methods.ditto import Beside
from coterie.methods.moon import Contrast

PROTOCOL = 1
LIMIT = 1 << 31  # bytes of a message, unless a side sets less


M = TypeVar("M", "Parcel", "Answers", "Hello", "SiteCard", "Delivery", "Received")


class MessageError(ValueError):
    """Bytes that are no message, or not the one that was waited for."""


@dataclass(frozen=True)
class Parcel:
    """The asks of one phase for one site. `number` is drawn anew for each exchange: an answer must name it, so none counts twice."""

    protocol: int
    run: str
    number: str
    ids: tuple[str, ...]  # the site's clients that the asks are about: the asks say their places here
    asks: tuple[Stamped, ...]


@dataclass(frozen=True)
class Answers:
    """A site's answers, in the order of the parcel's asks."""

    protocol: int
    run: str
    number: str
    ids: tuple[str, ...]
    answers: tuple[Any, ...]  # a Reply or a Denied each


@dataclass(frozen=True)
class Hello:
    """The first question of a run: who is there? With it travels what is to be trained."""

    protocol: int
    run: str
    number: str
    model: str
    version: str


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


@dataclass(frozen=True)
class Received:
    """A site's receipt."""

    protocol: int
    run: str
    number: str
    folder: str


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
        raise MessageError(f"no message that can be read ({str(error)[:200]})") from error
    if isinstance(found, Denied):
        raise MessageError(f"the other side says: {found.reason}")
    if not isinstance(found, kind):
        raise MessageError(f"a {type(found).__name__} where a {kind.__name__} was waited for")
    if found.protocol != PROTOCOL:
        raise MessageError(
            f"a message of protocol {found.protocol}, this side speaks {PROTOCOL}: install the same version of coterie on both sides"
        )
    return found


def is_kind(data: bytes, kind: type) -> bool:
    """Whether the header names this kind; what is in it is checked when it is read."""
    head = data[8 : 8 + int.from_bytes(data[:8], "little")]
    return kind.__name__ in KINDS and f'\\"state\\": \\"{kind.__name__}\\"'.encode() in head
