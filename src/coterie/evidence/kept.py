"""The checkpoints that a study's folder keeps: those of each lane's last segments, and every file that one of them rests on."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError

from coterie.core.plain import read_json
from coterie.evidence.checkpoint import STATES, Checkpoint, Draft, Known, read_checkpoint
from coterie.evidence.pieces import PIECES
from coterie.evidence.record import LaneKey, Progress
from coterie.evidence.source import key_of, segments

KEPT_STATES = 2  # segments of a lane that keep their states: the last, and one to go back to


class KeptCheckpoints:
    """What is there to go on from, by the number of the segment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lanes: dict[int, list[LaneKey]] = {}
        self._rests_on: dict[int, set[int]] = {}
        self._sizes: dict[int, int] = {}  # bytes of pieces
        self._known: dict[LaneKey, Known] = {}  # of each lane's last checkpoint
        for path in segments(folder):
            if (path / PIECES).exists():
                self._sizes[int(path.name)] = (path / PIECES).stat().st_size
            if (path / STATES).exists():
                self._note(int(path.name), [key_of(entry) for entry in read_json(path / "lanes.json")], _read(path / STATES))

    def draft(self, number: int, lanes: Sequence[Progress]) -> Draft:
        """The next checkpoint, of which only what the last ones of its lanes lack is to be written."""
        return Draft.of(number, lanes, self._known, self._sizes)

    def written(self, number: int, lanes: Sequence[Progress], draft: Draft) -> None:
        """Take note of a checkpoint that is in its place, and give up what nobody needs any more."""
        if draft.fresh:
            self._sizes[number] = draft.fresh_bytes
        self._note(number, [lane.key for lane in lanes], draft.checkpoint)
        self._drop()

    def _note(self, number: int, keys: list[LaneKey], checkpoint: Checkpoint) -> None:
        self._lanes[number], self._rests_on[number] = keys, checkpoint.rests_on
        for place, key in enumerate(keys):
            known = checkpoint.known(place)  # what is in a file that was set aside must be written again
            self._known[key] = {digest: at for digest, at in known.items() if at.segment in self._sizes}

    def _drop(self) -> None:
        """States are large: a segment whose lanes all have enough later ones gives its own up, and pieces that none rests on go."""
        later: Counter[LaneKey] = Counter()
        for number in sorted(self._lanes, reverse=True):
            keys = self._lanes[number]
            if all(later[key] >= KEPT_STATES for key in keys):
                (self._segment(number) / STATES).unlink(missing_ok=True)
                del self._lanes[number], self._rests_on[number]
            later.update(keys)
        for number in self._sizes.keys() - set[int]().union(*self._rests_on.values()):
            (self._segment(number) / PIECES).unlink(missing_ok=True)
            del self._sizes[number]

    def _segment(self, number: int) -> Path:
        return self._folder / "segments" / f"{number:06d}"


def _read(path: Path) -> Checkpoint:
    """A checkpoint; nothing where it cannot be read, which a spare one need not be."""
    try:
        return read_checkpoint(path)
    except (OSError, SafetensorError, ValueError, KeyError):
        return Checkpoint({}, {})
