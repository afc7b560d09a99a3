"""An executor that runs tasks in this process, one segment at a time, and loses workers on request."""

from collections.abc import Callable, Iterator
from typing import Any

from coterie.run.environment import WorkerHost
from coterie.run.execution import Execution
from coterie.run.workers.executor import Executor, TaskCompleted, WaveReport, WaveTask, WorkerLost, WorkerMessage, run_task


class ExecutorHere(Executor):
    """Tasks in turn. `loses(number, reports so far)` says when a worker is lost, before it can report."""

    def __init__(self, study: Any, size: int, loses: Callable[[int, int], bool] = lambda number, reports: False) -> None:
        self.study, self._size, self.loses = study, size, loses
        self.place, self.engine = WorkerHost.current(), study.engine(Execution(threads=1).resolve())
        self.busy: dict[int, Iterator[WorkerHost | WaveReport]] = {}
        self.begun: list[tuple[int, WaveTask]] = []
        self.reports: dict[int, int] = {}
        self.most = 0  # tasks that were run at once

    @property
    def size(self) -> int:
        return self._size

    def begin(self, number: int, task: WaveTask) -> None:
        assert number not in self.busy
        self.begun.append((number, task))
        self.busy[number] = self._run(task)
        self.most = max(self.most, len(self.busy))

    def wait(self) -> tuple[int, WorkerMessage]:
        number = next(iter(self.busy))
        stream = self.busy.pop(number)
        message: WorkerMessage = next(stream, None) or TaskCompleted()
        if isinstance(message, WaveReport):
            if self.loses(number, self.reports.get(number, 0)):
                return number, WorkerLost("a test")
            self.reports[number] = self.reports.get(number, 0) + 1
        if not isinstance(message, TaskCompleted):
            self.busy[number] = stream  # at the end: tasks take turns
        return number, message

    def stop(self, number: int) -> None:
        del self.busy[number]

    def close(self) -> None:
        self.busy.clear()
        self.engine.close()

    def _run(self, task: WaveTask) -> Iterator[WorkerHost | WaveReport]:
        yield self.place
        yield from run_task(self.study.lanes(), task, self.engine)
