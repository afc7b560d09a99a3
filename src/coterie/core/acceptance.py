"""What the server does with replies before a method sees them: sort, and refuse what cannot be right, with a reason.

A refused client is simply absent, like one that never answered; the reason goes into the record.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from coterie.core.arrays import Array, Bools, Ids
from coterie.core.asks import Reply, Shapes
from coterie.core.held import Held
from coterie.core.limits import Limits, Moves
from coterie.core.refusals import Refusal, Refused
from coterie.core.threads import cores, in_order

R = TypeVar("R", bound=Reply)
WORTH_THREADS = 1 << 22  # numbers
PIECE = 1 << 20  # numbers that a thread looks at together
ClientRow = dict[str, Array]


def nobody(ask: Any) -> Any:
    """The reply of nobody."""
    return assemble(ask, {})


def assemble(ask: Any, answers: Mapping[int, Mapping[str, Any]]) -> Any:
    """One reply from separate clients' answers, as a real federation returns them.

    An answer whose shapes or types are wrong is refused by itself, so that one odd client costs nobody else the round.
    """
    columns, refused, rows, known = ask.reply.columns(), {}, {}, ask.row_shapes()
    empty = {name: np.zeros((0,) * told["axes"]) for name, told in columns.items() if told["optional"]}
    empty |= {name: np.zeros(shape) for name, shape in known.items() if 0 in shape}  # what holds no number need not be sent
    for client in sorted(answers):
        try:
            with np.errstate(all="ignore"):  # too large for float32 becomes infinite, which `accept` refuses
                rows[client] = {name: _read({**empty, **answers[client]}[name], told["dtype"]) for name, told in columns.items()}
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            refused[client] = Refused(Refusal.UNREADABLE, f"{type(error).__name__}: {error}")
    shapes = {name: known.get(name, _usual(rows, name, told["axes"])) for name, told in columns.items()}
    for client in list(rows):
        wrong = _misshapen(rows[client], shapes)
        if wrong:
            refused[client] = Refused(Refusal.WRONG_SHAPE, wrong)
            del rows[client]
    stacked = {
        name: np.stack([row[name] for row in rows.values()]) if rows else np.zeros((0, *shapes[name]), dtype=told["dtype"])
        for name, told in columns.items()
    }
    return ask.reply(clients=np.array(list(rows), dtype=np.int64), refused=refused, **stacked)


def accept(ask: Any, reply: R, limits: Limits | None = None, moves: Moves | None = None) -> R:
    """The reply sorted by client, without clients that were not asked, answered twice or sent numbers that cannot be right.

    With limits, what is left is held against them as well: what is nonsense already does not enter a median. `moves` is where it is kept
    how far clients moved, for who asks next.
    """
    accepted = _sensible(ask, reply)
    broken = list(limits.broken(ask, accepted, Moves() if moves is None else moves)) if limits is not None else []
    return _without(accepted, broken) if broken else accepted


def _sensible(ask: Any, reply: R) -> R:
    tidy = not (reply.clients[1:] <= reply.clients[:-1]).any()  # nearly always each once and in order already: then nothing is copied
    if not tidy:
        reply = reply.take(np.argsort(reply.clients, kind="stable"))
    reasons = [*_misaddressed(reply.clients, ask.clients, tidy=tidy), *_nonsense(ask, reply)]
    return _without(reply, reasons) if reasons else reply  # nearly never


def _without(reply: R, reasons: Sequence[tuple[Bools, Refused]]) -> R:
    """The reply without the rows that are refused, each for the first of the reasons that it meets."""
    refused = dict(reply.refused)
    good = np.ones(len(reply.clients), dtype=np.bool_)
    for bad, reason in reasons:
        refused.update({int(client): reason for client in reply.clients[bad & good]})
        good &= ~bad
    return replace(reply if good.all() else reply.take(good), refused=refused)


def _misaddressed(clients: Ids, asked: Ids, *, tidy: bool) -> Iterator[tuple[Bools, Refused]]:
    """Which of those who answered, in order, were not asked, and which answered twice."""
    if clients is not asked and not np.array_equal(clients, asked):  # nearly always all who were asked answered
        yield ~np.isin(clients, asked), Refused(Refusal.NOT_ASKED)
    if not tidy and (again := clients[1:] == clients[:-1]).any():
        yield np.r_[False, again] | np.r_[again, False], Refused(Refusal.TWICE)  # neither counts: which came first is chance


def _nonsense(ask: Any, reply: Reply) -> Iterator[tuple[Bools, Refused]]:
    """Which rows cannot be right, and why."""
    n, shapes, watched = len(reply.clients), ask.row_shapes(), reply.watched()
    if not shapes and not watched:  # counts of an evaluation are believed
        return
    for name, told in reply.columns().items():
        if name not in shapes and name not in watched:
            continue
        value: Array = getattr(reply, name)
        if name in shapes and value.shape != (n, *shapes[name]):
            wrong = _misshapen({name: value[0]} if n else {}, shapes)
            yield np.ones(n, dtype=np.bool_), Refused(Refusal.WRONG_SHAPE, wrong)
        elif told["finite"] and not _all_finite(value):
            yield ~_finite_rows(value), Refused(Refusal.NOT_FINITE, name)
        elif told["positive"] and value.min(initial=1) <= 0:
            yield value <= 0, Refused(Refusal.NO_SAMPLES)


def _all_finite(values: Array) -> bool:
    """Faster than a test of each number, and without memory for the answers: what is not a number is both largest and smallest."""

    def finite(rows: Array) -> bool:
        return isfinite(rows.max(initial=0.0)) and isfinite(rows.min(initial=0.0))

    if not values.size:  # further loops that there are none of
        return True
    if isinstance(values, Held):  # seen where they are
        return bool(values.finite.all())
    if values.size < WORTH_THREADS or values.ndim < 2:
        return finite(values)
    rows = max(1, PIECE // max(1, values[0].size))  # of large models one, of many clients' few numbers thousands
    return all(in_order(finite, (values[i : i + rows] for i in range(0, len(values), rows)), cores()))


def _finite_rows(values: Array) -> Bools:
    return values.finite if isinstance(values, Held) else np.asarray(np.isfinite(values).all(axis=tuple(range(1, values.ndim))))


def _misshapen(row: ClientRow, shapes: Shapes) -> str:
    """What is wrong with the shapes of a client's row; empty where nothing is."""
    for name, shape in shapes.items():
        if name in row and row[name].shape != shape:
            return f"{name} has shape {row[name].shape}, expected {shape}"
    return ""


def _usual(rows: Mapping[int, ClientRow], name: str, axes: int) -> tuple[int, ...]:
    """The shape that most clients sent, of those with so many axes, where the ask does not say which is right."""
    counts = Counter(row[name].shape for row in rows.values() if row[name].ndim == axes)
    return counts.most_common(1)[0][0] if counts else (0,) * axes


def _read(value: Any, dtype: type[Any]) -> Array:
    """A client's number or array in the type it must have; a count that is not a whole number is an error."""
    array = np.asarray(value)
    if dtype is np.int64 and not bool(np.all(np.isfinite(array) & (array == np.trunc(array)))):
        raise ValueError(f"{array} is not a whole number")
    return array.astype(dtype)
