"""How far an inspection is: questions to the clients, with the search for groups between them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coterie.core.asks import Ask

WatchSteps = Callable[[int, int, str], None]  # how many questions are answered, of how many, and what is done next


@dataclass
class Steps:
    """Counts the questions of an inspection, and tells a watcher."""

    gradients: int  # questions for gradients: two halves, each class
    pilot: int  # questions of the pilot
    watch: WatchSteps
    done: int = field(default=0, init=False)

    def __call__(self, ask: Ask[Any]) -> None:
        self.done += 1
        self.watch(self.done, self.gradients + 1 + self.pilot, self.next)

    @property
    def next(self) -> str:
        if self.done < self.gradients:
            return "asking for gradients"
        if self.done == self.gradients:
            return "asking for errors"
        return "looking for groups" if self.done == self.gradients + 1 else "trying the groups out"
