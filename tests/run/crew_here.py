"""A crew that carries out errands in this process, one stretch at a time, and loses the workers that it is told to lose."""

from collections.abc import Callable, Iterator
from typing import Any

from coterie.run.execution import Execution
from coterie.run.spread.crew import Completed, Crew, Lost, News
from coterie.run.spread.errand import Errand, WaveReport, carry_out
from coterie.run.spread.place import Place


class CrewHere(Crew):
    """Errands in turn. `loses(number, reports so far)` says when a worker is lost, before it can report."""

    def __init__(self, study: Any, size: int, loses: Callable[[int, int], bool] = lambda number, reports: False) -> None:
        self.study, self._size, self.loses = study, size, loses
        self.place, self.engine = Place.here(), study.engine(Execution(threads=1).settled())
        self.busy: dict[int, Iterator[Place | WaveReport]] = {}
        self.begun: list[tuple[int, Errand]] = []
        self.reports: dict[int, int] = {}
        self.most = 0  # errands that were carried out at once

    @property
    def size(self) -> int:
        return self._size

    def begin(self, number: int, errand: Errand) -> None:
        assert number not in self.busy
        self.begun.append((number, errand))
        self.busy[number] = self._carry_out(errand)
        self.most = max(self.most, len(self.busy))

    def wait(self) -> tuple[int, News]:
        number = next(iter(self.busy))
        told = self.busy.pop(number)
        news: News = next(told, None) or Completed()
        if isinstance(news, WaveReport):
            if self.loses(number, self.reports.get(number, 0)):
                return number, Lost("a test")
            self.reports[number] = self.reports.get(number, 0) + 1
        if not isinstance(news, Completed):
            self.busy[number] = told  # at the end: errands take turns
        return number, news

    def stop(self, number: int) -> None:
        del self.busy[number]

    def close(self) -> None:
        self.busy.clear()
        self.engine.close()

    def _carry_out(self, errand: Errand) -> Iterator[Place | WaveReport]:
        yield self.place
        yield from carry_out(self.study.lanes(), errand, self.engine)
