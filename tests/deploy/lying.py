"""What a malicious site may say: makers of false messages, for tests and drills.

`CARDS`, `REPLIES` and `ANSWERS` are tables: by name, what is made of an honest message. `tell_lie` applies one of them to the bytes that an
honest site would send.

A whole site lies that is started with `lying_site` on its path, whose `sitecustomize` calls `install`: whoever has a site can run there
what they like. What it does to which of its messages stands in the file `lies.json` of its kit.
"""

import json
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.asks import Errors, Evaluated, LossTable, Refusal, Reply, Trained
from coterie.deploy.messages import Denial, MessageError, ReplyBatch, SiteCard, from_message, is_kind, to_message

# by the number of the training, or by "card" or "evaluation N", the lie that is sent; or "random": the share of lies
LIES = "lies.json"
TOLD = "lies_told.txt"  # the random ones, one a line
WIRE = ("20000000 bytes", "nonsense in FLARE's own form")  # lies about the message itself
OTHER = "hungary"  # a client of another site
PICKLE = b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94."

Change = Callable[[Any], Any]


def _clients(card: SiteCard, ids: tuple[Any, ...], **changes: Any) -> SiteCard:
    """The card with these clients, each with the numbers of the first one."""
    rows = np.zeros(len(ids), dtype=np.int64)
    return replace(card, ids=ids, **{"sizes": card.sizes[rows], "actual": card.actual[rows], **changes})


CARDS: Mapping[str, Callable[[SiteCard], SiteCard]] = {
    "a client of another site": lambda card: replace(card, ids=(OTHER, *card.ids[1:])),
    "another site's client too": lambda card: _clients(card, (*card.ids, OTHER)),
    "a client twice": lambda card: _clients(card, (card.ids[0], card.ids[0])),
    "no clients": lambda card: _clients(card, ()),
    "an empty id": lambda card: replace(card, ids=("",)),
    "an id of control characters": lambda card: replace(card, ids=("va\x1b[2J\n",)),
    "an id that turns writing round": lambda card: replace(card, ids=("va\u202egnp",)),
    "a very long id": lambda card: replace(card, ids=("v" * 100_000,)),
    "ids that are numbers": lambda card: replace(card, ids=(7,)),  # type: ignore[arg-type]
    "ids that are one word": lambda card: replace(card, ids="v"),  # type: ignore[arg-type]
    "100,001 clients": lambda card: _clients(card, tuple(f"c{i}" for i in range(100_001))),
    "a negative size": lambda card: replace(card, sizes=-card.sizes),
    "2^40 samples": lambda card: replace(card, sizes=np.full_like(card.sizes, 1 << 40)),
    "sizes that are no numbers": lambda card: replace(card, sizes=np.full(len(card.ids), np.nan)),
    "too many sizes": lambda card: replace(card, sizes=np.repeat(card.sizes, 2)),
    "no sizes": lambda card: replace(card, sizes=None),  # type: ignore[arg-type]
    "negative test counts": lambda card: replace(card, actual=-card.actual - 1),
    "2^40 test samples": lambda card: replace(card, actual=np.full_like(card.actual, 1 << 40)),
    "test counts whose sum is too large": lambda card: replace(card, actual=np.full_like(card.actual, (1 << 31) - 1)),
    "too many columns of test counts": lambda card: replace(card, actual=np.tile(card.actual, (1, 2))),
    "another shape": lambda card: replace(card, input_shape=(card.input_shape[0] + 1,)),
    "a negative shape": lambda card: replace(card, input_shape=(-1,)),
    "a huge shape": lambda card: replace(card, input_shape=(1 << 20, 1 << 20)),
    "a shape of text": lambda card: replace(card, input_shape=("13",)),  # type: ignore[arg-type]
    "other classes": lambda card: replace(card, classes=("x", "y")),
    "classes in another order": lambda card: replace(card, classes=card.classes[::-1]),
    "one class twice": lambda card: replace(card, classes=(card.classes[0],) * len(card.classes)),
    "more classes": lambda card: replace(card, classes=(*card.classes, "third"), actual=np.pad(card.actual, ((0, 0), (0, 1)))),
    "validation parts": lambda card: replace(card, validation=not card.validation),
    "validation that is a number": lambda card: replace(card, validation=7),  # type: ignore[arg-type]
    "a version of 5 MB": lambda card: replace(card, version="9" * 5_000_000),
    "a version that is a number": lambda card: replace(card, version=1),  # type: ignore[arg-type]
    "features of control characters": lambda card: replace(card, features=("\0",)),
    "another run": lambda card: replace(card, run="another"),
}


def _set(name: str, value: Any) -> Change:
    """The reply with one number in all places of a column."""
    return lambda reply: replace(reply, **{name: np.full_like(getattr(reply, name), value)})


def _first(counts: Any) -> Any:
    """All counts in the first column."""
    made = np.zeros_like(counts)
    made[:, 0] = counts.sum(axis=1)
    return made


# by kind of reply and by name, the lie and why it is refused
REPLIES: Mapping[type[Reply], Mapping[str, tuple[Change, Refusal]]] = {
    Trained: {
        "steps of -2^62": (_set("steps", -(1 << 62)), Refusal.INVALID),
        "2^62 steps": (_set("steps", 1 << 62), Refusal.INVALID),
        "a step too many": (lambda reply: replace(reply, steps=reply.steps + 1), Refusal.INVALID),
        "a negative size": (_set("sizes", -1), Refusal.INVALID),
        "2^40 samples": (_set("sizes", 1 << 40), Refusal.INVALID),
        "ten times the samples": (lambda reply: replace(reply, sizes=reply.sizes * 10), Refusal.MISCOUNTED),
        "a tenth of the samples": (lambda reply: replace(reply, sizes=reply.sizes // 10 + 1, steps=reply.steps * 0), Refusal.MISCOUNTED),
        "sizes that are fractions": (lambda reply: replace(reply, sizes=reply.sizes + 0.5), Refusal.UNREADABLE),
        "no number": (_set("vectors", np.nan), Refusal.NOT_FINITE),
        "another shape": (lambda reply: replace(reply, vectors=reply.vectors[:, :-1].copy()), Refusal.WRONG_SHAPE),
        "a hundred times too large": (lambda reply: replace(reply, vectors=(reply.vectors * 100).astype(np.float32)), Refusal.TOO_FAR),
        "a client twice": (lambda reply: reply.take(np.zeros(2, dtype=np.int64)), Refusal.UNREADABLE),
        "a client that was not asked": (lambda reply: replace(reply, clients=reply.clients + 1), Refusal.UNREADABLE),
        "a table in place of clients": (lambda reply: replace(reply, clients=reply.clients[:, None]), Refusal.UNREADABLE),
        "a word in place of sizes": (lambda reply: replace(reply, sizes="many"), Refusal.UNREADABLE),
        "another kind": (lambda reply: LossTable(reply.clients, np.zeros((1, 1)), reply.sizes), Refusal.UNREADABLE),
        "a reason of 10,000 characters": (lambda reply: Denial("x" * 10_000, "policy"), Refusal.UNREADABLE),
        "a reason of control characters": (lambda reply: Denial("\x1b[2J", "policy"), Refusal.FAILED),
        "a reason that is a number": (lambda reply: Denial(7), Refusal.FAILED),  # type: ignore[arg-type]
        "an unknown cause": (lambda reply: Denial("So.", "whim"), Refusal.FAILED),  # type: ignore[arg-type]
    },
    Evaluated: {
        "negative hits": (_set("hits", -1), Refusal.INVALID),
        "more hits than samples": (lambda reply: replace(reply, hits=reply.actual + 1), Refusal.INVALID),
        "all right, and all of one class": (
            lambda reply: replace(reply, hits=_first(reply.actual), predicted=_first(reply.actual)),
            Refusal.INVALID,
        ),
        "2^40 hits": (_set("hits", 1 << 40), Refusal.INVALID),
        "negative predictions": (_set("predicted", -5), Refusal.INVALID),
        "a prediction too many": (lambda reply: replace(reply, predicted=reply.predicted + 1), Refusal.INVALID),
        "ten times the samples": (
            lambda reply: replace(reply, hits=reply.hits * 10, predicted=reply.predicted * 10, actual=reply.actual * 10),
            Refusal.MISCOUNTED,
        ),
        "negative samples": (_set("actual", -1), Refusal.INVALID),
        "more classes": (
            lambda reply: replace(
                reply, **{name: np.pad(getattr(reply, name), ((0, 0), (0, 1))) for name in ("hits", "predicted", "actual")}
            ),
            Refusal.INVALID,
        ),
        "a negative loss": (_set("loss", -1.0), Refusal.INVALID),
        "an AUROC of 2": (_set("auroc", 2.0), Refusal.INVALID),
        "sums of another task": (lambda reply: replace(reply, sums=np.ones((len(reply), 2))), Refusal.INVALID),
        "bits of every sample": (lambda reply: replace(reply, answers=np.zeros((len(reply), 1 << 10), dtype=np.uint8)), Refusal.INVALID),
    },
    LossTable: {
        "a negative loss": (_set("losses", -1.0), Refusal.INVALID),
        "no number": (_set("losses", np.nan), Refusal.NOT_FINITE),
        "2^40 samples": (_set("sizes", 1 << 40), Refusal.INVALID),
    },
    Errors: {"a negative error": (_set("labels", -1.0), Refusal.INVALID)},
}


def _column(place: int = 0, **changes: Any) -> Change:
    """The answer with other values in one of its columns, or of a list in one of its entries."""

    def change(tree: Any) -> Any:
        (tree["columns"] if isinstance(tree, dict) else tree)[place] |= changes
        return tree

    return change


# by question about a table, what is made of the JSON of an honest answer
TABLES: Mapping[str, Mapping[str, Change]] = {
    "DescribeTable": {
        "a column of control characters": _column(name="\x1b]0;owned\x07"),
        "a name of a megabyte": _column(name="x" * 1_000_000),
        "a negative count": _column(rows=-5),
        "2^40 rows": _column(rows=1 << 40),
        "too many categories": _column(words=[[f"w{i}", 10] for i in range(20_000)]),
        "a range that is upside down": _column(1, low=9.0, middle=5.0, high=1.0),
        "a column twice": lambda tree: tree | {"columns": [tree["columns"][0]] * 2},
        "an unknown kind": _column(kind="code"),
        "another form": lambda tree: [tree],
    },
    "CheckTable": {
        "a column that the schema does not name": lambda tree: [
            {"kind": "lacks", "column": "other", "rows": None, "words": [], "factor": None}
        ],
        "negative rows": lambda tree: [{"kind": "bounds", "column": "age", "rows": -1, "words": [], "factor": None}],
        "an unknown finding": lambda tree: [{"kind": "owned", "column": "age", "rows": 1, "words": [], "factor": None}],
        "a factor of infinity": lambda tree: [{"kind": "units", "column": "age", "rows": 1, "words": [], "factor": 1e999}],
    },
    "SummarizeTable": {
        "a negative count": _column(count=-40),
        "a count that is no number": _column(count=float("nan")),
        "2^40 rows": _column(count=float(1 << 40)),
        "a negative variance": _column(variance=-1.0),
        "another column": _column(name="other"),
        "a column less": lambda tree: tree[:-1],
        "too many bins": _column(histogram=[10.0] * 5_000),
        "negative bins": _column(histogram=[-10.0] * 10),
    },
    "sums of a study": {
        "ten times its rows": lambda tree: _column(count=10.0 * tree[0]["count"])(tree),
        "a mean outside of the bounds": _column(mean=1e12),
        "a variance that no values have": _column(variance=1e9),
    },
    "CountTimes": {
        "a negative count": lambda tree: _column(events=[-1, *tree[0]["events"][1:]])(tree),
        "a count that is no number": lambda tree: _column(events=[float("nan"), *tree[0]["events"][1:]])(tree),
        "more samples than its card": lambda tree: _column(events=[count + 100 for count in tree[0]["events"]])(tree),
        "another number of intervals": lambda tree: _column(events=[*tree[0]["events"], 0])(tree),
        "a client of another site": _column(client="north"),
        "a client twice": lambda tree: tree * 2,
        "events that are one number": _column(events=7),
    },
    "event times": {
        "more events than rows": lambda tree: tree | {"events": [count + 1_000 for count in tree["events"]]},
        "ends that fall": lambda tree: tree | {"ends": tree["ends"][::-1]},
        "a negative time": lambda tree: tree | {"ends": [-1.0, *tree["ends"][1:]]},
        "fewer counts": lambda tree: tree | {"events": tree["events"][:-1]},
    },
}

# of survival times, what is made of the sums of an evaluation
TIME_SUMS: Mapping[str, tuple[Change, Refusal]] = {
    "a negative sum": (lambda sums: -sums, Refusal.INVALID),
    "sums that are no numbers": (lambda sums: sums * np.nan, Refusal.INVALID),
    "no sums": (lambda sums: sums[:, :0], Refusal.INVALID),
    "more right pairs than pairs": (lambda sums: sums + np.eye(7)[2] * 1e6, Refusal.INVALID),
    "more pairs than samples can have": (lambda sums: sums + np.eye(7)[5] * 1e6, Refusal.INVALID),
    "more events than samples": (lambda sums: sums + np.eye(7)[6] * 1e6, Refusal.INVALID),
    "an error that no sample has": (lambda sums: sums + np.eye(7)[1] * 1e6, Refusal.INVALID),
    "ten times the samples": (lambda sums: sums + np.eye(7)[0] * 9 * sums[:, :1], Refusal.MISCOUNTED),
}


# what is made of a site's answers to one batch, and why they are refused
ANSWERS: Mapping[str, tuple[Callable[[ReplyBatch], Any], Refusal]] = {
    "another run": (lambda response: replace(response, run="another"), Refusal.UNREADABLE),
    "another question": (lambda response: replace(response, number="00"), Refusal.UNREADABLE),
    "other clients": (lambda response: replace(response, ids=("somebody",)), Refusal.UNREADABLE),
    "fewer answers": (lambda response: replace(response, answers=response.answers[:-1]), Refusal.UNREADABLE),
    "a number in place of answers": (lambda response: replace(response, answers=7), Refusal.UNREADABLE),  # type: ignore[arg-type]
    "an answer that is a number": (lambda response: replace(response, answers=(7,) * len(response.answers)), Refusal.UNREADABLE),
    "an older protocol": (lambda response: replace(response, protocol=0), Refusal.UNREADABLE),
    "a pickle": (lambda response: PICKLE, Refusal.UNREADABLE),
    "half a message": (lambda response: to_message(response)[: len(to_message(response)) // 2], Refusal.UNREADABLE),
    "settings that cannot be": (lambda response: _with_bad_settings(response), Refusal.UNREADABLE),
    "a refusal of a megabyte": (lambda response: Denial("x" * 1_000_000), Refusal.TOO_LARGE),
    "a megabyte more": (lambda response: to_message(response) + b" " * (1 << 20), Refusal.TOO_LARGE),
}


def _with_bad_settings(response: ReplyBatch) -> bytes:
    """A reply that holds settings of a kind that may travel, and that nobody could have made."""
    from coterie.core.local import Local

    made = to_message(replace(response, answers=(Local(epochs=77),) * len(response.answers)))
    return made.replace(b'\\"value\\": 77', b'\\"value\\": -7')


def tell_lie(how: str, data: bytes) -> bytes:
    """What a malicious site sends in the place of an honest message: one of the lies of its kind."""
    if is_kind(data, SiteCard):
        return to_message(CARDS[how](from_message(data, SiteCard)))
    response = from_message(data, ReplyBatch)
    if how in ANSWERS:
        made = ANSWERS[how][0](response)
        return made if isinstance(made, bytes) else to_message(made)
    return to_message(replace(response, answers=tuple(REPLIES[type(reply)][how][0](reply) for reply in response.answers)))


def is_answer(data: bytes, kind: type[Reply]) -> bool:
    """Whether it is the answer to a batch whose first ask has such a reply."""
    try:
        return isinstance(from_message(data, ReplyBatch).answers[0], kind)
    except MessageError:
        return False


def install() -> None:
    """Answer as a site should, except for what the file names."""
    from nvflare.apis.signal import Signal

    from coterie.deploy.flare.jobs import KIT, CoterieExecutor

    honest, before = CoterieExecutor._answer, dict[str, list[bytes]]()
    chance = random.Random(os.getpid())

    def answer(self: CoterieExecutor, data: bytes, abort: Signal) -> bytes | None:
        response = honest(self, data, abort)
        lies = json.loads((Path(os.environ[KIT]) / LIES).read_text(encoding="utf-8"))
        if "random" in lies:
            return tell_random_lie(response, lies["random"], chance, Path(os.environ[KIT])) if response else response
        if response and is_kind(response, SiteCard):
            return tell_lie(lies["card"], response) if "card" in lies else response
        for kind, name in ((Trained, ""), (Evaluated, "evaluation ")):
            if response and is_answer(response, kind):
                reported = before.setdefault(name, [])
                reported.append(response)
                return _over_the_wire(lies.get(f"{name}{len(reported)}"), reported)
        return response

    CoterieExecutor._answer = answer  # type: ignore[method-assign]


def tell_random_lie(response: bytes, share: float, chance: random.Random, kit: Path) -> bytes:
    """An honest message, or with the chance `share` (of site cards a quarter of it) a random lie of its kind, which is written down."""
    card = is_kind(response, SiteCard)
    if chance.random() >= (share / 4 if card else share) or not (card or is_kind(response, ReplyBatch)):
        return response
    if card:
        how = chance.choice([how for how in CARDS if "another site" not in how])  # they name a client of `heart`
    else:
        how = chance.choice([*REPLIES.get(type(from_message(response, ReplyBatch).answers[0]), {}), *ANSWERS, *WIRE])
    with (kit / TOLD).open("a", encoding="utf-8") as file:
        file.write(how + "\n")
    return tell_lie(how, response) if card else _over_the_wire(how, [response])


def read_lies(kit: Path) -> list[str]:
    """The random lies that a site has told so far."""
    return (kit / TOLD).read_text(encoding="utf-8").splitlines() if (kit / TOLD).exists() else []


def _over_the_wire(how: str | None, reported: list[bytes]) -> bytes:
    """The last honest answer, or what is sent instead."""
    if how is None:
        return reported[-1]
    if how == "replay":
        return reported[-2]
    if how.endswith(" bytes"):
        return reported[-1] + bytes(int(how.split()[0]))
    if how.startswith("flood of "):
        flood(int(how.split()[2]))
        return reported[-1]
    if how == "nonsense in FLARE's own form":
        spoil_next_submission()
        return reported[-1]
    return tell_lie(how, reported[-1])


def flood(frames: int, size: int = 1 << 20) -> None:
    """Send the frames of a result that never ends, as fast as they go, whatever the other side says."""
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.message import Message
    from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamDataType, StreamHeaderKey

    (own,) = CoreCell.ALL_CELLS.values()
    target = f"server.{own.my_info.fqcn.partition('.')[2]}"
    about = {StreamHeaderKey.STREAM_ID: 77, StreamHeaderKey.CHANNEL: "server_command", StreamHeaderKey.TOPIC: "submit_update"}
    for number in range(frames):
        headers = {**about, StreamHeaderKey.DATA_TYPE: StreamDataType.CHUNK, StreamHeaderKey.SEQUENCE: number}
        own.fire_and_forget(STREAM_CHANNEL, STREAM_DATA_TOPIC, target, Message(headers, bytes(size)))


def spoil_next_submission() -> None:
    """Have FLARE send bytes that cannot be decoded in the place of the next result."""
    from nvflare.fuel.f3.cellnet import cell as cells
    from nvflare.fuel.f3.cellnet.cell import Cell

    send = Cell._send_one_request

    def spoiled(self: Cell, channel: str, target: str, topic: str, request: Any, *rest: Any, **more: Any) -> Any:
        if topic == "submit_update":
            Cell._send_one_request = send
            request.payload = b"\xc1 nothing that msgpack knows"
        return send(self, channel, target, topic, request, *rest, **more)

    assert cells.Cell is Cell
    Cell._send_one_request = spoiled
