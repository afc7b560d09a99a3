"""How far apart checkpoints are, so that large states cannot fill a disk unasked; and the sentence that says beforehand what they write.

How large states are is known once lanes have started. What is written in all is bounded, not how far a run can be lost: with larger states
fewer rounds are safe.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from coterie.core.states import flatten
from coterie.evidence.writer import KEPT_STATES
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.memory import kept_by

GB = 10**9
WORTH_SAYING = 1.0  # GB in all


@dataclass(frozen=True)
class Checkpoints:
    """Those of one study."""

    execution: Execution
    rounds: int
    lanes: int  # of the whole study, wave after wave

    def last_round(self, wave: Sequence[Lane], reached: int) -> int:
        """The round at which the next segment of a wave ends, whose lanes, of which the slowest has `reached` this round, have started."""
        every = self._every(self._gigabytes(wave))
        return min((max(reached, 0) // every + 1) * every, self.rounds)

    def told(self, wave: Sequence[Lane], folder: Path) -> str | None:
        """What the study will write, judged by its first wave; nothing where that is little."""
        each = self._gigabytes(wave)
        every = self._every(each)
        count = ceil(self.rounds / every)
        if count * each < WORTH_SAYING:
            return None
        kept = min(count, KEPT_STATES) * each
        said = f"Checkpoints will write about {count * each:.1f} GB to {folder}: {count} of {each:.1f} GB, of which {KEPT_STATES} are kept"
        if every > self.execution.checkpoint_every:
            said += f"; they are {every} rounds apart, so as to write no more than --checkpoint-gb {self.execution.checkpoint_gb:g}"
        free = shutil.disk_usage(folder).free / GB
        return said + (f". Only {free:.1f} GB are free there: choose another --out, or fewer seeds." if free < kept + each else ".")

    def _every(self, each: float) -> int:
        fitting = max(1, int(self.execution.checkpoint_gb // each)) if each > 0 else self.rounds
        return max(self.execution.checkpoint_every, ceil(self.rounds / fitting) if self.rounds else 1)

    def _gigabytes(self, wave: Sequence[Lane]) -> float:
        """The states of all lanes, if those of the others are as large as this wave's; models of clients that will have taken part
        count from the beginning."""
        return sum(max(_size(lane), kept_by(lane)) for lane in wave) / GB * self.lanes / len(wave)


def _size(lane: Lane) -> int:
    """Bytes of a lane's state as it is."""
    states = [state for state in (lane.state, lane.aloft) if state is not None]
    return sum(array.nbytes for state in states for array in flatten(state)[0].values())
