"""What the server does with replies before a method sees them: sort, and refuse what cannot be right, with a reason.

A refused client is simply absent, like one that never answered; the reason goes into the record.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from coterie.arrays import Array, Bools, Ids
from coterie.asks import Ask, Error, Errors, Evaluate, Evaluated, Gradient, Gradients, Losses, LossTable, Reply, Train, Trained

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
    refused = dict(reply.refused)
    if np.any(np.diff(reply.clients) < 0):  # nearly always in order already: then nothing is copied
        reply = reply.take(np.argsort(reply.clients, kind="stable"))
    n = len(reply.clients)
    good = np.ones(n, dtype=np.bool_)
    twice = np.zeros(n, dtype=np.bool_)
    again = reply.clients[1:] == reply.clients[:-1]
    twice[1:] |= again
    twice[:-1] |= again  # neither counts: which came first is chance
    reasons: list[tuple[Bools, str]] = [(_strangers(reply.clients, ask.clients), "was not asked"), (twice, "answered twice")]
    shapes = _row_shapes(ask)
    for name, value in vars(reply).items():
        if not isinstance(value, np.ndarray) or name == "clients":
            continue
        if name in shapes and value.shape != (n, *shapes[name]):
            reasons.append((np.ones(n, dtype=np.bool_), f"wrong length: {name} has shape {value.shape[1:]}, expected {shapes[name]}"))
        elif name in ("vectors", "losses", "labels", "probabilities"):
            reasons.append((_runaways(value), f"sent {name} that are not finite"))
        elif name == "sizes" and isinstance(reply, (Trained, Gradients)):
            reasons.append((value <= 0, "says it has no samples"))
    for bad, reason in reasons:
        refused.update({int(client): reason for client in reply.clients[bad & good]})
        good &= ~bad
    return replace(reply if good.all() else reply.take(good), refused=refused)


def _strangers(clients: Ids, asked: Ids) -> Bools:
    """(n,) which of those who answered were not asked; nearly always all were, and all answered."""
    if np.array_equal(clients, asked):
        return np.zeros(len(clients), dtype=np.bool_)
    return ~np.isin(clients, asked)


def _runaways(rows: Array) -> Bools:
    """(n,) which rows hold a number that is not finite. A finite sum shows at once that none does; large numbers may add up to infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum()):
            return np.zeros(len(rows), dtype=np.bool_)
    return ~np.asarray(np.isfinite(rows).all(axis=tuple(range(1, rows.ndim))))


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
