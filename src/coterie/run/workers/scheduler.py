"""The scheduler of a study on workers: assigns waves, writes the results, and reassigns the waves of lost workers."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from coterie._util.errors import UserError
from coterie._util.threads import count_cores
from coterie.run.callbacks import Callback
from coterie.run.driver import is_wave_finished
from coterie.run.environment import WorkerHost
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.recorder import CheckpointSchedule, Recorder
from coterie.run.waves import TimeLimit, split_for_workers
from coterie.run.workers.executor import Executor, LaneSnapshot, TaskCompleted, WaveReport, WaveTask, WorkerLost
from coterie.run.workers.processes import ProcessExecutor

if TYPE_CHECKING:
    from coterie.run.study import Study


MAX_LOSSES = 3  # of workers, one after another, over the same stretch: it is the stretch, then


@dataclass
class Scheduler:
    """One study on a crew. Nobody else writes: workers need no disk in common."""

    executor: Executor
    execution: Execution
    checkpoints: CheckpointSchedule
    recorder: Recorder
    watchers: Sequence[Callback]
    budget: TimeLimit | None = None
    routes: dict[str, str] = field(default_factory=dict)

    def run(self, waves: Sequence[list[Lane]]) -> None:
        """Carry out all waves, as many at once as the crew can."""
        here = WorkerHost.here()
        waiting, out = deque(enumerate(waves)), dict[int, list[Lane]]()
        losses: Counter[int] = Counter()
        while out or waiting:
            while waiting and len(out) < self.executor.size:
                if self.budget is not None and not self.budget.begin_wave():
                    waiting.clear()
                    break
                number, wave = waiting.popleft()
                out[number] = wave
                self.executor.begin(number, self._make_task(wave))
            if not out:
                break
            number, news = self.executor.wait()
            match news:
                case WorkerHost():
                    news.check_same_as(here)
                case WaveReport():
                    losses[number] = 0
                    self._take(out[number], news)
                    if self.budget is not None and self.budget.over:
                        self.executor.stop(number)
                        del out[number]
                case TaskCompleted():
                    del out[number]
                case WorkerLost():
                    losses[number] += 1
                    self._report_loss(out[number], news, losses[number])
                    waiting.appendleft((number, out.pop(number)))

    def _make_task(self, wave: Sequence[Lane]) -> WaveTask:
        return WaveTask(tuple(map(LaneSnapshot.of, wave)), self.checkpoints, self.execution, dict(self.routes))

    def _take(self, wave: Sequence[Lane], report: WaveReport) -> None:
        """Write a stretch down; from here on nothing of it can be lost."""
        lanes = {lane.key: lane for lane in wave}
        for standing in report.moved:
            standing.put(lanes[standing.key])
        self.routes |= report.segment.routes
        self.recorder.announce(self.checkpoints, wave, self.watchers)
        self.recorder.keep(wave, report.segment.before, report.segment.records, report.segment.routes)
        for record in report.segment.records:
            for watcher in self.watchers:
                watcher.on_round(lanes[record.key], record)

    def _report_loss(self, wave: Sequence[Lane], lost: WorkerLost, times: int) -> None:
        which = f"seeds {wave[0].seed} to {wave[-1].seed}"
        if times >= MAX_LOSSES:
            raise UserError(
                f"{times} workers in a row were lost over the same rounds of {which} ({lost.why}): they may need more memory than "
                "there is. What was written is safe; go on with --resume and fewer --workers, or less --memory."
            )
        sentence = f"A worker is gone ({lost.why}): {which} go on elsewhere from round {max(0, min(lane.round_ for lane in wave))}."
        if self.recorder.writer is not None:
            self.recorder.writer.log(sentence)
        for watcher in self.watchers:
            watcher.on_notice(sentence)


GIB = 1 << 30


def run_on_workers(
    study: "Study",
    lanes: Sequence[Lane],
    execution: Execution,
    checkpoints: CheckpointSchedule,
    keeper: Recorder,
    watchers: Sequence[Callback],
    budget: TimeLimit | None,
) -> None:
    """Carry out what is left of a study on its workers, and leave its lanes where they have come to."""
    left = [lane for lane in lanes if not is_wave_finished([lane], study.settings.plan.rounds)]
    if not left:
        return
    if execution.device != "cpu" and execution.ray is None:
        raise UserError(f"--workers are for the processor, and the study runs on {execution.device}: a GPU carries out a whole wave alone.")
    assert execution.memory is not None  # settled
    here = execution.workers if execution.ray is None else None  # workers that share this machine's cores and memory
    threads = execution.threads or (max(1, count_cores() // here) if here is not None else 1)
    memory = int(execution.memory * GIB / (here or 1))
    each = replace(execution, threads=threads)
    with _make_executor(study, each) as crew:
        pieces = split_for_workers(left, memory, execution.seeds_per_wave, crew.size, whole_seeds=budget is not None)
        Scheduler(crew, each, checkpoints, keeper, watchers, budget, dict(keeper.routes or {})).run(pieces)


def _make_executor(study: "Study", execution: Execution) -> Executor:
    if execution.ray is None:
        assert execution.workers is not None  # or it would be carried out here
        return ProcessExecutor(study, execution.workers)
    from coterie.run.workers.ray_cluster import RayExecutor  # here: it needs Ray

    return RayExecutor(study, execution)
