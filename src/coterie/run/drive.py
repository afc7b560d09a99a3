"""The driver: lanes in lock-step. It alone turns asks into replies; there is no other round loop."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

from coterie.core.acceptance import accept, assemble
from coterie.core.asks import Ask, ModelAsk, Train
from coterie.core.errors import UserError
from coterie.engines.engine import Engine, Stamped
from coterie.run.lanes import FAILED, RUNNING, Done, Lane, RoundRecord

Watch = Callable[[Lane, RoundRecord], None]


def drive(lanes: Sequence[Lane], engine: Engine, until: int, watch: Watch) -> None:
    """Advance every running lane to round `until`, calling `watch` after each of its rounds.

    All cheap asks are answered first, and training runs when every live lane waits for it: plain lock-step would fill half the
    lanes of a training call, this rule fills nearly all. A lane that raises or diverges is recorded and the others go on.
    """
    crew = [_Hand(lane, until, watch) for lane in lanes if lane.status == RUNNING]
    for hand in crew:
        hand.send(None)
    while waiting := [hand for hand in crew if hand.ask is not None]:
        cheap = [hand for hand in waiting if not isinstance(hand.ask, Train)]
        _carry_out(cheap or waiting, engine)


def waves(lanes: Sequence[Lane], memory: int, seeds: int | None = None) -> Iterator[list[Lane]]:
    """Lanes in waves of whole seeds, at most `seeds` of them, whose working memory (in bytes) fits; at least one seed a wave."""
    wave: list[Lane] = []
    used = held = 0
    for seed in dict.fromkeys(lane.seed for lane in lanes):
        group = [lane for lane in lanes if lane.seed == seed]
        size = sum(_footprint(lane) for lane in group)
        if wave and (used + size > memory or held == seeds):
            yield wave
            wave, used, held = [], 0, 0
        wave.extend(group)
        used += size
        held += 1
    if wave:
        yield wave


def _footprint(lane: Lane) -> int:
    """Bytes a lane works with: models sent, replies, and the copies made while they are mixed."""
    cohort = lane.plan.cohort or len(lane.problem.roster)
    return 4 * lane.problem.layout.size * (3 * cohort + 8)


class _Hand:
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
            return self.script.send(reply)
        except StopIteration:
            return None
        except UserError:
            raise
        except Exception as error:
            self.lane.stop(FAILED, f"in round {self.lane.round_ + 1}: {type(error).__name__}: {error}")
            return None
        finally:
            self.lane.charge_server(perf_counter() - began)


def _carry_out(hands: Sequence[_Hand], engine: Engine) -> None:
    """Run the asks of these lanes together and hand each lane its reply."""
    stamped = [hand.stamp() for hand in hands]
    began = perf_counter()
    replies = _run([s for s in stamped if s is not None], engine)
    share = (perf_counter() - began) / len(hands)
    for hand, sent in zip(hands, stamped, strict=True):
        if sent is None:
            continue
        reply = next(replies)
        if isinstance(reply, Exception):
            hand.fail(reply)
            continue
        accepted = accept(sent.ask, reply)
        hand.lane.take_note(hand.ask, accepted, share)  # clients that were gone were asked all the same: the question costs
        hand.send(accepted)


def _run(stamped: Sequence[Stamped], engine: Engine) -> Iterator[Any]:
    """Ask the engine; a question to nobody is answered here. An engine that cannot answer all is asked one by one, to spare the others."""
    somebody = [s for s in stamped if not isinstance(s.ask, ModelAsk) or len(s.ask.clients)]
    try:
        answers = engine.run(somebody)
    except UserError:
        raise
    except Exception as error:
        answers = [error] if len(somebody) == 1 else [next(_run([s], engine)) for s in somebody]
    found = dict(zip(map(id, somebody), answers, strict=True))
    return iter([found[id(s)] if id(s) in found else assemble(s.ask, {}) for s in stamped])
