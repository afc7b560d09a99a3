"""Early stopping: a run ends when its score on clients' validation parts has not improved for so many evaluated rounds.

Only rounds count that are evaluated whatever the number of rounds is: one that is evaluated because it is the last would not be, had the
study more. So a study that grows stops where one run of all would have. Test data are never looked at.
"""

from math import isnan

from coterie.core.errors import UserError
from coterie.core.plan import Plan


class Patience:
    """The validation scores of a run so far: the best, and how many rounds ago it was."""

    def __init__(self, patience: int | None) -> None:
        self.patience = patience
        self.best, self.best_round, self.since = float("-inf"), 0, 0

    def seen(self, round_: int, score: float) -> None:
        """One evaluated round more; one without a score (nobody answered) says nothing."""
        if isnan(score):
            return
        if score > self.best:
            self.best, self.best_round, self.since = score, round_, 0
        else:
            self.since += 1

    @property
    def over(self) -> bool:
        return self.patience is not None and self.since >= self.patience

    @property
    def reason(self) -> str:
        return f"early: the validation score was best in round {self.best_round}"


def check_stopping(plan: Plan, data: str, *, validation: bool, changing: bool) -> None:
    """Refuse to stop by what is not there, or by what means something else in every round."""
    if plan.stop_early is None:
        return
    if not validation:
        raise UserError(
            f"--stop-early watches clients' validation parts, and {data!r} has none: ask for them with validation=0.1 in its spec."
        )
    if changing:
        raise UserError(f"--stop-early cannot be used with {data!r}, whose clients or data may change from round to round: leave it away.")
