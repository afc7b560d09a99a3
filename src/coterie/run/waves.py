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

GIB = 1 << 30
FLOAT_BYTES = 4  # bytes
COHORT_COPIES = 3  # of a cohort's models: sent back, and those made while they are accepted and mixed
LANE_MODELS = 8  # models of a lane itself
STATE_COPIES = 3  # of what is kept: the state before a round, the one after, and the bytes of a checkpoint
WAVES_PER_WORKER = 2  # where there is enough to do: a worker that finishes early takes one more


def estimate_memory(lane: Lane, rounds: int | None = None) -> int:
    """Bytes that a lane needs at its end, or after so many rounds: models sent and received, copies made while they are mixed, and what
    is kept for each client that has taken part."""
    plan, pending = lane.plan, 0
    if plan.buffer_size is not None:  # replies, and the models that they started from
        pending = 2 * (plan.concurrency or plan.cohort or len(lane.problem.roster))
    models = max(COHORT_COPIES * _count_trained(lane), _count_placed(lane)) + pending + LANE_MODELS
    return FLOAT_BYTES * lane.problem.layout.size * models + STATE_COPIES * estimate_state_bytes(lane, rounds) + _count_served_bytes(lane)


def estimate_minimum(lane: Lane) -> int:
    """Bytes that a lane needs at least: the largest reply, and what it keeps."""
    return _count_reply_bytes([lane]) + estimate_state_bytes(lane) + _count_served_bytes(lane)


def estimate_state_bytes(lane: Lane, rounds: int | None = None) -> int:
    """Bytes of models in a lane's state, at its end or after so many rounds: the size of a checkpoint."""
    clients, rounds = len(lane.problem.roster), lane.plan.rounds if rounds is None else rounds
    asked = clients if lane.method.memory_needs.all_train else min(clients, (lane.plan.cohort or clients) * rounds)
    return int(FLOAT_BYTES * lane.problem.layout.size * asked * lane.method.memory_needs.kept)


def check_memory(lanes: Sequence[Lane], room: int | None = None) -> None:
    """Refuse lanes of which not even one seed fits into memory (`room`; default: the free memory of the machine)."""
    free = get_host_memory() if room is None else room
    for pair in dict.fromkeys((lane.key.draw, lane.seed) for lane in lanes):
        wave = [lane for lane in lanes if (lane.key.draw, lane.seed) == pair]
        if (needed := sum(map(estimate_minimum, wave))) > free:
            most = max(wave, key=estimate_minimum)
            raise UserError(
                f"One seed of this study holds {format_bytes(needed)} of clients' models at the least, "
                f"{format_bytes(estimate_minimum(most))} of them for {most.label}, and {format_bytes(free)} of memory are free: omit such "
                "methods, take fewer clients or a smaller model, or evaluate fewer clients with --evaluate-clients."
            )


def describe_spill(waves: Sequence[Sequence[Lane]], most: int) -> str | None:
    """A notice where a wave's replies need more bytes than stay on the GPU: they are then kept and mixed on the host."""
    wave = max(waves, key=_count_reply_bytes, default=())
    if (size := _count_reply_bytes(wave)) <= most:
        return None
    lanes = f"clients of {wave[0].label} send" if len(wave) == 1 else f"clients of {len(wave)} lanes send"
    return (
        f"What {lanes} back at once ({format_bytes(size)}) is more than the {format_bytes(most)} that stay on the GPU: it is kept on the "
        "host, which slows rounds down; less --memory, fewer clients at a time (--cohort, --evaluate-clients) or a smaller model avoid it."
    )


def _count_reply_bytes(wave: Sequence[Lane]) -> int:
    return sum(FLOAT_BYTES * lane.problem.layout.size * max(_count_trained(lane), _count_placed(lane)) for lane in wave)


def _count_trained(lane: Lane) -> int:
    """The most clients whose models are received at once, to be mixed."""
    clients, memory_needs = len(lane.problem.roster), lane.method.memory_needs
    return clients if memory_needs.all_train else min(max(lane.plan.cohort or clients, memory_needs.gathered), clients)


def _count_placed(lane: Lane) -> int:
    """The most newcomers whose models are received at once, to be compared."""
    memory_needs, clients, whole = lane.method.memory_needs, len(lane.problem.roster), lane.problem.with_unseen
    if not memory_needs.placing:
        return 0
    unseen = 0 if whole is None else len(whole.roster) - clients
    come = max(0 if memory_needs.all_train else min(lane.plan.evaluate_clients or clients, clients), unseen)
    return min(come, memory_needs.count_newcomers_at_once(lane.problem.layout.size, lane.plan.cohort or clients))


def _count_served_bytes(lane: Lane) -> int:
    """Bytes of models that are made for evaluated clients only."""
    clients = min(lane.plan.evaluate_clients or len(lane.problem.roster), len(lane.problem.roster))
    return int(FLOAT_BYTES * lane.problem.layout.size * clients * lane.method.memory_needs.served)


def split_into_waves(lanes: Sequence[Lane], memory: int, seeds: int | None = None, *, whole_seeds: bool = True) -> Iterator[list[Lane]]:
    """Lanes in waves of whole seeds, at most `seeds` of them, whose working memory (in bytes) fits; at least one seed a wave.

    Without `whole_seeds`, where memory is that of a device, a seed that does not fit is split into several waves of at least one lane.
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
    """The lanes of a seed in their order, in parts of similar size that fit."""
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


def split_for_workers(lanes: Sequence[Lane], memory: int, seeds: int | None, places: int, *, whole_seeds: bool) -> list[list[Lane]]:
    """Waves for so many workers, of whole seeds where there are enough of them, else of some methods of a seed.

    `memory` is in bytes, of one worker. A study with a time limit keeps `whole_seeds`, so that it ends with complete pairs.
    """
    pairs = len({(lane.key.draw, lane.seed) for lane in lanes})
    whole = list(split_into_waves(lanes, memory, seeds or max(1, ceil(pairs / (WAVES_PER_WORKER * places)))))
    if whole_seeds or len(whole) >= places:
        return whole
    parts = _count_parts([len(wave) for wave in whole], places)
    return [wave[i * len(wave) // n : (i + 1) * len(wave) // n] for wave, n in zip(whole, parts, strict=True) for i in range(n)]


def _count_parts(sizes: Sequence[int], places: int) -> list[int]:
    """The number of parts of each wave, so that every worker has one and the largest part is as small as possible."""
    parts = [1] * len(sizes)
    for _ in range(min(places, sum(sizes)) - len(sizes)):
        largest = max(range(len(sizes)), key=lambda i: sizes[i] / parts[i])
        parts[largest] += 1
    return parts


class TimeLimit(Protocol):
    """What may end a study early."""

    @property
    def over(self) -> bool:
        """Whether to end after the segment just written."""

    def begin_wave(self) -> bool:
        """Whether another wave may begin."""


class TimeBudget:
    """So many seconds from now; the time of the next wave is estimated by the longest so far."""

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
        """Whether another wave as long as the longest so far would fit."""
        now = self.clock()
        if self._began is not None:
            self.longest = max(self.longest, now - self._began)
        self._began = now
        return now + self.longest < self.end

    def share(self, parts: int) -> "TimeBudget":
        """An equal share of the time left for the next of so many parts; what it does not use goes to the others."""
        return TimeBudget(max(self.left / parts, 1e-9), self.clock)
