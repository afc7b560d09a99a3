"""What the server does with replies before a method sees them: assemble, sort, and refuse invalid ones, with a reason.

A refused client is absent, like one that never answered; the reason goes into the evidence. Limits come from the roster and the cohort:

Sample counts: a client answers for the samples that the roster knows it to have, whatever share of its epochs it managed; of a share of its
samples (a fold, a class) it can have no more than that share of all. The counts of an evaluation are accepted: a site may round them.

Norms: how far a client moved from the model that it was sent, in medians of the cohort. A cohort of fewer than `FEW` is not judged, nor one
in which most did not move. Gradients are not judged: near convergence they differ by any factor.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isinf
from threading import local
from typing import Any, TypeVar

import numpy as np

from coterie._util.threads import count_cores, map_in_order
from coterie.core.arrays import Array, Bools, Doubles, Floats, Ids, Ints, find_positions
from coterie.core.asks import ModelAsk, Refusal, RefusedReply, Reply, Shapes, Train, Trained
from coterie.core.mixing import SiteBound, compute_weighted_median
from coterie.core.vectors import get_update_norms

FEW = 3  # of fewer replies a single false one can be the median
CACHED = 1 << 17  # numbers


@dataclass(frozen=True)
class Limits:
    """Beyond these a reply is refused."""

    sizes: Ints | None = None  # (roster,) training samples as the roster knows them; None: the clients' own numbers are accepted
    norm: float = inf  # how many times the cohort's median a client may move from the model that it was sent
    bound: SiteBound | None = None  # on the votes of one site in that median

    def broken(self, ask: Any, reply: Reply, moves: "UpdateNorms") -> Iterator[tuple[Bools, RefusedReply]]:
        """Which rows of a reply, all of clients that were asked, are beyond a limit, and why."""
        if not isinstance(ask, ModelAsk):
            return
        if self.sizes is not None and len(reply) and reply.clients[-1] < len(self.sizes):
            yield from _find_miscounts(ask, reply, self.sizes[reply.clients])
        if not isinf(self.norm) and isinstance(ask, Train) and isinstance(reply, Trained) and not ask.alone and len(reply) >= FEW:
            moved = np.concatenate(moves.of(ask, reply))
            votes = None if self.bound is None or reply.clients[-1] >= len(self.bound.sites) else self.bound.votes(reply.clients)
            median = _compute_median(moved) if votes is None else compute_weighted_median(moved, votes)
            far = moved > self.norm * median
            if median > 0 and far.any():
                yield far, RefusedReply(Refusal.TOO_FAR, f"more than {self.norm:g} times the cohort's median")


class UpdateNorms:
    """How far clients moved, measured once of a reply that is asked about twice: when it is accepted, and for the record."""

    def __init__(self) -> None:
        self._measured: tuple[Floats, Floats, list[Doubles]] | None = None  # what was sent back, what was sent, and the lengths

    def of(self, ask: Train, reply: Trained) -> list[Doubles]:
        """What `compute_update_norms` gives for the reply."""
        if self._measured is None or self._measured[0] is not reply.vectors or self._measured[1] is not ask.models:
            self._measured = reply.vectors, ask.models, list(compute_update_norms(ask, reply))
        return self._measured[2]

    def forget(self) -> None:
        """Let go of the reply, which may be large."""
        self._measured = None


def _find_miscounts(ask: ModelAsk[Any], reply: Reply, known: Ints) -> Iterator[tuple[Bools, RefusedReply]]:
    if getattr(ask, "part", "train") == "train" and "sizes" in reply.columns():
        sizes: Ints = getattr(reply, "sizes")  # noqa: B009  not every reply has it
        # a site that withholds its sample counts sends one for all
        wrong = sizes > np.maximum(ask.share.count(known), 1) if ask.share is not None else sizes != known
        if wrong.any():
            yield wrong, RefusedReply(Refusal.MISCOUNTED)


def compute_update_norms(ask: Train, reply: Trained) -> Iterator[Doubles]:
    """How far clients moved from the models they were sent, some of them at a time; of a sketch, its length."""
    if (measured := get_update_norms(reply.vectors)) is not None:
        return iter([measured])
    same = len(ask.models) == 1  # then it does not matter which client was sent which
    rows = ask.start if same else ask.start[find_positions(ask.clients, reply.clients)]
    together = max(1, CACHED // max(reply.vectors.shape[1], 1))  # rows at a time: what is subtracted stays in the cache
    if len(reply) <= together and ask.sketch is None:  # nearly always, of small models
        return iter([_compute_norms(reply.vectors - (ask.models if same else ask.models[rows]))])
    pieces = [slice(i, i + together) for i in range(0, len(reply), together)]
    workers = count_cores() if len(pieces) > 1 and together == 1 else 1
    room = local()  # of each thread, for differences: fresh memory for every large model would cost more than the sum

    def of_piece(piece: slice) -> Doubles:
        sent = reply.vectors[piece]
        if ask.sketch is not None:  # of the update itself
            return _compute_norms(sent)
        received = ask.models if same else ask.models[rows[piece]]
        if getattr(room, "steps", sent[:0]).shape != sent.shape:
            room.steps = np.empty(sent.shape, dtype=np.result_type(sent, received))
        return _compute_norms(np.subtract(sent, received, out=room.steps))

    return iter(map_in_order(of_piece, pieces, workers))


def _compute_median(numbers: Doubles) -> float:
    """`np.median` of numbers that are finite, without its care for those that are not: of a cohort's few that takes longer than sorting."""
    ordered = np.sort(numbers)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def _compute_norms(steps: Floats) -> Doubles:
    """(n,) Euclidean lengths. By einsum: a linear-algebra library would split long sums over threads."""
    with np.errstate(over="ignore"):  # too long is infinitely long
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", steps, steps).astype(np.float64)))


R = TypeVar("R", bound=Reply)
WORTH_THREADS = 1 << 22  # numbers
PIECE = 1 << 20  # numbers that a thread looks at together
ClientRow = dict[str, Array]


def make_empty_reply(ask: Any) -> Any:
    """The reply of no client."""
    return assemble(ask, {})


def assemble(ask: Any, answers: Mapping[int, Mapping[str, Any]]) -> Any:
    """One reply from separate clients' answers, as a real federation returns them.

    An answer whose shapes or types are wrong is refused by itself, so that one odd client costs no other client the round.
    """
    columns, refused, rows, known = ask.reply.columns(), {}, {}, ask.row_shapes()
    empty = {name: np.zeros((0,) * column["axes"]) for name, column in columns.items() if column["optional"]}
    empty |= {name: np.zeros(shape) for name, shape in known.items() if 0 in shape}  # what holds no number need not be sent
    for client in sorted(answers):
        try:
            with np.errstate(all="ignore"):  # too large for float32 becomes infinite, which `accept` refuses
                rows[client] = {
                    name: _convert_value({**empty, **answers[client]}[name], column["dtype"]) for name, column in columns.items()
                }
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            refused[client] = RefusedReply(Refusal.UNREADABLE, f"{type(error).__name__}: {error}")
    shapes = {name: known.get(name, _find_common_shape(rows, name, column["axes"])) for name, column in columns.items()}
    for client in list(rows):
        wrong = _describe_wrong_shape(rows[client], shapes)
        if wrong:
            refused[client] = RefusedReply(Refusal.WRONG_SHAPE, wrong)
            del rows[client]
    stacked = {
        name: np.stack([row[name] for row in rows.values()]) if rows else np.zeros((0, *shapes[name]), dtype=column["dtype"])
        for name, column in columns.items()
    }
    return ask.reply(clients=np.array(list(rows), dtype=np.int64), refused=refused, **stacked)


def accept(ask: Any, reply: R, limits: Limits | None = None, moves: UpdateNorms | None = None) -> R:
    """The reply sorted by client, without clients that were not asked, answered twice or sent numbers that cannot be right.

    With limits, what is left is held against them as well: what is nonsense already does not enter a median. `moves` is where it is kept
    how far clients moved, for the next use.
    """
    tidy = not (reply.clients[1:] <= reply.clients[:-1]).any()  # nearly always each once and in order already: then nothing is copied
    if not tidy:
        reply = reply.take(np.argsort(reply.clients, kind="stable"))
    accepted = _drop_refused(reply, [*_find_misaddressed(reply.clients, ask.clients, tidy=tidy), *_find_invalid(ask, reply)])
    if limits is None:
        return accepted
    return _drop_refused(accepted, list(limits.broken(ask, accepted, UpdateNorms() if moves is None else moves)))


def _drop_refused(reply: R, reasons: Sequence[tuple[Bools, RefusedReply]]) -> R:
    """The reply without the rows that are refused, each for the first of the reasons that it meets."""
    if not reasons:  # nearly always
        return reply
    refused = dict(reply.refused)
    good = np.ones(len(reply.clients), dtype=np.bool_)
    for bad, reason in reasons:
        refused.update({int(client): reason for client in reply.clients[bad & good]})
        good &= ~bad
    return replace(reply if good.all() else reply.take(good), refused=refused)


def _find_misaddressed(clients: Ids, asked: Ids, *, tidy: bool) -> Iterator[tuple[Bools, RefusedReply]]:
    """Which of the clients that answered, in order, were not asked, and which answered twice."""
    if clients is not asked and not np.array_equal(clients, asked):  # nearly always all that were asked answered
        yield ~np.isin(clients, asked), RefusedReply(Refusal.NOT_ASKED)
    if not tidy and (again := clients[1:] == clients[:-1]).any():
        yield np.r_[False, again] | np.r_[again, False], RefusedReply(Refusal.TWICE)  # neither counts: which came first is chance


def _find_invalid(ask: Any, reply: Reply) -> Iterator[tuple[Bools, RefusedReply]]:
    n, shapes = len(reply.clients), ask.row_shapes()
    for name, column in reply.columns().items():
        if name not in shapes and not column["finite"] and not column["positive"]:  # counts of an evaluation are believed
            continue
        value: Array = getattr(reply, name)
        if name in shapes and value.shape != (n, *shapes[name]):
            wrong = _describe_wrong_shape({name: value[0]} if n else {}, shapes)
            yield np.ones(n, dtype=np.bool_), RefusedReply(Refusal.WRONG_SHAPE, wrong)
        elif column["finite"] and not _is_all_finite(value):
            norms = get_update_norms(value)
            finite = np.isfinite(value).all(axis=tuple(range(1, value.ndim))) if norms is None else np.isfinite(norms)
            yield np.asarray(~finite), RefusedReply(Refusal.NOT_FINITE, name)
        elif column["positive"] and value.min(initial=1) <= 0:
            yield value <= 0, RefusedReply(Refusal.NO_SAMPLES)


def _is_all_finite(values: Array) -> bool:
    """Faster than a test of each number, and without memory for the answers: what is not a number is both largest and smallest."""

    def finite(rows: Array) -> bool:
        return isfinite(rows.max(initial=0.0)) and isfinite(rows.min(initial=0.0))

    if not values.size:  # further loops that there are none of
        return True
    if (norms := get_update_norms(values)) is not None:
        return bool(np.isfinite(norms).all())
    if values.size < WORTH_THREADS or values.ndim < 2:
        return finite(values)
    rows = max(1, PIECE // max(1, values[0].size))  # of large models one, of many clients' few numbers thousands
    return all(map_in_order(finite, (values[i : i + rows] for i in range(0, len(values), rows)), count_cores()))


def _describe_wrong_shape(row: ClientRow, shapes: Shapes) -> str:
    for name, shape in shapes.items():
        if name in row and row[name].shape != shape:
            return f"{name} has shape {row[name].shape}, expected {shape}"
    return ""


def _find_common_shape(rows: Mapping[int, ClientRow], name: str, axes: int) -> tuple[int, ...]:
    """The shape that most clients sent, of those with so many axes, where the ask does not define which is right."""
    counts = Counter(row[name].shape for row in rows.values() if row[name].ndim == axes)
    return counts.most_common(1)[0][0] if counts else (0,) * axes


def _convert_value(value: Any, dtype: type[Any]) -> Array:
    """A client's number or array in the type it must have; a count that is not a whole number is an error."""
    array = np.asarray(value)
    if dtype is np.int64 and not bool(np.all(np.isfinite(array) & (array == np.trunc(array)))):
        raise ValueError(f"{array} is not a whole number")
    return array.astype(dtype)
