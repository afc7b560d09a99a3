"""A checkpoint: the states of a segment's lanes, small arrays in a file of their own, large ones in pieces.

A piece that the last checkpoint of the same lane holds is not written again: it is said where it lies. So a checkpoint may rest on files
of earlier segments, and never on those of other lanes: whatever sets a segment aside sets aside what rests on it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from coterie.core.arrays import Array
from coterie.core.states import flatten
from coterie.evidence.pieces import DIGEST, PIECES, Bytes, Cutting, Location, digests_of
from coterie.evidence.record import ALOFT, LaneKey, Progress

STATES = "states.safetensors"
DIGESTS, PLACES = "digests", "places"  # of all pieces, array after array; names of a lane's own arrays begin with a number
Known = dict[bytes, Location]  # pieces of a lane by their content


@dataclass
class Checkpoint:
    """What the file of a checkpoint says, without the pieces themselves."""

    trees: dict[str, Any]  # by the lane's place in `lanes.json`: where arrays belong
    small: dict[str, Array]
    cuts: dict[str, Cutting] = field(default_factory=dict)
    digests: list[bytes] = field(default_factory=list)
    places: list[Location] = field(default_factory=list)

    @property
    def rests_on(self) -> set[int]:
        """The segments whose pieces it needs."""
        return {place.segment for place in self.places}

    def known(self, place: int) -> Known:
        """The pieces of the lane at a place."""
        own = (str(place), f"{place}{ALOFT}")
        found: Known = {}
        first = 0
        for name, cut in self.cuts.items():
            after = first + len(cut.lengths)
            if name.partition("/")[0] in own:
                found.update(zip(self.digests[first:after], self.places[first:after], strict=True))
            first = after
        return found

    def arrays(self, files: Mapping[int, Bytes]) -> dict[str, Array]:
        """All arrays, those in pieces put together from the files of segments."""
        made, first = dict(self.small), 0
        for name, cut in self.cuts.items():
            places = self.places[first : first + len(cut.lengths)]
            made[name] = cut.together(files[at.segment][at.first : at.first + n] for at, n in zip(places, cut.lengths, strict=True))
            first += len(places)
        return made

    def as_bytes(self) -> bytes:
        tables: dict[str, Array] = {}
        if self.cuts:
            digests = np.frombuffer(b"".join(self.digests), np.uint8).reshape(-1, DIGEST)
            tables = {DIGESTS: digests, PLACES: np.array(self.places, dtype=np.int64)}
        told = {"trees": json.dumps(self.trees, sort_keys=True)}
        if self.cuts:
            told["cuts"] = json.dumps({name: [cut.dtype, cut.shape, cut.rows] for name, cut in self.cuts.items()})
        return bytes(save({**self.small, **tables}, metadata=told))


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a file; OSError, SafetensorError, ValueError or KeyError where it cannot be read. Those of earlier versions have
    all their arrays in one file."""
    with safe_open(path, framework="numpy") as file:
        told = file.metadata() or {}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    digests, places = arrays.pop(DIGESTS, None), arrays.pop(PLACES, None)
    made = Checkpoint(json.loads(told["trees"]), arrays)
    if digests is not None and places is not None:
        made.cuts = {name: Cutting.from_json(tree) for name, tree in json.loads(told["cuts"]).items()}
        made.digests = [row.tobytes() for row in digests]
        made.places = [Location(segment, first) for segment, first in places.tolist()]
    return made


def pieces_of(segment: Path) -> Bytes:
    """The pieces of a segment, fetched from the disk as they are looked at."""
    return np.memmap(segment / PIECES, dtype=np.uint8, mode="r")


@dataclass(frozen=True)
class Draft:
    """A checkpoint about to be written, and the pieces that are new."""

    checkpoint: Checkpoint
    fresh: list[Bytes]

    @classmethod
    def of(cls, number: int, lanes: Sequence[Progress], known: Mapping[LaneKey, Known], sizes: Mapping[int, int]) -> "Draft":
        """The states of lanes at the end of a segment, given the pieces of each lane's last checkpoint and the bytes in each file.

        A file of which this checkpoint would need less than half is given up, and what it needs of it written anew. So the files that a
        checkpoint rests on hold at most twice what it needs, and no more than twice what changes is written in all: what is written anew
        from a file is less than what has changed of it.
        """
        checkpoint, contents = Checkpoint({}, {}), list[tuple[LaneKey, Bytes]]()
        for place, lane in enumerate(lanes):
            for name, state in ((str(place), lane.state), (f"{place}{ALOFT}", lane.aloft)):
                if state is None:
                    continue
                arrays, checkpoint.trees[name] = flatten(state)
                for path, array in arrays.items():
                    cut = Cutting.of(array)
                    if cut is None:
                        checkpoint.small[f"{name}/{path}"] = array
                        continue
                    checkpoint.cuts[f"{name}/{path}"] = cut
                    pieces = cut.apart(array)
                    checkpoint.digests += digests_of(pieces)
                    contents += [(lane.key, piece) for piece in pieces]
        fresh = _placed(checkpoint, contents, number, known, sizes)
        return cls(checkpoint, fresh)

    def write(self, folder: Path) -> None:
        if self.fresh:
            with (folder / PIECES).open("wb") as file:
                for piece in self.fresh:
                    file.write(piece.data)
        (folder / STATES).write_bytes(self.checkpoint.as_bytes())

    @property
    def fresh_bytes(self) -> int:
        return sum(piece.nbytes for piece in self.fresh)


def _placed(
    checkpoint: Checkpoint,
    contents: Sequence[tuple[LaneKey, Bytes]],
    number: int,
    known: Mapping[LaneKey, Known],
    sizes: Mapping[int, int],
) -> list[Bytes]:
    """Say of each piece where it lies; those that are new, or lie in a file that is given up, are returned to be written."""
    found = [known.get(key, {}).get(digest) for (key, _), digest in zip(contents, checkpoint.digests, strict=True)]
    needed = {place: piece.nbytes for place, (_, piece) in zip(found, contents, strict=True) if place is not None}
    shares = dict.fromkeys((place.segment for place in needed), 0)
    for place, length in needed.items():
        shares[place.segment] += length
    given_up = {segment for segment, share in shares.items() if 2 * share < sizes[segment]}
    fresh: list[Bytes] = []
    new: dict[tuple[LaneKey, bytes], Location] = {}
    end = 0
    for (key, piece), digest, before in zip(contents, checkpoint.digests, found, strict=True):
        if before is not None and before.segment not in given_up:
            checkpoint.places.append(before)
            continue
        if (key, digest) not in new:
            new[key, digest] = Location(number, end)
            fresh.append(piece)
            end += piece.nbytes
        checkpoint.places.append(new[key, digest])
    return fresh
