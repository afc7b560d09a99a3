"""The driver: lanes in lock-step. It alone turns asks into replies; there is no other round loop."""

from collections.abc import Callable, Generator, Iterator, Sequence
from math import ceil
from time import perf_counter
from typing import Any, TypeVar

from coterie.core.acceptance import accept
from coterie.core.asks import Ask, Train
from coterie.core.errors import UserError
from coterie.engines.device_faults import device_faults_told
from coterie.engines.engine import Engine, Stamped
from coterie.evidence.record import FAILED, RUNNING, RoundRecord
from coterie.run.lanes import Done, Lane
from coterie.run.memory import footprint

T = TypeVar("T")
Watch = Callable[[Lane, RoundRecord], None]


def drive(lanes: Sequence[Lane], engine: Engine, until: int, watch: Watch) -> None:
    """Advance every running lane to round `until`, calling `watch` after each of its rounds.

    All cheap asks are answered first, and training runs when every live lane waits for it: plain lock-step would fill half the
    lanes of a training call, this rule fills nearly all. A lane that raises or diverges is recorded and the others go on.
    """
    driven = [_Driven(lane, until, watch) for lane in lanes if lane.status == RUNNING]
    for each in driven:
        each.send(None)
    while waiting := [each for each in driven if each.ask is not None]:
        cheap = [each for each in waiting if not isinstance(each.ask, Train)]
        _carry_out(cheap or waiting, engine)


@device_faults_told()
def answer(
    script: Generator[Ask[Any], Any, T],
    engine: Engine,
    *,
    seed: int = 0,
    round_: int = 0,
    draw: int = 0,
    watch: Callable[[Ask[Any]], None] = lambda ask: None,
) -> T:
    """What a script that is no lane's (an inspection, a measurement) comes to; every reply is accepted as the driver does it.

    `watch` is called with each ask that has been answered.
    """
    reply = None
    while True:
        try:
            ask = script.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value
        stamped = Stamped(ask, seed, round_, draw)
        reply = accept(ask, engine.run([stamped])[0])
        watch(ask)


def waves(lanes: Sequence[Lane], memory: int, seeds: int | None = None, *, whole_seeds: bool = True) -> Iterator[list[Lane]]:
    """Lanes in waves of whole seeds, at most `seeds` of them, whose working memory (in bytes) fits; at least one seed a wave.

    Without `whole_seeds`, where what is held must fit a device, a seed that does not is cut into runs of lanes that do, at least one lane
    each: a wave of its own each run.
    """
    wave: list[Lane] = []
    used = held = 0
    for pair in dict.fromkeys((lane.key.draw, lane.seed) for lane in lanes):
        group = [lane for lane in lanes if (lane.key.draw, lane.seed) == pair]
        size = sum(map(footprint, group))
        if size > memory and not whole_seeds:
            if wave:
                yield wave
            wave, used, held = [], 0, 0
            yield from _runs(group, memory)
            continue
        if wave and (used + size > memory or held == seeds):
            yield wave
            wave, used, held = [], 0, 0
        wave.extend(group)
        used += size
        held += 1
    if wave:
        yield wave


def _runs(group: Sequence[Lane], memory: int) -> Iterator[list[Lane]]:
    """The lanes of a seed in their order, as many together as fit; in parts about as large as each other, not in full ones and a rest."""
    size = sum(map(footprint, group))
    share = size / ceil(size / max(memory, 1))
    run: list[Lane] = []
    for lane in group:
        used = sum(map(footprint, run))
        if run and (used >= share or used + footprint(lane) > memory):
            yield run
            run = []
        run.append(lane)
    yield run


class _Driven:
    """A lane being driven: its script, and the ask it waits on (None when it has finished)."""

    def __init__(self, lane: Lane, until: int, watch: Watch) -> None:
        self.lane, self.watch = lane, watch
        self.script = lane.script(until)
        self.ask: Ask[Any] | None = None

    def send(self, reply: Any) -> None:
        """Give the lane its reply and run it to its next ask. What `watch` raises is not the lane's fault and goes up."""
        step = self._advance(reply)
        while isinstance(step, Done):
            self.watch(self.lane, step.record)
            step = self._advance(None)
        self.ask = step

    def stamp(self) -> Stamped | None:
        """The ask as it goes out; None when the lane may not ask it, which ends the lane."""
        assert self.ask is not None
        try:
            return self.lane.stamp(self.ask)
        except PermissionError as error:
            self.fail(error)
            return None

    def fail(self, error: Exception) -> None:
        """End a lane whose ask could not be carried out."""
        self.lane.stop(FAILED, f"in round {self.lane.round_ + 1}: {type(error).__name__}: {error}")
        self.script.close()
        self.ask = None

    def _advance(self, reply: Any) -> Ask[Any] | Done | None:
        """The lane's next step; None when it has finished or failed."""
        began = perf_counter()
        try:
            with device_faults_told():  # the server's own sums are made where the models are: no lane's fault
                return self.script.send(reply)
        except StopIteration:
            return None
        except UserError:
            raise
        except Exception as error:
            self.lane.stop(FAILED, f"in round {self.lane.round_ + 1}: {type(error).__name__}: {error}")
            return None
        finally:
            self.lane.account.charge_server(perf_counter() - began)


def _carry_out(driven: Sequence[_Driven], engine: Engine) -> None:
    """Run the asks of these lanes together and give each lane its reply."""
    stamped = [each.stamp() for each in driven]
    began = perf_counter()
    replies = iter(_run([s for s in stamped if s is not None], engine))
    share = (perf_counter() - began) / len(driven)
    for each, sent in zip(driven, stamped, strict=True):
        if sent is None:
            continue
        reply = next(replies)
        if isinstance(reply, Exception):
            each.fail(reply)
            continue
        assert each.ask is not None
        with device_faults_told():
            accepted = each.lane.answered(each.ask, sent, reply, share)
        each.send(accepted)


def _run(stamped: Sequence[Stamped], engine: Engine) -> list[Any]:
    """Ask the engine. One that cannot answer all is asked one by one, to spare the others."""
    if not stamped:
        return []
    try:
        return engine.run(stamped)
    except UserError:
        raise
    except Exception as error:
        if len(stamped) == 1:
            return [error]
    return [_run([s], engine)[0] for s in stamped]  # out here the error, and what its frames hold on a device, is gone
