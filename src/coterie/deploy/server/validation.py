"""Validation of messages from sites: every field is checked where it comes in, against what the federation knows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np

from coterie.core.arrays import Array, Doubles, Ints, find_positions
from coterie.core.asks import Ask, Errors, Evaluate, Evaluated, Gradients, LossTable, Refusal, Reply, Train, Trained
from coterie.core.descriptions import Described, Subspaces
from coterie.core.local import MODEL
from coterie.core.survival import LEAST_KNOWN
from coterie.core.tasks import CLASSIFICATION, Task
from coterie.deploy.messages import (
    AskBatch,
    Delivery,
    Denial,
    Hello,
    MessageError,
    OversizedMessage,
    PendingError,
    RawMessage,
    Receipt,
    ReplyBatch,
    SiteCard,
    TableAsk,
    TableReply,
    from_message,
    get_clients,
    read_schema,
)
from coterie.deploy.table_answers import LONGEST_BODY

MOST = (1 << 31) - 1  # of any count: evidence holds them in 32 bits
MOST_CLIENTS = 100_000  # of a site that the operator's roster does not name
MOST_NUMBERS = 1 << 24  # in a sample
MOST_CLASSES = 100_000
NAME, REASON, SHOWN = 200, 500, 300  # characters of a name, of a reason for a refusal, and of what is shown of any text from a site
HUNDRED = 100  # test samples that a site claims where it does not disclose how many
CARD_BYTES, RECEIPT_BYTES, TABLE_BYTES = 16 << 20, 16 << 10, 16 << 20

BASE_BYTES, ASK_BYTES, CHARACTER_BYTES = 64 << 10, 8 << 10, 16  # of a reply beside its numbers: at most, by ask, by character of an id

T = TypeVar("T", ReplyBatch, SiteCard, Receipt, TableReply)


class InvalidMessageError(MessageError):
    """A message that can be read and holds what cannot be right."""

    def __init__(self, text: str, why: Refusal = Refusal.INVALID) -> None:
        super().__init__(text)
        self.why = why


@dataclass(frozen=True)
class ClientFacts:
    """What the cards of a run state of the clients of one batch, in the order of its ids."""

    classes: int  # columns of an evaluation
    tests: Ints  # (n, C) test samples by class; zeros where the site does not disclose them
    sizes: Ints | None = None  # (n,) training samples; None where those of a reply are believed
    task: Task = CLASSIFICATION


@dataclass(frozen=True)
class ReplyContext:
    """What a reply is checked against."""

    ask: Any
    known: ClientFacts | None = None

    def rows(self, reply: Reply) -> Ints:
        """For each row of the reply, the client's place in the ask."""
        return find_positions(get_clients(self.ask), reply.clients)

    @property
    def part(self) -> str:
        return str(getattr(self.ask, "part", "train"))


@dataclass(frozen=True)
class Rule:
    """What a field must be. `holds` sees its value, the whole message and what it is checked against."""

    wanted: str  # as in: sizes should be ...
    holds: Callable[[Any, Any, Any], bool]
    why: Refusal = Refusal.INVALID


Rules = Mapping[str, tuple[Rule, ...]]


def text_rule(most: int, *, empty: bool = False) -> Rule:
    """Printable text of so many characters."""
    return Rule(f"printable text of at most {most} characters", lambda value, *_: is_text(value, most, empty=empty))


def texts_rule(most: int, length: int = NAME, *, least: int = 0, distinct: bool = True) -> Rule:
    """So many texts, no two alike."""

    def holds(value: Any, *_: Any) -> bool:
        listed = isinstance(value, tuple) and least <= len(value) <= most and all(is_text(each, length) for each in value)
        return listed and (not distinct or len(set(value)) == len(value))

    different = ", no two alike" if distinct else ""
    return Rule(f"{least} to {most:,} printable names of 1 to {length} characters{different}", holds)


def is_text(value: Any, most: int, *, empty: bool = False) -> bool:
    """Whether it is printable text of a length that can be shown: no control characters, nothing that turns the direction of writing."""
    return isinstance(value, str) and (empty or bool(value)) and len(value) <= most and value.isprintable()


def clean_text(words: object, most: int = SHOWN) -> str:
    """Text that a site may have had a part in, as it may be shown and kept."""
    cut = str(words)[:most]
    return "".join(c if c.isprintable() else "?" for c in cut) + ("..." if len(str(words)) > most else "")


def _counts_rule(shape: Callable[[Any], tuple[int, ...]]) -> Rule:
    """Whole numbers that evidence can hold, in an array of the shape that the rest of the message states."""

    def holds(value: Any, message: Any, _: Any) -> bool:
        return isinstance(value, np.ndarray) and value.dtype == np.int64 and value.shape == shape(message) and _is_countable(value)

    return Rule(f"whole numbers from 0 to {MOST:,}, a row a client", holds)


def _is_countable(value: Array) -> bool:
    """Whether all numbers, and the sum of each client's, can be counts."""
    if not value.size:
        return True
    if value.min() < 0 or value.max() > MOST:
        return False
    return value.ndim == 1 or bool(value.sum(axis=1).max() <= MOST)


def _is_shape(value: Any, *_: Any) -> bool:
    sound = isinstance(value, tuple) and 1 <= len(value) <= 8 and all(type(each) is int and 1 <= each <= MOST_NUMBERS for each in value)
    return sound and prod(value) <= MOST_NUMBERS


def _fits_schema(value: Any, card: SiteCard, _: Any) -> bool:
    """Whether the schema of a card is one of the features, the classes and the shape that the card names."""
    if value == "":
        return True
    found = read_schema(value)
    named = any(column.kind == "text" for column in found.columns) or found.features == tuple(card.features)
    return named and (found.classes, found.shape) == (tuple(card.classes), tuple(card.input_shape))


CARD: Rules = {
    "version": (text_rule(64),),
    "ids": (texts_rule(MOST_CLIENTS, least=1),),
    "classes": (texts_rule(MOST_CLASSES, least=1),),
    "sizes": (_counts_rule(lambda card: (len(card.ids),)),),
    "actual": (_counts_rule(lambda card: (len(card.ids), len(card.classes))),),
    "input_shape": (Rule(f"1 to 8 whole numbers above 0 whose product is at most {MOST_NUMBERS:,}", _is_shape),),
    "validation": (Rule("true or false", lambda value, *_: isinstance(value, bool)),),
    "features": (texts_rule(MOST_NUMBERS, distinct=False),),
    "aggregated": (Rule("true of one client alone", lambda value, card, _: value is False or (value is True and len(card.ids) == 1)),),
    "schema": (Rule("empty, or the schema of the card's features, classes and shape", _fits_schema),),
}

RECEIPT: Rules = {"folder": (text_rule(NAME),)}

# what the body holds is read, and checked, by the question: `deploy.table_answers.RULES`
TABLE: Rules = {
    "version": (text_rule(64),),
    "body": (Rule(f"text of at most {LONGEST_BODY:,} characters", lambda body, *_: isinstance(body, str) and len(body) <= LONGEST_BODY),),
}

DENIAL: Rules = {
    "reason": (text_rule(REASON),),
    "cause": (Rule("policy, budget or failure", lambda value, *_: value in ("policy", "budget", "failure")),),
}


def _fits_card(value: Ints, reply: Any, asked: ReplyContext) -> bool:
    if asked.known is None or asked.known.sizes is None or asked.part != "train":
        return True
    return bool((value <= np.maximum(asked.known.sizes[reply.clients], 1)).all())  # a site that discloses no sizes sends one for all


def _fits_work(value: Ints, reply: Trained, asked: ReplyContext) -> bool:
    """No more steps than the epochs asked for take on so many samples; a site that does not disclose them sends one."""
    ask: Train = asked.ask
    epochs = np.full(len(reply), ask.local.epochs) if ask.epochs is None else ask.epochs[asked.rows(reply)]
    if ask.local.rule is not None:
        epochs = np.array([ask.local.rule.epochs(MODEL, int(each)) for each in epochs], dtype=np.int64)
    samples = np.maximum(reply.sizes, 1)
    most = np.maximum(epochs, 0) * -(-samples // (ask.local.batch_size or samples))
    most = most if ask.local.max_steps is None else np.minimum(most, ask.local.max_steps)
    return bool((value <= np.maximum(most, 1)).all())


def _has_classes(value: Ints, reply: Evaluated, asked: ReplyContext) -> bool:
    wide = asked.known is None or value.shape == (len(reply), asked.known.classes)
    return wide and value.ndim == 2 and value.shape == reply.actual.shape and _is_countable(value)


def _fits_tests(value: Ints, reply: Evaluated, asked: ReplyContext) -> bool:
    """The test samples of the card, all of them as one class, or the hundred of a site that does not disclose how many there are."""
    if asked.known is None or asked.part != "test" or getattr(asked.ask, "share", None) is not None:
        return True
    card = asked.known.tests[reply.clients]
    if not asked.known.task.counts_classes:  # whose samples are among its sums
        return True
    one_class = np.zeros_like(value)
    one_class[:, 0] = 1
    total = card.sum(axis=1, keepdims=True)
    ways = (value == card, value == one_class * total, value == one_class * HUNDRED * (total > 0))
    return bool(np.any([way.all(axis=1) for way in ways] + [total[:, 0] == 0], axis=0).all())


def _has_sums(value: Doubles, reply: Evaluated, asked: ReplyContext) -> bool:
    """Whether what a task sums up can be right: of survival times no more pairs, events and errors than so many samples can have."""
    if asked.known is None:
        return True
    task = asked.known.task
    if value.shape != (len(reply), len(task.sums)) or not bool(np.isfinite(value).all() and (value >= 0).all()):
        return False
    if task.name != "survival":
        return True
    samples, brier, concordant, expected, usual, pairs, events = value.T
    bounds = (
        (samples, float(MOST)),
        (np.maximum(brier, usual), samples / LEAST_KNOWN),
        (events, samples),
        (expected, samples * (len(task.grid) - 1)),
        (pairs, samples * (samples - 1) / 2),
        (concordant, pairs),
    )
    return all(bool((own <= most * (1 + 1e-9)).all()) for own, most in bounds)


def _fits_sampled(value: Doubles, reply: Evaluated, asked: ReplyContext) -> bool:
    """Among sums, the test samples of the card, or the hundred of a site that does not disclose how many there are."""
    if asked.known is None or not value.shape[1] or asked.part != "test" or getattr(asked.ask, "share", None) is not None:
        return True
    total = asked.known.tests[reply.clients].sum(axis=1)
    return bool(((value[:, 0] == total) | (total == 0)).all())


def _are_directions(value: Any, *_: Any) -> bool:
    lengths = np.linalg.norm(value.astype(np.float64), axis=-1)
    return bool((np.isclose(lengths, 1.0, atol=1e-3) | (lengths == 0)).all())


COUNTS = Rule(f"whole numbers from 0 to {MOST:,}", lambda value, *_: _is_countable(value))
AT_LEAST_ZERO = Rule("not below zero", lambda value, *_: not (value < 0).any())
SIZES = (COUNTS, Rule("no more samples than the site's card has", _fits_card, Refusal.MISCOUNTED))
COUNTS_WITHIN = (COUNTS, Rule("no more than the client's samples", lambda value, reply, _: bool((value <= reply.sizes[:, None]).all())))
BY_CLASS = Rule(f"whole numbers from 0 to {MOST:,}, one for each class", _has_classes)

REPLIES: Mapping[type[Reply], Rules] = {
    Trained: {
        "sizes": SIZES,
        "steps": (COUNTS, Rule("no more steps than the epochs asked for take", _fits_work)),
        "summary": (AT_LEAST_ZERO,),
    },
    Described: {
        "sizes": SIZES,
        "counts": COUNTS_WITHIN,
        "deviations": (AT_LEAST_ZERO,),
    },
    Subspaces: {"sizes": SIZES, "counts": COUNTS_WITHIN, "bases": (Rule("directions of length one, or zeros", _are_directions),)},
    Gradients: {"sizes": SIZES},  # a loss that has been noised may lie below zero
    LossTable: {"sizes": SIZES, "losses": (AT_LEAST_ZERO,)},
    Errors: {"sizes": SIZES, "labels": (AT_LEAST_ZERO,), "probabilities": (AT_LEAST_ZERO,)},
    Evaluated: {
        "actual": (BY_CLASS, Rule("the test samples that the site's card names", _fits_tests, Refusal.MISCOUNTED)),
        "hits": (
            BY_CLASS,
            Rule("no more than the samples of the class", lambda value, reply, _: bool((value <= reply.actual).all())),
            Rule("no more than the predictions of the class", lambda value, reply, _: bool((value <= reply.predicted).all())),
        ),
        "predicted": (
            BY_CLASS,
            Rule("one prediction for each sample", lambda value, reply, _: bool((value.sum(axis=1) == reply.actual.sum(axis=1)).all())),
        ),
        "loss": (AT_LEAST_ZERO,),  # no number where there are no samples, or where the model has run away
        "auroc": (Rule("from 0 to 1, or no number", lambda value, *_: not ((value < 0) | (value > 1)).any()),),
        "sums": (
            Rule("finite, not below zero, and no more than so many samples can have", _has_sums),
            Rule("of the test samples that the site's card names", _fits_sampled, Refusal.MISCOUNTED),
        ),
        "answers": (Rule("left out", lambda value, *_: value is None),),
    },
}


def check_fields(message: Any, rules: Rules, against: Any = None) -> None:
    """Refuse a message of which a field breaks a rule."""
    for name, own in rules.items():
        for rule in own:
            try:
                holds = rule.holds(getattr(message, name), message, against)
            except Exception:  # whatever a value of another type makes of the rule
                holds = False
            if not holds:
                raise InvalidMessageError(f"the field {name} of a {type(message).__name__} should be {rule.wanted}", rule.why)


def check_reply(reply: Any, ask: Ask[Any], known: ClientFacts | None = None) -> None:
    """Refuse a reply that is not of the kind asked for, not about these clients, or that holds what cannot be right."""
    kind = type(reply).__name__
    if type(reply) is not ask.reply:
        raise MessageError(f"a {kind} where {type(ask).__name__} asks for a {ask.reply.__name__}")
    clients = reply.clients
    if not isinstance(clients, np.ndarray) or clients.dtype != np.int64 or clients.ndim != 1:
        raise MessageError(f"the clients of a {kind} are no list of numbers")
    if len(np.unique(clients)) != len(clients) or not np.isin(clients, get_clients(ask)).all():
        raise MessageError(f"a {kind} names a client twice, or one that was not in the batch")
    for name, details in reply.columns().items():
        value, dtype = getattr(reply, name), np.dtype(details["dtype"])
        if not isinstance(value, np.ndarray) or value.dtype != dtype or not value.ndim or len(value) != len(clients):
            raise MessageError(f"the column {name} of a {kind} is not {dtype}, a row a client")
    if len(clients):  # that of no client holds nothing that could be wrong
        check_fields(reply, REPLIES[type(reply)], ReplyContext(ask, known))


def check_denial(denied: Denial) -> Denial:
    """A site's denial, as it may be kept."""
    try:
        check_fields(denied, DENIAL)
    except InvalidMessageError as error:
        return Denial(f"The site gives no reason that can be shown: {error}.", "failure")
    return denied


def read_answers(data: RawMessage, batch: AskBatch, limit: int) -> ReplyBatch:
    """A site's answers to a batch: one for each of its asks."""
    found = _read_message(data, ReplyBatch, limit)
    if (found.run, found.number, found.ids) != (batch.run, batch.number, batch.ids):
        raise MessageError("an answer to another question")
    if found.order != batch.order:
        raise MessageError("an answer to another order")
    if not isinstance(found.answers, tuple) or len(found.answers) != len(batch.asks):
        raise MessageError("an answer to another question")
    return found


def read_card(data: RawMessage, hello: Hello, limit: int) -> SiteCard:
    """A site's card, if it answers this question."""
    return _check_answer(_read_message(data, SiteCard, min(limit, CARD_BYTES)), hello, CARD)


def read_receipt(data: RawMessage, delivery: Delivery, limit: int) -> Receipt:
    """A site's receipt, if it answers this delivery."""
    return _check_answer(_read_message(data, Receipt, min(limit, RECEIPT_BYTES)), delivery, RECEIPT)


def read_table_reply(data: RawMessage, ask: TableAsk, limit: int) -> TableReply:
    """A site's answer about its table, if it answers this question."""
    return _check_answer(_read_message(data, TableReply, min(limit, TABLE_BYTES)), ask, TABLE)


def _check_answer(found: T, asked: Hello | Delivery | TableAsk, rules: Rules) -> T:
    if (found.run, found.number, found.order) != (asked.run, asked.number, asked.order):
        raise MessageError("an answer to another question")
    check_fields(found, rules)
    return found


def _read_message(data: RawMessage, kind: type[T], limit: int) -> T:
    """The message; whatever goes wrong in reading it is the site's fault."""
    if isinstance(data, OversizedMessage):
        raise InvalidMessageError(
            f"a message of {data.size:,} bytes or more, where this answer has {data.limit:,} at most", Refusal.TOO_LARGE
        )
    if isinstance(data, bytes) and len(data) > limit:
        raise InvalidMessageError(f"a message of {len(data):,} bytes, where this answer has {limit:,} at most", Refusal.TOO_LARGE)
    try:
        return from_message(data, kind, limit)
    except PendingError:
        raise
    except MessageError as error:
        raise MessageError(clean_text(error)) from error
    except Exception as error:  # a value that one of the kinds refuses to be made of
        raise MessageError(clean_text(f"no message that can be read ({type(error).__name__})")) from error


def compute_max_bytes(batch: AskBatch, classes: int | None, sums: int = 0) -> int | None:
    """The most bytes of an honest answer to a batch; None where the number of classes is not known and matters. `sums` are the task's."""
    total = BASE_BYTES + CHARACTER_BYTES * sum(len(name) + 4 for name in batch.ids)
    for stamped in batch.asks:
        ask: Any = stamped.ask
        if isinstance(ask, Evaluate) and classes is None:
            return None
        shapes = ask.row_shapes()
        row = 8
        for name, details in ask.reply.columns().items():
            shape = shapes.get(name, () if not details["axes"] else (sums,) if name == "sums" else (classes,) * details["axes"])
            row += np.dtype(details["dtype"]).itemsize * prod(shape)
        total += ASK_BYTES + row * len(get_clients(ask))
    return total
