"""How many groups: as a user says, or, where that is ``auto``, by the way that `choice` names. What was chosen is noted."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from coterie.core.arrays import Doubles, Floats
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Round
from coterie.core.settings import setting
from coterie.core.sketches import Sketch
from coterie.grouping.choice import How
from coterie.grouping.choice.points import from_points
from coterie.grouping.choice.structure.ask import from_structure
from coterie.methods.trial import CLIENTS, trial

GroupNumber = int | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class ChoosesGroups:
    """The settings of methods that can find their number of groups themselves, and the two places where they do.

    `structure` and `trial` ask clients before anything is grouped (`asked_number`); the others read the number from the points that are
    about to be grouped (`read_number`). `structure` and `gap` can answer one; `silhouette` cannot.
    """

    choice: How = setting("structure", "How auto finds the number of groups.")
    most: int = setting(10, "The most groups that auto may find.", least=1)

    def tried_on(self, said: GroupNumber, probe: int = 0) -> int:
        """Clients whom finding the number has train at once: a trial's, or those of a probe whose points the number is read from."""
        if said != "auto" or self.choice == "structure":
            return 0
        return CLIENTS if self.choice == "trial" else probe

    def asked_number(
        self, said: GroupNumber, model: Floats, init: InitialModels, ctx: Context, name: str = "groups", sketch: Sketch | None = None
    ) -> Round[int | None]:
        """The number of groups where it is said or asked for; None where it has to be read from points."""
        if said != "auto":
            return said
        if self.choice == "structure":
            ctx.notes.choice = yield from from_structure(model, ctx, self.most, sketch)
        elif self.choice == "trial":
            ctx.notes.choice = yield from trial(lambda k: self._with(name, k), init, ctx, self.most)
        else:
            return None
        return ctx.notes.choice.k

    def read_number(self, known: int | None, points: Doubles, ctx: Context) -> int:
        """The number of groups, read from points where it is not known."""
        if known is not None:
            return known
        assert self.choice != "structure" and self.choice != "trial"  # noqa: PT018  so that the type is narrowed
        ctx.notes.choice = from_points(points, ctx.rng("number of groups"), self.most, self.choice)
        return ctx.notes.choice.k

    def _with(self, name: str, k: int) -> Any:
        """The method itself with a number of groups, and similarity deciding."""
        changes: dict[str, Any] = {name: k, "assign": "similar"}
        return replace(self, **changes)
