"""A site's answers to what a server sends: bytes in, bytes out. What may be answered at all is the policy's affair (`site`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from coterie.core.asks import Ask, Evaluated, Reply
from coterie.data.federation import Federation
from coterie.data.schema import Schema
from coterie.deploy.denied import Denied
from coterie.deploy.messages import LIMIT, PROTOCOL, Answers, Hello, Parcel, SiteCard, from_message, to_message
from coterie.deploy.names import escape_text
from coterie.deploy.parcels import clients_of, with_clients
from coterie.engines.engine import Stamped
from coterie.engines.world import World

AnswerAll = Callable[[Sequence[Stamped]], list[Any]]  # a Reply, or a Denied, for each ask; clients by the site's own numbers


def answer_parcel(
    data: bytes, world: World, answer: AnswerAll, limit: int = LIMIT, tell: Callable[[Denied], None] = lambda denied: None
) -> bytes:
    """The answers to a parcel. Clients get the numbers they have here, and on the way back those of the parcel. `tell` hears of a parcel
    that is refused as a whole, of which `answer` never does."""
    parcel = from_message(data, Parcel, limit)
    own = {name: i for i, name in enumerate(world.federation.ids)}
    fault = next(_find_faults(parcel, own), None)
    if fault is not None:
        denied = Denied(fault, "failure")
        tell(denied)
        replies: list[Any] = [denied] * len(parcel.asks)
    else:
        here = np.array([own[name] for name in parcel.ids], dtype=np.int64)
        replies = answer([replace(stamped, ask=with_clients(stamped.ask, here[clients_of(stamped.ask)])) for stamped in parcel.asks])
        back = {int(client): place for place, client in enumerate(here)}
        replies = [_renumbered(reply, back) if isinstance(reply, Reply) else reply for reply in replies]
    return to_message(Answers(PROTOCOL, parcel.run, parcel.number, parcel.ids, tuple(replies), parcel.order))


def _find_faults(parcel: Parcel, own: Mapping[str, int]) -> Iterator[str]:
    """What is wrong with a parcel before any of its asks is looked at."""
    if unknown := [name for name in parcel.ids if name not in own]:
        yield f"no client {escape_text(unknown[0], 100)!r} here"
    if len(set(parcel.ids)) < len(parcel.ids):
        yield "a parcel names a client twice"
    if not isinstance(parcel.asks, tuple) or not all(isinstance(one, Stamped) and isinstance(one.ask, Ask) for one in parcel.asks):
        yield "a parcel holds something that is no ask"
        return
    for stamped in parcel.asks:
        clients = getattr(getattr(stamped.ask, "serving", stamped.ask), "clients", None)
        if not isinstance(clients, np.ndarray) or clients.ndim != 1 or clients.dtype.kind != "i":
            yield f"the clients of a {type(stamped.ask).__name__} are no list of numbers"
        elif len(clients) and not 0 <= clients.min() <= clients.max() < len(parcel.ids):
            yield f"a {type(stamped.ask).__name__} is about a client that the parcel does not name"


def _renumbered(reply: Reply, back: dict[int, int]) -> Reply:
    if isinstance(reply, Evaluated):  # which samples are right stays here, whoever asks
        reply = replace(reply, answers=None)
    return replace(reply, clients=np.array([back[int(c)] for c in reply.clients], dtype=np.int64), refused={})


def site_card(hello: Hello, world: World, *, tells_sizes: bool = True, tells_tests: bool = True) -> SiteCard:
    """What the site tells of itself; where the hello names a schema, the world is in its form already."""
    federation = world.federation
    owners = np.repeat(np.arange(len(federation)), federation.test.sizes)
    classes = len(federation.classes)
    actual = np.bincount(owners * classes + federation.y[federation.test.indices], minlength=len(federation) * classes)
    return SiteCard(
        PROTOCOL,
        hello.run,
        hello.number,
        coterie_version(),
        federation.ids,
        sizes=federation.train.sizes.astype(np.int64) if tells_sizes else np.ones(len(federation), dtype=np.int64),
        actual=actual.reshape(-1, classes).astype(np.int64) if tells_tests else np.zeros((len(federation), classes), dtype=np.int64),
        input_shape=federation.input_shape,
        classes=federation.classes,
        validation=federation.validation is not None,
        features=tuple(map(str, federation.provenance.get("features", ()))),
        order=hello.order,
        schema=hello.schema or describe_columns(federation),
    )


def describe_columns(federation: Federation) -> str:
    """The schema that a site tells of its data: names of columns, words and classes. Empty where the samples have no named columns."""
    own = Schema.of(federation)
    return own.shared().to_json() if own.columns else ""


def coterie_version() -> str:
    """The version of the package; what runs from a source tree says so."""
    try:
        return version("coterie")
    except PackageNotFoundError:
        return "source"
