"""Watching a study from outside: one small interface for progress bars, loggers and your own code."""

from coterie.evidence.record import RoundRecord
from coterie.evidence.settings import Settings
from coterie.run.lanes import Lane


class Callback:
    """Override what you need. Callbacks watch: nothing they do changes a result."""

    def on_notice(self, sentence: str) -> None:
        """What the user should know of: before the start, what a resumed study had to make again, or under what else it goes on; once lanes
        have started, how much checkpoints will write."""

    def on_start(self, settings: Settings, total_rounds: int, done_rounds: int) -> None:
        """Before the first round: `total_rounds` counts rounds times lanes, of which a resumed study has `done_rounds` already."""

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        """After every round of every lane, in the order in which they end."""

    def on_end(self) -> None:
        """After the last round, or when the study was stopped."""
