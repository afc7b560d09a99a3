"""What a server can hold a reply against: what the roster knows, and what the others of the cohort sent.

Sample counts: a client answers for the samples that the roster knows it to have, whatever share of its epochs it managed; of a share of its
samples (a half, a class) it can have no more than all. The counts of an evaluation are believed: a site may tell them as hundredths.

Norms: how far a client moved from the model that it was sent, in medians of the cohort. A median of few says nothing, so a cohort of fewer
than `FEW` is not judged, nor one in which most did not move. Gradients are not judged: near the end they differ by any factor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isinf
from threading import local
from typing import Any

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats, Ints, places
from coterie.core.asks import ModelAsk, Reply, Train, Trained
from coterie.core.held import Held
from coterie.core.refusals import Refusal, Refused
from coterie.core.site_shares import SiteBound, weighted_median
from coterie.core.threads import cores, in_order

FEW = 3  # of fewer replies the median is not one of those who told the truth, if one did not
CACHED = 1 << 17  # numbers


@dataclass(frozen=True)
class Limits:
    """Beyond these a reply is refused."""

    sizes: Ints | None = None  # (roster,) training samples as the roster knows them; None: what clients say is believed
    norm: float = inf  # how many times the cohort's median a client may move from the model that it was sent
    bound: SiteBound | None = None  # on the votes of one site in that median

    def broken(self, ask: Any, reply: Reply, moves: "Moves") -> Iterator[tuple[Bools, Refused]]:
        """Which rows of a reply, all of clients that were asked, are beyond a limit, and why."""
        if not isinstance(ask, ModelAsk):
            return
        if self.sizes is not None and len(reply) and reply.clients[-1] < len(self.sizes):
            yield from _miscounts(ask, reply, self.sizes[reply.clients])
        if not isinf(self.norm) and isinstance(ask, Train) and isinstance(reply, Trained) and not ask.alone and len(reply) >= FEW:
            moved = np.concatenate(moves.of(ask, reply))
            votes = None if self.bound is None or reply.clients[-1] >= len(self.bound.sites) else self.bound.votes(reply.clients)
            median = _median(moved) if votes is None else weighted_median(moved, votes)
            far = moved > self.norm * median
            if median > 0 and far.any():
                yield far, Refused(Refusal.TOO_FAR, f"more than {self.norm:g} times the cohort's median")


class Moves:
    """How far clients moved, measured once of a reply that is asked about twice: when it is accepted, and for the record."""

    def __init__(self) -> None:
        self._measured: tuple[Floats, Floats, list[Doubles]] | None = None  # what was sent back, what was sent, and the lengths

    def of(self, ask: Train, reply: Trained) -> list[Doubles]:
        """What `moved_by` says of the reply."""
        if self._measured is None or self._measured[0] is not reply.vectors or self._measured[1] is not ask.models:
            self._measured = reply.vectors, ask.models, list(moved_by(ask, reply))
        return self._measured[2]

    def forget(self) -> None:
        """Let go of the reply, which may be large."""
        self._measured = None


def _miscounts(ask: ModelAsk[Any], reply: Reply, known: Ints) -> Iterator[tuple[Bools, Refused]]:
    """Which counts of training samples are not the roster's."""
    if getattr(ask, "part", "train") == "train" and "sizes" in reply.columns():
        told: Ints = getattr(reply, "sizes")  # noqa: B009  not every reply has it
        wrong = told > known if ask.share is not None else told != known
        if wrong.any():
            yield wrong, Refused(Refusal.MISCOUNTED)


def moved_by(ask: Train, reply: Trained) -> Iterator[Doubles]:
    """How far clients moved from the models they were sent, some of them at a time; of a sketch, its length."""
    if isinstance(reply.vectors, Held):  # measured where they are
        return iter([reply.vectors.moved])
    same = len(ask.models) == 1  # then it does not matter who was sent which
    rows = ask.start if same else ask.start[places(ask.clients, reply.clients)]
    together = max(1, CACHED // max(reply.vectors.shape[1], 1))  # rows at a time: what is subtracted stays in the cache
    if len(reply) <= together and ask.sketch is None:  # nearly always, of small models
        return iter([_lengths(reply.vectors - (ask.models if same else ask.models[rows]))])
    pieces = [slice(i, i + together) for i in range(0, len(reply), together)]
    workers = cores() if len(pieces) > 1 and together == 1 else 1
    room = local()  # of each thread, for differences: fresh memory for every large model would cost more than the sum

    def of_piece(piece: slice) -> Doubles:
        sent = reply.vectors[piece]
        if ask.sketch is not None:  # of the update itself
            return _lengths(sent)
        received = ask.models if same else ask.models[rows[piece]]
        if getattr(room, "steps", sent[:0]).shape != sent.shape:
            room.steps = np.empty(sent.shape, dtype=np.result_type(sent, received))
        return _lengths(np.subtract(sent, received, out=room.steps))

    return iter(in_order(of_piece, pieces, workers))


def _median(numbers: Doubles) -> float:
    """`np.median` of numbers that are finite, without its care for those that are not: of a cohort's few that takes longer than sorting."""
    ordered = np.sort(numbers)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def _lengths(steps: Floats) -> Doubles:
    """(n,) Euclidean lengths. By einsum: a linear-algebra library would split long sums over threads."""
    with np.errstate(over="ignore"):  # too long is infinitely long
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", steps, steps).astype(np.float64)))
