"""Waves: which lanes run at the same time, given the memory they need, the number of workers and a time budget.

The memory of a lane is estimated from what its method declares to hold. A study that cannot fit is refused before it starts.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from time import monotonic
from typing import Protocol

from coterie._util.errors import UserError
from coterie._util.formatting import format_bytes
from coterie.engines.device import get_host_memory
from coterie.run.lanes import Lane

FLOAT_BYTES = 4  # bytes


COHORT_COPIES = 3  # of a cohort's models: sent back, and those made while they are accepted and mixed


LANE_MODELS = 8  # models of a lane itself


STATE_COPIES = 3  # of what is kept: the state before a round, the one after, and the bytes of a checkpoint


def estimate_memory(lane: Lane, rounds: int | None = None) -> int:
    """Bytes that a lane works with: models sent and sent back, copies made while they are mixed, and what is kept for each client that
    has taken part; at its end, or after so many rounds."""
    models = max(COHORT_COPIES * _count_trained(lane), _count_placed(lane)) + _count_pending(lane) + LANE_MODELS
    return FLOAT_BYTES * lane.problem.layout.size * models + STATE_COPIES * estimate_state_bytes(lane, rounds) + _count_served_bytes(lane)


def estimate_minimum(lane: Lane) -> int:
    """Bytes that it cannot do without: the largest reply, and what it keeps."""
    return (
        FLOAT_BYTES * lane.problem.layout.size * max(_count_trained(lane), _count_placed(lane))
        + estimate_state_bytes(lane)
        + _count_served_bytes(lane)
    )


def estimate_state_bytes(lane: Lane, rounds: int | None = None) -> int:
    """Bytes of models that its state holds, at its end or after so many rounds, for clients that took part: what a checkpoint takes."""
    clients, rounds = len(lane.problem.roster), lane.plan.rounds if rounds is None else rounds
    asked = clients if lane.method.memory_needs.everybody else min(clients, (lane.plan.cohort or clients) * rounds)
    return int(FLOAT_BYTES * lane.problem.layout.size * asked * lane.method.memory_needs.kept)


def check_memory(lanes: Sequence[Lane], room: int | None = None) -> None:
    """Refuse lanes of which not even one seed fits into the memory that is there (`room`; what the machine has, unless given)."""
    free = get_host_memory() if room is None else room
    for pair in dict.fromkeys((lane.key.draw, lane.seed) for lane in lanes):
        wave = [lane for lane in lanes if (lane.key.draw, lane.seed) == pair]
        if (needed := sum(map(estimate_minimum, wave))) > free:
            most = max(wave, key=estimate_minimum)
            raise UserError(
                f"One seed of this study holds {format_bytes(needed)} of clients' models at the least, {format_bytes(estimate_minimum(most))} of them for "
                f"{most.label}, and {format_bytes(free)} of memory are free: leave such methods away, take fewer clients or a smaller model, or "
                "look at fewer clients with --evaluate-clients."
            )


def describe_spill(waves: Sequence[Sequence[Lane]], most: int) -> str | None:
    """A sentence where a wave's replies are more bytes than stay on the GPU: they are then on the host, and made into models there."""
    wave = max(waves, key=_count_reply_bytes, default=())
    if (size := _count_reply_bytes(wave)) <= most:
        return None
    who = f"clients of {wave[0].label} send" if len(wave) == 1 else f"clients of {len(wave)} lanes send"
    return (
        f"What {who} back at once ({format_bytes(size)}) is more than the {format_bytes(most)} that stay on the GPU: it is kept on the host, and rounds "
        "wait for that; less --memory, fewer clients at a time (--cohort, --evaluate-clients) or a smaller model would not."
    )


def _count_reply_bytes(wave: Sequence[Lane]) -> int:
    return sum(FLOAT_BYTES * lane.problem.layout.size * max(_count_trained(lane), _count_placed(lane)) for lane in wave)


def _count_trained(lane: Lane) -> int:
    """Clients whose models come back at once, at most, to be mixed."""
    clients, holdings = len(lane.problem.roster), lane.method.memory_needs
    return clients if holdings.everybody else min(max(lane.plan.cohort or clients, holdings.gathered), clients)


def _count_placed(lane: Lane) -> int:
    """Newcomers whose models come back at once, at most, to be compared."""
    holdings, clients, everybody = lane.method.memory_needs, len(lane.problem.roster), lane.problem.everybody
    if not holdings.placing:
        return 0
    unseen = 0 if everybody is None else len(everybody.roster) - clients
    come = max(0 if holdings.everybody else min(lane.plan.evaluate_clients or clients, clients), unseen)
    return min(come, holdings.count_newcomers_at_once(lane.problem.layout.size, lane.plan.cohort or clients))


def _count_pending(lane: Lane) -> int:
    """Answers that are still to come in asynchronous rounds, and the models that they began from."""
    return 0 if lane.plan.buffer_size is None else 2 * (lane.plan.concurrency or lane.plan.cohort or len(lane.problem.roster))


def _count_served_bytes(lane: Lane) -> int:
    """Bytes of models that are made for evaluated clients alone."""
    clients = min(lane.plan.evaluate_clients or len(lane.problem.roster), len(lane.problem.roster))
    return int(FLOAT_BYTES * lane.problem.layout.size * clients * lane.method.memory_needs.served)


def split_into_waves(lanes: Sequence[Lane], memory: int, seeds: int | None = None, *, whole_seeds: bool = True) -> Iterator[list[Lane]]:
    """Lanes in waves of whole seeds, at most `seeds` of them, whose working memory (in bytes) fits; at least one seed a wave.

    Without `whole_seeds`, where what is held must fit a device, a seed that does not is cut into runs of lanes that do, at least one lane
    each: a wave of its own each run.
    """
    wave: list[Lane] = []
    used = held = 0
    for pair in dict.fromkeys((lane.key.draw, lane.seed) for lane in lanes):
        group = [lane for lane in lanes if (lane.key.draw, lane.seed) == pair]
        size = sum(map(estimate_memory, group))
        if size > memory and not whole_seeds:
            if wave:
                yield wave
            wave, used, held = [], 0, 0
            yield from _split_seed(group, memory)
            continue
        if wave and (used + size > memory or held == seeds):
            yield wave
            wave, used, held = [], 0, 0
        wave.extend(group)
        used += size
        held += 1
    if wave:
        yield wave


def _split_seed(group: Sequence[Lane], memory: int) -> Iterator[list[Lane]]:
    """The lanes of a seed in their order, as many together as fit; in parts about as large as each other, not in full ones and a rest."""
    size = sum(map(estimate_memory, group))
    share = size / ceil(size / max(memory, 1))
    run: list[Lane] = []
    for lane in group:
        used = sum(map(estimate_memory, run))
        if run and (used >= share or used + estimate_memory(lane) > memory):
            yield run
            run = []
        run.append(lane)
    yield run


WAVES_PER_WORKER = 2  # for each place where there is enough to do: whoever ends first takes one more


def split_for_workers(lanes: Sequence[Lane], memory: int, seeds: int | None, places: int, *, whole_seeds: bool) -> list[list[Lane]]:
    """Waves for so many places, of whole seeds where there are enough of them, else of some methods of a seed.

    `memory` is in bytes and of one place. A study that must end on time keeps to `whole_seeds`, so that it ends with complete pairs.
    """
    pairs = len({(lane.key.draw, lane.seed) for lane in lanes})
    whole = list(split_into_waves(lanes, memory, seeds or max(1, ceil(pairs / (WAVES_PER_WORKER * places)))))
    if whole_seeds or len(whole) >= places:
        return whole
    parts = _count_parts([len(wave) for wave in whole], places)
    return [wave[i * len(wave) // n : (i + 1) * len(wave) // n] for wave, n in zip(whole, parts, strict=True) for i in range(n)]


def _count_parts(sizes: Sequence[int], places: int) -> list[int]:
    """Into how many parts each wave is cut, so that every place has one while lanes last and the largest part is as small as can be."""
    parts = [1] * len(sizes)
    for _ in range(min(places, sum(sizes)) - len(sizes)):
        largest = max(range(len(sizes)), key=lambda i: sizes[i] / parts[i])
        parts[largest] += 1
    return parts


class TimeLimit(Protocol):
    """What may end a study early: a budget of time, or something that has happened."""

    @property
    def over(self) -> bool:
        """Whether to end after the segment that has just been written."""

    def begin_wave(self) -> bool:
        """Whether another wave may begin."""


class TimeBudget:
    """So many seconds from now. It learns from the waves it has seen how long the next will take."""

    def __init__(self, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        if not seconds > 0:
            raise UserError(f"A budget of {seconds / 60:g} minutes leaves no time: give a number above 0.")
        self.clock = clock
        self.end = clock() + seconds
        self.longest = 0.0
        self._began: float | None = None

    @property
    def left(self) -> float:
        return self.end - self.clock()

    @property
    def over(self) -> bool:
        return self.left <= 0

    def begin_wave(self) -> bool:
        """Whether another wave may begin: one that takes as long as the longest before it would still fit."""
        now = self.clock()
        if self._began is not None:
            self.longest = max(self.longest, now - self._began)
        self._began = now
        return now + self.longest < self.end

    def share(self, parts: int) -> "TimeBudget":
        """An equal share of what is left for the next of so many parts; what it leaves over goes to the others."""
        return TimeBudget(max(self.left / parts, 1e-9), self.clock)
