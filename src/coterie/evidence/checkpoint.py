"""Checkpoints: the states of a segment's lanes, small arrays in one file, large ones in chunks, and which checkpoints are kept.

A chunk is a block of whole rows, known by its hash. One that the lane's last checkpoint holds is not written again: its location is
recorded. So a checkpoint may need files of earlier segments, but never those of other lanes. Of a state with a model for every client,
only the rows of clients that trained change.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coterie._util.json_io import read_json
from coterie._util.threads import count_cores, map_in_order
from coterie.core.arrays import Array
from coterie.core.states import flatten
from coterie.evidence.folder import list_segments, parse_lane_key
from coterie.evidence.records import PENDING, LaneKey, LaneProgress

CHUNKS = "pieces.bin"


DIGEST_BYTES = 32  # bytes of a SHA-256


MIN_CHUNK_BYTES = 1 << 12  # bytes of a piece, at least: what is said of each takes 48


MAX_CHUNKS = 1 << 16  # pieces of an array


BYTES_PER_THREAD = 1 << 22  # bytes of pieces that are hashed beside others


Bytes = NDArray[np.uint8]


class ChunkLocation(NamedTuple):
    """Where a piece lies: in the file of which segment, from which byte on."""

    segment: int
    first: int


@dataclass(frozen=True)
class ChunkLayout:
    """How an array lies in pieces."""

    dtype: str
    shape: tuple[int, ...]
    rows: int  # of a piece; the last may have fewer

    @classmethod
    def of(cls, array: Array) -> "ChunkLayout | None":
        """The same for every array of this kind and shape; None where it is too small to be cut."""
        if array.ndim == 0 or array.nbytes < 2 * MIN_CHUNK_BYTES:
            return None
        row = array.nbytes // len(array)
        return cls(array.dtype.str, array.shape, -(-max(MIN_CHUNK_BYTES, -(-array.nbytes // MAX_CHUNKS)) // row))

    @classmethod
    def from_json(cls, tree: Sequence[Any]) -> "ChunkLayout":
        dtype, shape, rows = tree
        return cls(str(dtype), tuple(map(int, shape)), int(rows))

    @property
    def lengths(self) -> list[int]:
        """Bytes of each piece."""
        total = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        step = self.rows * (total // self.shape[0])
        return [min(step, total - first) for first in range(0, total, step)]

    def apart(self, array: Array) -> list[Bytes]:
        """The pieces, without a copy."""
        ends = np.cumsum(self.lengths)[:-1]
        return np.split(np.ascontiguousarray(array).reshape(-1).view(np.uint8), ends)

    def join_pieces(self, pieces: Iterable[Bytes]) -> Array:
        """The array that was cut."""
        made = np.empty(self.shape, self.dtype)
        flat, first = made.reshape(-1).view(np.uint8), 0
        for piece, length in zip(pieces, self.lengths, strict=True):
            flat[first : first + length] = piece
            first += length
        return made


def hash_chunks(pieces: Sequence[Bytes]) -> list[bytes]:
    """The content of each, as a hash: of small ones, a run of them at a time for each core."""
    if not pieces:
        return []
    run = -(-BYTES_PER_THREAD // max(1, pieces[0].nbytes))
    runs = [pieces[begin : begin + run] for begin in range(0, len(pieces), run)]
    found = map_in_order(lambda some: [sha256(piece.data).digest() for piece in some], runs, count_cores() if len(runs) > 1 else 1)
    return [digest for some in found for digest in some]


STATES_FILE = "states.safetensors"


DIGESTS, PLACES = "digests", "places"  # of all pieces, array after array; names of a lane's own arrays begin with a number


KnownChunks = dict[bytes, ChunkLocation]  # pieces of a lane by their content


@dataclass
class Checkpoint:
    """What the file of a checkpoint says, without the pieces themselves."""

    trees: dict[str, Any]  # by the lane's place in `lanes.json`: where arrays belong
    small: dict[str, Array]
    cuts: dict[str, ChunkLayout] = field(default_factory=dict)
    digests: list[bytes] = field(default_factory=list)
    places: list[ChunkLocation] = field(default_factory=list)

    @property
    def needed_segments(self) -> set[int]:
        """The segments whose pieces it needs."""
        return {place.segment for place in self.places}

    def known(self, place: int) -> KnownChunks:
        """The pieces of the lane at a place."""
        own = (str(place), f"{place}{PENDING}")
        found: KnownChunks = {}
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
            made[name] = cut.join_pieces(files[at.segment][at.first : at.first + n] for at, n in zip(places, cut.lengths, strict=True))
            first += len(places)
        return made

    def as_bytes(self) -> bytes:
        tables: dict[str, Array] = {}
        if self.cuts:
            digests = np.frombuffer(b"".join(self.digests), np.uint8).reshape(-1, DIGEST_BYTES)
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
        made.cuts = {name: ChunkLayout.from_json(tree) for name, tree in json.loads(told["cuts"]).items()}
        made.digests = [row.tobytes() for row in digests]
        made.places = [ChunkLocation(segment, first) for segment, first in places.tolist()]
    return made


def open_chunks(segment: Path) -> Bytes:
    """The pieces of a segment, fetched from the disk as they are looked at."""
    return np.memmap(segment / CHUNKS, dtype=np.uint8, mode="r")


@dataclass(frozen=True)
class CheckpointDraft:
    """A checkpoint about to be written, and the pieces that are new."""

    checkpoint: Checkpoint
    fresh: list[Bytes]

    @classmethod
    def of(
        cls, number: int, lanes: Sequence[LaneProgress], known: Mapping[LaneKey, KnownChunks], sizes: Mapping[int, int]
    ) -> "CheckpointDraft":
        """The states of lanes at the end of a segment, given the pieces of each lane's last checkpoint and the bytes in each file.

        A file of which this checkpoint would need less than half is given up, and what it needs of it written anew. So the files that a
        checkpoint rests on hold at most twice what it needs, and no more than twice what changes is written in all: what is written anew
        from a file is less than what has changed of it.
        """
        checkpoint, contents = Checkpoint({}, {}), list[tuple[LaneKey, Bytes]]()
        for place, lane in enumerate(lanes):
            for name, state in ((str(place), lane.state), (f"{place}{PENDING}", lane.pending)):
                if state is None:
                    continue
                arrays, checkpoint.trees[name] = flatten(state)
                for path, array in arrays.items():
                    cut = ChunkLayout.of(array)
                    if cut is None:
                        checkpoint.small[f"{name}/{path}"] = array
                        continue
                    checkpoint.cuts[f"{name}/{path}"] = cut
                    pieces = cut.apart(array)
                    checkpoint.digests += hash_chunks(pieces)
                    contents += [(lane.key, piece) for piece in pieces]
        fresh = _place_chunks(checkpoint, contents, number, known, sizes)
        return cls(checkpoint, fresh)

    def write(self, folder: Path) -> None:
        if self.fresh:
            with (folder / CHUNKS).open("wb") as file:
                for piece in self.fresh:
                    file.write(piece.data)
        (folder / STATES_FILE).write_bytes(self.checkpoint.as_bytes())

    @property
    def new_bytes(self) -> int:
        return sum(piece.nbytes for piece in self.fresh)


def _place_chunks(
    checkpoint: Checkpoint,
    contents: Sequence[tuple[LaneKey, Bytes]],
    number: int,
    known: Mapping[LaneKey, KnownChunks],
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
    new: dict[tuple[LaneKey, bytes], ChunkLocation] = {}
    end = 0
    for (key, piece), digest, before in zip(contents, checkpoint.digests, found, strict=True):
        if before is not None and before.segment not in given_up:
            checkpoint.places.append(before)
            continue
        if (key, digest) not in new:
            new[key, digest] = ChunkLocation(number, end)
            fresh.append(piece)
            end += piece.nbytes
        checkpoint.places.append(new[key, digest])
    return fresh


KEPT_STATES = 2  # segments of a lane that keep their states: the last, and one to go back to


class CheckpointRetention:
    """What is there to go on from, by the number of the segment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lanes: dict[int, list[LaneKey]] = {}
        self._rests_on: dict[int, set[int]] = {}
        self._sizes: dict[int, int] = {}  # bytes of pieces
        self._known: dict[LaneKey, KnownChunks] = {}  # of each lane's last checkpoint
        for path in list_segments(folder):
            if (path / CHUNKS).exists():
                self._sizes[int(path.name)] = (path / CHUNKS).stat().st_size
            if (path / STATES_FILE).exists():
                self._note(
                    int(path.name), [parse_lane_key(entry) for entry in read_json(path / "lanes.json")], _read_or_empty(path / STATES_FILE)
                )

    def draft(self, number: int, lanes: Sequence[LaneProgress]) -> CheckpointDraft:
        """The next checkpoint, of which only what the last ones of its lanes lack is to be written."""
        return CheckpointDraft.of(number, lanes, self._known, self._sizes)

    def written(self, number: int, lanes: Sequence[LaneProgress], draft: CheckpointDraft) -> None:
        """Take note of a checkpoint that is in its place, and give up what nobody needs any more."""
        if draft.fresh:
            self._sizes[number] = draft.new_bytes
        self._note(number, [lane.key for lane in lanes], draft.checkpoint)
        self._drop()

    def _note(self, number: int, keys: list[LaneKey], checkpoint: Checkpoint) -> None:
        self._lanes[number], self._rests_on[number] = keys, checkpoint.needed_segments
        for place, key in enumerate(keys):
            known = checkpoint.known(place)  # what is in a file that was set aside must be written again
            self._known[key] = {digest: at for digest, at in known.items() if at.segment in self._sizes}

    def _drop(self) -> None:
        """States are large: a segment whose lanes all have enough later ones gives its own up, and pieces that none rests on go."""
        later: Counter[LaneKey] = Counter()
        for number in sorted(self._lanes, reverse=True):
            keys = self._lanes[number]
            if all(later[key] >= KEPT_STATES for key in keys):
                (self._segment(number) / STATES_FILE).unlink(missing_ok=True)
                del self._lanes[number], self._rests_on[number]
            later.update(keys)
        for number in self._sizes.keys() - set[int]().union(*self._rests_on.values()):
            (self._segment(number) / CHUNKS).unlink(missing_ok=True)
            del self._sizes[number]

    def _segment(self, number: int) -> Path:
        return self._folder / "segments" / f"{number:06d}"


def _read_or_empty(path: Path) -> Checkpoint:
    """A checkpoint; nothing where it cannot be read, which a spare one need not be."""
    try:
        return read_checkpoint(path)
    except (OSError, SafetensorError, ValueError, KeyError):
        return Checkpoint({}, {})
