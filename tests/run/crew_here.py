"""A crew that carries out errands in this process, one stretch at a time, and loses the workers that it is told to lose."""

from collections.abc import Callable, Iterator
from typing import Any

from coterie.run.environment import WorkerHost
from coterie.run.execution import Execution
from coterie.run.workers.executor import Executor, TaskCompleted, WaveReport, WaveTask, WorkerLost, WorkerMessage, run_task


class CrewHere(Executor):
    """Errands in turn. `loses(number, reports so far)` says when a worker is lost, before it can report."""

    def __init__(self, study: Any, size: int, loses: Callable[[int, int], bool] = lambda number, reports: False) -> None:
        self.study, self._size, self.loses = study, size, loses
        self.place, self.engine = WorkerHost.here(), study.engine(Execution(threads=1).settled())
        self.busy: dict[int, Iterator[WorkerHost | WaveReport]] = {}
        self.begun: list[tuple[int, WaveTask]] = []
        self.reports: dict[int, int] = {}
        self.most = 0  # errands that were carried out at once

    @property
    def size(self) -> int:
        return self._size

    def begin(self, number: int, errand: WaveTask) -> None:
        assert number not in self.busy
        self.begun.append((number, errand))
        self.busy[number] = self._carry_out(errand)
        self.most = max(self.most, len(self.busy))

    def wait(self) -> tuple[int, WorkerMessage]:
        number = next(iter(self.busy))
        told = self.busy.pop(number)
        news: WorkerMessage = next(told, None) or TaskCompleted()
        if isinstance(news, WaveReport):
            if self.loses(number, self.reports.get(number, 0)):
                return number, WorkerLost("a test")
            self.reports[number] = self.reports.get(number, 0) + 1
        if not isinstance(news, TaskCompleted):
            self.busy[number] = told  # at the end: errands take turns
        return number, news

    def stop(self, number: int) -> None:
        del self.busy[number]

    def close(self) -> None:
        self.busy.clear()
        self.engine.close()

    def _carry_out(self, errand: WaveTask) -> Iterator[WorkerHost | WaveReport]:
        yield self.place
        yield from run_task(self.study.lanes(), errand, self.engine)
