"""The seam between a study and whoever carries out its waves: begin one, wait for what comes, stop one."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from coterie.run.spread.errand import Errand, WaveReport
from coterie.run.spread.place import Place


@dataclass(frozen=True)
class Lost:
    """A worker that is gone, with what it had done since its last report."""

    why: str


class Completed:
    """An errand has come to its end."""


News = Place | WaveReport | Completed | Lost  # in this order; a worker that is gone may come at any time


class Crew(ABC):
    """Workers. Each errand is told of by where it is carried out, by a report for every stretch, and by its end.

    What a worker cannot do by the study's fault is raised by `wait` as it would be here.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Errands that can be carried out at once, now."""

    @abstractmethod
    def begin(self, number: int, errand: Errand) -> None:
        """Have an errand carried out, by a number that nobody else has at the moment."""

    @abstractmethod
    def wait(self) -> tuple[int, News]:
        """The next news of any errand that was begun, by its number."""

    @abstractmethod
    def stop(self, number: int) -> None:
        """Give up an errand: nothing more is told of it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all workers, whatever they are at."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
