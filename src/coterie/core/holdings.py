"""What a method holds: the numbers from which memory and disk are reckoned before anything runs."""

from dataclasses import dataclass, replace

AT_ONCE = 1 << 14  # newcomers that are asked at once: what they answer is not all held together
PLACED = 1 << 27  # numbers of the models that they train to be placed: half a GiB


@dataclass(frozen=True)
class Holdings:
    """Models at a time, beside those of the round's cohort and the few that are shared. A lower bound, not a promise."""

    kept: float = 0.0  # for each client that has taken part, in the state, from round to round and in every checkpoint
    everybody: bool = False  # whether some round has all clients train at once
    gathered: int = 0  # clients whom some round has train at once, where its cohort is smaller
    placing: bool = False  # whether newcomers train to be placed, some at a time
    served: float = 0.0  # for each client that is evaluated: a model of its own, or one that it trains to be placed

    def times(self, states: int) -> "Holdings":
        """Of a method that runs so many states side by side, one after the other asking."""
        return replace(self, kept=self.kept * states)

    def newcomers(self, size: int) -> int:
        """Newcomers that are asked at once, of a model of so many numbers."""
        return max(min(AT_ONCE, PLACED // size), 1) if self.placing else AT_ONCE

    def serving(self, models: float) -> "Holdings":
        """With so many models more for each client that is evaluated."""
        return replace(self, served=self.served + models)


NOTHING = Holdings()
EVERYBODY_TRAINS = Holdings(everybody=True)
