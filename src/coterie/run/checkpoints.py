"""How far apart checkpoints are, so that large states cannot fill a disk unasked; and the sentence that says beforehand what they write.

How large states are is known once lanes have started; how much of one will have changed by the next checkpoint is not. So what is said, and
bounded, is what whole states would take: the most that can be written. With larger states fewer rounds are safe.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from coterie.core.states import flatten
from coterie.evidence.kept import KEPT_STATES
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.memory import kept_by

GB = 10**9
WORTH_SAYING = 1.0  # GB in all
MOST_AT_ONCE = (
    2 * KEPT_STATES + 1
)  # whole states on the disk: the files that a checkpoint rests on hold at most twice its own, and the next


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
        """What the study will write at most, judged by its first wave; nothing where that is little."""
        each = self._gigabytes(wave)
        every = self._every(each)
        count = ceil(self.rounds / every)
        if count * each < WORTH_SAYING:
            return None
        said = f"Checkpoints will write at most {count * each:.1f} GB to {folder}: {count} of {each:.1f} GB"
        said += ", less what does not change between them"
        if every > self.execution.checkpoint_every:
            said += f"; they are {every} rounds apart, so as to write no more than --checkpoint-gb {self.execution.checkpoint_gb:g}"
        free = shutil.disk_usage(folder).free / GB
        at_once = min(count, MOST_AT_ONCE) * each
        tight = f". Up to {at_once:.1f} GB lie there at a time, and only {free:.1f} are free: choose another --out, or fewer seeds."
        return said + (tight if free < at_once else ".")

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
