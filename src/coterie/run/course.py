"""What happens between a question and the moment its server goes on: who begins when, who is done when, whose answers are there.

Nobody is asked twice with one model: a client that is done waits for the next one, since its training is keyed by (seed, round, client)
and would be the same again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class AtWork(NamedTuple):
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
class Course:
    """How a round goes."""

    asked: tuple[int, ...]  # clients that were sent the round's model, those that are gone among them, in their order
    arrived: tuple[AtWork, ...]  # in the order of arrival
    aloft: tuple[AtWork, ...]  # still at work, or done and not yet attended to
    clock: float  # when the server goes on


def course_of(clock: float, aloft: Iterable[AtWork], candidates: Iterable[Candidate], round_: int, wanted: float, room: float) -> Course:
    """The course of a round that begins at `clock`: it ends with the `wanted`-th answer, or when nobody is at work any more.

    Candidates begin in the order of their draws as long as there is room; whoever comes back makes room for the next at once. Those who
    are at work already are not asked.
    """
    working, arrived, asked = list(aloft), list[AtWork](), list[int]()
    heapify(working)
    busy = {each.client for each in working}
    waiting = sorted((each for each in candidates if each.client not in busy), key=lambda each: each.draw, reverse=True)
    while len(arrived) < wanted:
        while waiting and len(working) < room:
            one = waiting.pop()
            asked.append(one.client)
            if not one.gone:
                heappush(working, AtWork(clock + one.time, round_, one.draw, one.client))
        if not working:
            break
        arrived.append(heappop(working))
        clock = max(clock, arrived[-1].end)
    return Course(tuple(asked), tuple(arrived), tuple(sorted(working)), clock)
