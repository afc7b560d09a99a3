"""What the server does with replies before a method sees them: sort, and refuse what cannot be right, with a reason.

A refused client is simply absent, like one that never answered; the reason goes into the record.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from coterie.core.arrays import Array, Bools, Ids
from coterie.core.asks import Ask, Error, Errors, Evaluate, Evaluated, Gradient, Gradients, Losses, LossTable, Reply, Train, Trained

R = TypeVar("R", bound=Reply)

_REPLY: Mapping[type[Ask[Any]], type[Reply]] = {
    Train: Trained,
    Gradient: Gradients,
    Losses: LossTable,
    Error: Errors,
    Evaluate: Evaluated,
}


def assemble(ask: Any, answers: Mapping[int, Mapping[str, Any]]) -> Any:
    """One reply from separate clients' answers, as a real federation returns them.

    An answer whose shapes or types are wrong is refused by itself, so that one odd client costs nobody else the round.
    """
    kind = _REPLY[type(ask)]
    names = [f.name for f in fields(kind) if f.name not in ("clients", "refused")]
    shapes = _row_shapes(ask)
    refused: dict[int, str] = {}
    kept: dict[int, list[Array]] = {}
    for client in sorted(answers):
        try:
            with np.errstate(all="ignore"):  # too large for float32 becomes infinite, which `accept` refuses
                row = [_read(answers[client][name], _dtype(kind, name)) for name in names]
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            refused[client] = f"the answer cannot be read ({type(error).__name__}: {error})"
            continue
        wrong = [f"{n} has shape {v.shape}" for n, v in zip(names, row, strict=True) if n in shapes and v.shape != shapes[n]]
        if wrong:
            refused[client] = f"wrong length: {wrong[0]}, expected {shapes[wrong[0].split()[0]]}"
        else:
            kept[client] = row
    clients = np.array(sorted(kept), dtype=np.int64)
    empty = {n: np.zeros((0, *shapes.get(n, ())), dtype=_dtype(kind, n)) for n in names}
    columns = {n: np.stack([kept[c][j] for c in sorted(kept)]) if kept else empty[n] for j, n in enumerate(names)}
    return kind(clients=clients, refused=refused, **columns)


def accept(ask: Any, reply: R) -> R:
    """The reply sorted by client, without clients that were not asked, answered twice or sent numbers that are not finite."""
    if (reply.clients[1:] < reply.clients[:-1]).any():  # nearly always in order already: then nothing is copied
        reply = reply.take(np.argsort(reply.clients, kind="stable"))
    reasons = [*_misaddressed(reply.clients, ask.clients), *_nonsense(ask, reply)]
    if not reasons:  # nearly always
        return reply
    refused = dict(reply.refused)
    good = np.ones(len(reply.clients), dtype=np.bool_)
    for bad, reason in reasons:
        refused.update({int(client): reason for client in reply.clients[bad & good]})
        good &= ~bad
    return replace(reply if good.all() else reply.take(good), refused=refused)


def _misaddressed(clients: Ids, asked: Ids) -> Iterator[tuple[Bools, str]]:
    """Which of those who answered, in order, were not asked, and which answered twice."""
    if not np.array_equal(clients, asked):  # nearly always all who were asked answered
        yield ~np.isin(clients, asked), "was not asked"
    again = clients[1:] == clients[:-1]
    if again.any():
        yield np.r_[False, again] | np.r_[again, False], "answered twice"  # neither counts: which came first is chance


def _nonsense(ask: Any, reply: Reply) -> Iterator[tuple[Bools, str]]:
    """Which rows cannot be right, and why."""
    n, shapes = len(reply.clients), _row_shapes(ask)
    for name, value in vars(reply).items():
        if not isinstance(value, np.ndarray) or name == "clients":
            continue
        if name in shapes and value.shape != (n, *shapes[name]):
            yield np.ones(n, dtype=np.bool_), f"wrong length: {name} has shape {value.shape[1:]}, expected {shapes[name]}"
        elif name in ("vectors", "losses", "labels", "probabilities") and not _all_finite(value):
            yield ~np.asarray(np.isfinite(value).all(axis=tuple(range(1, value.ndim)))), f"sent {name} that are not finite"
        elif name == "sizes" and isinstance(reply, (Trained, Gradients)) and value.min(initial=1) <= 0:
            yield value <= 0, "says it has no samples"


def _all_finite(values: Array) -> bool:
    """Faster than a test of each number, and without memory for the answers: what is not a number is both largest and smallest."""
    return isfinite(values.max(initial=0.0)) and isfinite(values.min(initial=0.0))


def _row_shapes(ask: Any) -> dict[str, tuple[int, ...]]:
    """The shape of one client's row of each array in the reply to this ask."""
    match ask:
        case Train() | Gradient():
            return {"vectors": ask.models.shape[1:], "sizes": (), "steps": (), "losses": ()}
        case Losses():
            return {"losses": (len(ask.models),), "sizes": ()}
        case Error():
            return {"labels": (len(ask.models),), "probabilities": (len(ask.models),), "sizes": ()}
    return {}


def _read(value: Any, dtype: type[Any]) -> Array:
    """A client's number or array in the type it must have; a count that is not a whole number is an error."""
    array = np.asarray(value)
    if dtype is np.int64 and not bool(np.all(np.isfinite(array) & (array == np.trunc(array)))):
        raise ValueError(f"{array} is not a whole number")
    return array.astype(dtype)


def _dtype(kind: type[Reply], name: str) -> type[Any]:
    if name == "vectors":
        return np.float32
    return np.int64 if name in ("sizes", "steps", "hits", "predicted", "actual") else np.float64
