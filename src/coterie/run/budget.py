"""A budget of time for a study that must end cleanly: whole waves of seeds where they fit, whole segments where not."""

from collections.abc import Callable
from time import monotonic
from typing import Protocol

from coterie.core.errors import UserError


class Clock(Protocol):
    """What may end a study early: a budget of time, or something that has happened."""

    @property
    def over(self) -> bool:
        """Whether to end after the segment that has just been written."""

    def begin_wave(self) -> bool:
        """Whether another wave may begin."""


class Budget:
    """So many seconds from now. It learns from the waves it has seen how long the next will take."""

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
        """Whether another wave may begin: one that takes as long as the longest before it would still fit."""
        now = self.clock()
        if self._began is not None:
            self.longest = max(self.longest, now - self._began)
        self._began = now
        return now + self.longest < self.end

    def share(self, parts: int) -> "Budget":
        """An equal share of what is left for the next of so many parts; what it leaves over goes to the others."""
        return Budget(max(self.left / parts, 1e-9), self.clock)
