"""A reproduction that has been carried out, or judged again from what was kept of it."""

from dataclasses import dataclass

from coterie.reproduce.file import Reproduction
from coterie.reproduce.kept import Kept
from coterie.reproduce.outcomes import StudyResult
from coterie.reproduce.run import PartRun
from coterie.reproduce.values import PartValues


@dataclass(frozen=True)
class Reproduced:
    """Runs, numbers and verdicts."""

    study: Reproduction
    runs: list[PartRun]
    values: dict[str, PartValues]
    result: StudyResult
    kept: Kept | None = None  # where not everything was run: what else it was judged from
    again: bool = False  # nothing was run

    @property
    def seeds(self) -> int:
        """The most seeds that any number rests on."""
        return max((len(found) for values in self.values.values() for found in values.numbers.values()), default=0)
