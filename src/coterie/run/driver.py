"""The driver: advances lanes in lock-step, wave by wave and segment by segment. It alone turns asks into replies."""

from collections.abc import Callable, Generator, Iterator, Sequence
from time import perf_counter
from typing import Any, TypeVar

from coterie._util.errors import UserError
from coterie.core.asks import Ask
from coterie.core.replies import accept
from coterie.engines.device import get_resident_memory, raise_device_errors
from coterie.engines.engine import Engine, StampedAsk
from coterie.evidence.records import FAILED, RUNNING, RoundRecord
from coterie.run.callbacks import notify
from coterie.run.execution import Execution
from coterie.run.lanes import Lane, RoundDone
from coterie.run.recorder import CheckpointSchedule, Recorder, WaveSegment
from coterie.run.waves import GIB, TimeLimit, describe_spill, split_into_waves

T = TypeVar("T")
OnRound = Callable[[Lane, RoundRecord], None]


def drive(lanes: Sequence[Lane], engine: Engine, until: int, watch: OnRound) -> None:
    """Advance every running lane to round `until`, calling `watch` after each of its rounds.

    All cheap asks are answered first, and training runs when every live lane waits for it: plain lock-step would fill half the
    lanes of a training call, this rule fills nearly all. A lane that raises or diverges is recorded and the others continue.
    """
    driven = [_LaneRun(lane, until, watch) for lane in lanes if lane.status == RUNNING]
    for each in driven:
        each.send(None)
    while waiting := [each for each in driven if each.ask is not None]:
        cheap = [each for each in waiting if each.ask is not None and not each.ask.is_training]
        _answer_asks(cheap or waiting, engine)


@raise_device_errors()
def run_script(
    script: Generator[Ask[Any], Any, T],
    engine: Engine,
    *,
    seed: int = 0,
    round_: int = 0,
    draw: int = 0,
    watch: Callable[[Ask[Any]], None] = lambda ask: None,
) -> T:
    """The result of a script that is no lane's (an inspection, a measurement). Replies are accepted as for a lane.

    Asks are keyed by seed and round; `watch` is called with each ask that has been answered.
    """
    reply = None
    while True:
        try:
            ask = script.send(reply)
        except StopIteration as end:
            value: T = end.value
            return value
        singles = ask.unpack()
        answers = engine.run([StampedAsk(single, seed, round_, draw) for single in singles])
        reply = ask.pack(accept(single, answer) for single, answer in zip(singles, answers, strict=True))
        for single in singles:
            watch(single)


class _LaneRun:
    """A lane being driven: its script, and the ask it waits for (None when it has finished)."""

    def __init__(self, lane: Lane, until: int, watch: OnRound) -> None:
        self.lane, self.watch = lane, watch
        self.script = lane.script(until)
        self.ask: Ask[Any] | None = None

    def send(self, reply: Any) -> None:
        """Give the lane its reply and run it to its next ask. An error in `watch` is not the lane's, and is raised."""
        step = self._advance(reply)
        while isinstance(step, RoundDone):
            self.watch(self.lane, step.record)
            step = self._advance(None)
        self.ask = step

    def stamp(self) -> list[StampedAsk]:
        """The asks as they go out; none when the lane may not ask one of them, which ends the lane."""
        assert self.ask is not None
        try:
            return [self.lane.stamp(single) for single in self.ask.unpack()]
        except PermissionError as error:
            self.fail(error)
            return []

    def receive(self, sent: Sequence[StampedAsk], replies: Sequence[Any], seconds: float) -> None:
        """Give the lane its replies, each as the lane accepts it; `seconds` is what each took."""
        assert self.ask is not None
        failed = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if failed is not None:
            return self.fail(failed)
        with raise_device_errors():
            singles = zip(self.ask.unpack(), sent, replies, strict=True)
            accepted = [self.lane.accept_reply(ask, own, reply, seconds) for ask, own, reply in singles]
        return self.send(self.ask.pack(iter(accepted)))

    def fail(self, error: Exception) -> None:
        """End a lane whose ask could not be executed."""
        self.lane.stop(FAILED, f"in round {self.lane.round_ + 1}: {type(error).__name__}: {error}")
        self.script.close()
        self.ask = None

    def _advance(self, reply: Any) -> Ask[Any] | RoundDone | None:
        """The lane's next step; None when it has finished or failed."""
        began = perf_counter()
        try:
            with raise_device_errors():  # the server computes where the models are: an error there is not the lane's
                return self.script.send(reply)
        except StopIteration:
            return None
        except UserError:
            raise
        except Exception as error:
            self.fail(error)
            return None
        finally:
            self.lane.account.charge_server(perf_counter() - began)


def _answer_asks(driven: Sequence[_LaneRun], engine: Engine) -> None:
    """Run the asks of these lanes together and give each lane its replies."""
    stamped = [each.stamp() for each in driven]
    asked = [one for own in stamped for one in own]
    began = perf_counter()
    replies = iter(_ask_engine(asked, engine))
    share = (perf_counter() - began) / max(len(asked), 1)
    for each, sent in zip(driven, stamped, strict=True):
        if sent:
            each.receive(sent, [next(replies) for _ in sent], share)


def _ask_engine(stamped: Sequence[StampedAsk], engine: Engine) -> list[Any]:
    """Ask the engine; where it cannot answer all together, one by one, so that the others are answered."""
    if not stamped:
        return []
    try:
        return engine.run(stamped)
    except UserError:
        raise
    except Exception as error:
        if len(stamped) == 1:
            return [error]
    return [_ask_engine([s], engine)[0] for s in stamped]  # out here the error, and what its frames hold on a device, is gone


def run_waves(lanes: Sequence[Lane], engine: Engine, execution: Execution, recorder: Recorder, budget: TimeLimit | None) -> None:
    """Run all lanes to the last round, wave after wave. A segment is written when all lanes of its wave have passed it."""
    assert execution.memory is not None  # resolved
    waves = list(split_into_waves(lanes, int(execution.memory * GIB), execution.seeds_per_wave, whole_seeds=not execution.is_on_gpu))
    if execution.is_on_gpu and (sentence := describe_spill(waves, get_resident_memory(execution.device))) is not None:
        notify(recorder.watchers, sentence)
    for wave in waves:
        if is_wave_finished(wave, recorder.schedule.rounds):
            continue
        if budget is not None and not budget.begin_wave():
            break
        for segment in run_segments(wave, engine, recorder.schedule, recorder.watch, recorder.announce):
            recorder.record(wave, segment)
            if budget is not None and budget.over:
                break


def run_segments(
    wave: Sequence[Lane],
    engine: Engine,
    schedule: CheckpointSchedule,
    watch: OnRound = lambda lane, record: None,
    on_start: Callable[[Sequence[Lane]], None] = lambda wave: None,
) -> Iterator[WaveSegment]:
    """Advance a wave to its end, segment by segment. `on_start` is called when the sizes of states are known."""
    while not is_wave_finished(wave, schedule.rounds):
        reached = min(lane.round_ for lane in wave if lane.status == RUNNING)
        before = {lane.key: lane.round_ for lane in wave}
        records: list[RoundRecord] = []

        def keep(lane: Lane, record: RoundRecord, records: list[RoundRecord] = records) -> None:
            records.append(record)
            watch(lane, record)

        drive(wave, engine, 0, keep)
        on_start(wave)
        drive(wave, engine, schedule.find_segment_end(wave, reached), keep)
        yield WaveSegment(before, records, dict(engine.routes()))


def is_wave_finished(wave: Sequence[Lane], rounds: int) -> bool:
    """Whether no lane of a wave has a round left."""
    return all(lane.round_ >= rounds or lane.status != RUNNING for lane in wave)
