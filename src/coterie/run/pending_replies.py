"""Pending replies of asynchronous rounds: which clients are at work, when they finish, and what they will send.

Pending replies are part of a checkpoint, so a resumed run continues with them. No client is asked twice with one model: its training is
keyed by (seed, round, client) and would be the same again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats, Ids, Ints
from coterie.core.asks import Trained
from coterie.core.states import State


class BusyClient(NamedTuple):
    """A client at work, in the order in which answers come: those done at the same moment by round and by draw."""

    end: float
    round_: int  # in which it was asked
    draw: int  # its own, of that round
    client: int


class Candidate(NamedTuple):
    """A client that may be asked in this round, and how long it would take; one that is gone is asked and never heard of."""

    client: int
    draw: int
    time: float
    gone: bool = False


@dataclass(frozen=True)
class RoundSchedule:
    """How a round goes."""

    asked: tuple[int, ...]  # clients that were sent the round's model, those that are gone among them, in their order
    arrived: tuple[BusyClient, ...]  # in the order of arrival
    pending: tuple[BusyClient, ...]  # still at work, or done and not yet attended to
    clock: float  # when the server goes on


def schedule_round(
    clock: float, aloft: Iterable[BusyClient], candidates: Iterable[Candidate], round_: int, wanted: float, room: float
) -> RoundSchedule:
    """The course of a round that begins at `clock`: it ends with the `wanted`-th answer, or when nobody is at work any more.

    Candidates begin in the order of their draws as long as there is room; whoever comes back makes room for the next at once. Those who
    are at work already are not asked.
    """
    working, arrived, asked = list(aloft), list[BusyClient](), list[int]()
    heapify(working)
    busy = {each.client for each in working}
    waiting = sorted((each for each in candidates if each.client not in busy), key=lambda each: each.draw, reverse=True)
    while len(arrived) < wanted:
        while waiting and len(working) < room:
            one = waiting.pop()
            asked.append(one.client)
            if not one.gone:
                heappush(working, BusyClient(clock + one.time, round_, one.draw, one.client))
        if not working:
            break
        arrived.append(heappop(working))
        clock = max(clock, arrived[-1].end)
    return RoundSchedule(tuple(asked), tuple(arrived), tuple(sorted(working)), clock)


@dataclass(frozen=True)
class PendingReplies(State):
    """Simulated time, and n answers that have not come yet, in any order."""

    clock: float
    times: Doubles  # (roster,) how long clients take, so that a changed file is noticed; none of real ones
    clients: Ids  # (n,)
    begun: Ints  # (n,) the round in which each was asked
    ends: Doubles  # (n,) when each is done
    vectors: Floats  # (n, d) what each will send
    sizes: Ints  # (n,)
    steps: Ints  # (n,)
    rounds: Ints  # (v,) those in which any of them was asked
    models: Floats  # (v, d) the model that was sent in each of these rounds

    @classmethod
    def empty(cls, times: Doubles, length: int) -> "PendingReplies":
        """At the beginning: models of this length, and none on its way."""
        none, empty = np.zeros(0, dtype=np.int64), np.zeros((0, length), dtype=np.float32)
        return cls(0.0, times, none, none, np.zeros(0), empty, none, none, none, empty)

    def __len__(self) -> int:
        return len(self.clients)

    def at(self, clock: float) -> "PendingReplies":
        return replace(self, clock=clock)

    def add_replies(self, trained: Trained, ends: Doubles, round_: int, model: Floats) -> "PendingReplies":
        """With the answers of clients that were sent the model (d,) of a round."""
        return replace(
            self,
            clients=np.concatenate([self.clients, trained.clients]),
            begun=np.concatenate([self.begun, np.full(len(trained), round_, dtype=np.int64)]),
            ends=np.concatenate([self.ends, ends]),
            vectors=np.concatenate([self.vectors, np.asarray(trained.vectors)]),
            sizes=np.concatenate([self.sizes, trained.sizes]),
            steps=np.concatenate([self.steps, trained.steps]),
            rounds=np.append(self.rounds, round_),
            models=np.concatenate([self.models, model[None, :]]),
        )

    def only(self, rows: Bools) -> "PendingReplies":
        """Some of the answers, and the models that are still needed for them."""
        names = ("clients", "begun", "ends", "vectors", "sizes", "steps")
        needed = np.isin(self.rounds, self.begun[rows])
        return replace(self, **{name: getattr(self, name)[rows] for name in names}, rounds=self.rounds[needed], models=self.models[needed])

    def answers(self, round_: int, model: Floats, exponent: float, compared: Bools) -> Trained:
        """All of it as answers to the question of a round, whose model (d,) is sent then: ascending by client, each rebased."""
        order = np.argsort(self.clients, kind="stable")
        vectors, behind = self.vectors, round_ - self.begun
        if (late := behind > 0).any():  # what was trained from this very model stays as it is, to the bit
            vectors, sent = vectors.copy(), self.models[np.searchsorted(self.rounds, self.begun[late])]
            vectors[late] = rebase_updates(vectors[late], sent, model, compute_staleness_weights(behind[late], exponent), compared)
        return Trained(self.clients[order], vectors=vectors[order], sizes=self.sizes[order], steps=self.steps[order])


def compute_staleness_weights(behind: Ints, exponent: float) -> Doubles:
    """(n,) how much updates count that were begun so many rounds ago: (1 + t)^-a (Nguyen et al. 2022, Section 5; a = 1/2 there)."""
    return np.asarray((1.0 + behind) ** -exponent)


def rebase_updates(vectors: Floats, sent: Floats, model: Floats, weights: Doubles, compared: Bools) -> Floats:
    """(n, d) models trained from other models than this one, as if from this: it plus each client's update times its weight.

    FedBuff's server adds the mean of weighted updates (Nguyen et al. 2022, Algorithm 1), which is the mean of these minus the model.
    Statistics and counters have no update: of them the client's share is its weight, so that a running variance stays positive.
    """
    origin = np.where(compared, sent, model).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused when it is accepted
        return (model + weights[:, None] * (vectors - origin)).astype(np.float32)
