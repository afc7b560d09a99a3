"""What a method holds: the numbers from which memory and disk are reckoned, and newcomers are asked some at a time."""

from dataclasses import dataclass, replace

AT_ONCE = 1 << 14  # newcomers that are asked at once, at most
PLACED = 1 << 24  # numbers in all the models that newcomers send back at once, unless a round's own are more: 64 MiB


@dataclass(frozen=True)
class Holdings:
    """Models at a time, beside those of the round's cohort and the few that are shared. A lower bound, not a promise."""

    kept: float = 0.0  # for each client that has taken part, in the state, from round to round and in every checkpoint
    everybody: bool = False  # whether some round has all clients train at once
    gathered: int = 0  # clients whom some round has train at once, where its cohort is smaller
    placing: bool = False  # whether newcomers train to be placed, some at a time
    served: float = 0.0  # for each client that is evaluated: a model of its own

    def times(self, states: int) -> "Holdings":
        """Of a method that runs so many states side by side, one after the other asking."""
        return replace(self, kept=self.kept * states)

    def placed_at_once(self, size: int, cohort: int) -> int:
        """Newcomers that are asked at once, of a model of so many numbers: never fewer than a round has train together, who are compared,
        guarded and waited for together."""
        return min(AT_ONCE, max(PLACED // size, cohort, self.gathered, 1)) if self.placing else AT_ONCE

    def serving(self, models: float) -> "Holdings":
        """With so many models more for each client that is evaluated."""
        return replace(self, served=self.served + models)


NOTHING = Holdings()
EVERYBODY_TRAINS = Holdings(everybody=True)
