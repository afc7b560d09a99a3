"""What a server knows of what is learned: who the clients are, which model they train, what they can be asked about. Never data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.core.arrays import Ids
from coterie.core.layout import InitialModels, Layout
from coterie.core.method import Context
from coterie.core.plan import Plan
from coterie.core.roster import Roster
from coterie.core.tasks import CLASSIFICATION, Task

if TYPE_CHECKING:
    from coterie.core.model import ModelSpec


def _no_truth(round_: int) -> Ids | None:
    """Of a federation whose true groups nobody knows. It has a name, so that a problem can be sent to another process."""
    return None


@dataclass(frozen=True, eq=False)
class Problem:
    """A roster, a model and what evaluation can be asked for.

    In a simulation, `roster_at` and `truth_at` follow the world as it changes; `truth_at` gives the true groups of a scenario, which only
    the oracle control is ever shown.
    """

    model: "ModelSpec"
    roster_at: Callable[[int], Roster]  # the roster as a round finds it; clients are only ever added
    truth_at: Callable[[int], Ids | None] = _no_truth
    validation: bool = False  # whether clients have validation parts
    central: bool = False  # whether the server has a test set of its own
    task: Task = CLASSIFICATION
    everybody: "Problem | None" = None  # the same with those clients, last, that take no part and are served all the same

    @property
    def roster(self) -> Roster:
        """Everybody, reachable or not."""
        return self.roster_at(0)

    @property
    def layout(self) -> Layout:
        return self.model.layout

    def context(self, plan: Plan, seed: int, round_: int) -> Context:
        """What a method, or any script of asks, may know in one round."""
        return Context(
            self.roster_at(round_),
            self.layout,
            plan,
            seed,
            round_,
            outputs=self.model.outputs,
            validation=self.validation,
            task=self.task,
        )

    def initial(self, seed: int) -> InitialModels:
        """The keyed factory of initial models of one seed."""
        return self.model.initial(seed)
