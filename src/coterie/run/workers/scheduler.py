"""The scheduler of a study on workers: assigns waves, writes the results, and reassigns the waves of lost workers."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from coterie._util.errors import UserError
from coterie._util.threads import count_cores
from coterie.run.driver import is_wave_finished
from coterie.run.environment import WorkerHost
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.recorder import Recorder
from coterie.run.waves import GIB, TimeLimit, split_for_workers
from coterie.run.workers.executor import Executor, LaneSnapshot, TaskCompleted, WaveReport, WaveTask, WorkerLost
from coterie.run.workers.processes import ProcessExecutor

if TYPE_CHECKING:
    from coterie.run.study import Study

MAX_LOSSES = 3  # of workers in a row over the same segment: the segment is the cause, then


@dataclass
class Scheduler:
    """One study on an executor. Only the scheduler writes: workers need no common disk."""

    executor: Executor
    execution: Execution
    recorder: Recorder
    budget: TimeLimit | None = None
    routes: dict[str, str] = field(default_factory=dict)

    def run(self, waves: Sequence[list[Lane]]) -> None:
        """Run all waves, as many at once as the executor can."""
        driver = WorkerHost.current()
        waiting, running = deque(enumerate(waves)), dict[int, list[Lane]]()
        losses: Counter[int] = Counter()
        while running or waiting:
            while waiting and len(running) < self.executor.size:
                if self.budget is not None and not self.budget.begin_wave():
                    waiting.clear()
                    break
                number, wave = waiting.popleft()
                running[number] = wave
                lanes = tuple(map(LaneSnapshot.from_lane, wave))
                self.executor.begin(number, WaveTask(lanes, self.recorder.schedule, self.execution, dict(self.routes)))
            if not running:
                break
            number, message = self.executor.wait()
            match message:
                case WorkerHost():
                    message.check_same_as(driver)
                case WaveReport():
                    losses[number] = 0
                    self._record(running[number], message)
                    if self.budget is not None and self.budget.over:
                        self.executor.stop(number)
                        del running[number]
                case TaskCompleted():
                    del running[number]
                case WorkerLost():
                    losses[number] += 1
                    self._report_loss(running[number], message, losses[number])
                    waiting.appendleft((number, running.pop(number)))

    def _record(self, wave: Sequence[Lane], report: WaveReport) -> None:
        """Write a segment; from here on it cannot be lost."""
        lanes = {lane.key: lane for lane in wave}
        for snapshot in report.lanes:
            snapshot.apply_to(lanes[snapshot.key])
        self.routes |= report.segment.routes
        self.recorder.announce(wave)
        self.recorder.record(wave, report.segment)
        for record in report.segment.records:
            self.recorder.watch(lanes[record.key], record)

    def _report_loss(self, wave: Sequence[Lane], lost: WorkerLost, times: int) -> None:
        which = f"seeds {wave[0].seed} to {wave[-1].seed}"
        if times >= MAX_LOSSES:
            raise UserError(
                f"{times} workers in a row were lost over the same rounds of {which} ({lost.why}): they may need more memory than "
                "there is. What was written is safe; resume with --resume and fewer --workers, or less --memory."
            )
        reached = max(0, min(lane.round_ for lane in wave))
        self.recorder.notify(f"A worker is gone ({lost.why}): {which} continue on another one from round {reached}.")


def run_on_workers(study: "Study", lanes: Sequence[Lane], execution: Execution, recorder: Recorder, budget: TimeLimit | None) -> None:
    """Run the rest of a study on its workers; the lanes end as they would here."""
    left = [lane for lane in lanes if not is_wave_finished([lane], study.settings.plan.rounds)]
    if not left:
        return
    if execution.device != "cpu" and execution.ray is None:
        raise UserError(f"--workers are for the processor, and the study runs on {execution.device}: a GPU runs a whole wave alone.")
    assert execution.memory is not None  # resolved
    local = execution.workers if execution.ray is None else None  # workers that share this machine's cores and memory
    threads = execution.threads or (max(1, count_cores() // local) if local is not None else 1)
    memory = int(execution.memory * GIB / (local or 1))
    each = replace(execution, threads=threads)
    with _make_executor(study, each) as executor:
        waves = split_for_workers(left, memory, execution.seeds_per_wave, executor.size, whole_seeds=budget is not None)
        Scheduler(executor, each, recorder, budget, dict(recorder.routes or {})).run(waves)


def _make_executor(study: "Study", execution: Execution) -> Executor:
    if execution.ray is None:
        assert execution.workers is not None  # or the study would run in this process
        return ProcessExecutor(study, execution.workers)
    from coterie.run.workers.ray_cluster import RayExecutor  # here: it needs Ray

    return RayExecutor(study, execution)
