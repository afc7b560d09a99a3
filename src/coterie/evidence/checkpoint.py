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

STATES_FILE, CHUNKS = "states.safetensors", "pieces.bin"
DIGESTS, PLACES = "digests", "places"  # arrays about all chunks; names of a lane's own arrays begin with a number
KEPT_STATES = 2  # segments of a lane that keep their states: the last, and one to fall back on
DIGEST_BYTES = 32  # bytes of a SHA-256
MIN_CHUNK_BYTES = 1 << 12  # the record of a chunk takes 48
MAX_CHUNKS = 1 << 16  # chunks of an array
BYTES_PER_THREAD = 1 << 22  # bytes of chunks that are hashed at a time

Bytes = NDArray[np.uint8]


class ChunkLocation(NamedTuple):
    """The segment whose file holds a chunk, and its first byte there."""

    segment: int
    first: int


KnownChunks = dict[bytes, ChunkLocation]  # chunks of a lane by their hash


@dataclass(frozen=True)
class ChunkLayout:
    """How an array is split into chunks."""

    dtype: str
    shape: tuple[int, ...]
    rows: int  # of a chunk; the last may have fewer

    @classmethod
    def from_array(cls, array: Array) -> "ChunkLayout | None":
        """The same for every array of this dtype and shape; None where it is too small to be split."""
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
        """Bytes of each chunk."""
        total = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        step = self.rows * (total // self.shape[0])
        return [min(step, total - first) for first in range(0, total, step)]

    def split(self, array: Array) -> list[Bytes]:
        """The chunks, without a copy."""
        ends = np.cumsum(self.lengths)[:-1]
        return np.split(np.ascontiguousarray(array).reshape(-1).view(np.uint8), ends)

    def join(self, chunks: Iterable[Bytes]) -> Array:
        """The array that was split."""
        array = np.empty(self.shape, self.dtype)
        flat, first = array.reshape(-1).view(np.uint8), 0
        for chunk, length in zip(chunks, self.lengths, strict=True):
            flat[first : first + length] = chunk
            first += length
        return array


def hash_chunks(chunks: Sequence[Bytes]) -> list[bytes]:
    """The hash of each, many small chunks at a time for each core."""
    if not chunks:
        return []
    run = -(-BYTES_PER_THREAD // max(1, chunks[0].nbytes))
    runs = [chunks[begin : begin + run] for begin in range(0, len(chunks), run)]
    found = map_in_order(lambda some: [sha256(chunk.data).digest() for chunk in some], runs, count_cores() if len(runs) > 1 else 1)
    return [digest for some in found for digest in some]


@dataclass
class Checkpoint:
    """The contents of a checkpoint's file, without the chunks themselves."""

    trees: dict[str, Any]  # by the lane's place in `lanes.json`: where arrays belong
    small: dict[str, Array]
    cuts: dict[str, ChunkLayout] = field(default_factory=dict)
    digests: list[bytes] = field(default_factory=list)
    places: list[ChunkLocation] = field(default_factory=list)

    @property
    def needed_segments(self) -> set[int]:
        """The segments whose chunks it needs."""
        return {place.segment for place in self.places}

    def known(self, place: int) -> KnownChunks:
        """The chunks of the lane at a place."""
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
        """All arrays; those in chunks are joined from the files of segments."""
        made, first = dict(self.small), 0
        for name, cut in self.cuts.items():
            places = self.places[first : first + len(cut.lengths)]
            made[name] = cut.join(files[at.segment][at.first : at.first + n] for at, n in zip(places, cut.lengths, strict=True))
            first += len(places)
        return made

    def as_bytes(self) -> bytes:
        tables: dict[str, Array] = {}
        if self.cuts:
            digests = np.frombuffer(b"".join(self.digests), np.uint8).reshape(-1, DIGEST_BYTES)
            tables = {DIGESTS: digests, PLACES: np.array(self.places, dtype=np.int64)}
        metadata = {"trees": json.dumps(self.trees, sort_keys=True)}
        if self.cuts:
            metadata["cuts"] = json.dumps({name: [cut.dtype, cut.shape, cut.rows] for name, cut in self.cuts.items()})
        return bytes(save({**self.small, **tables}, metadata=metadata))


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a file; OSError, SafetensorError, ValueError or KeyError where it cannot be read."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    digests, places = arrays.pop(DIGESTS, None), arrays.pop(PLACES, None)
    made = Checkpoint(json.loads(metadata["trees"]), arrays)
    if digests is not None and places is not None:
        made.cuts = {name: ChunkLayout.from_json(tree) for name, tree in json.loads(metadata["cuts"]).items()}
        made.digests = [row.tobytes() for row in digests]
        made.places = [ChunkLocation(segment, first) for segment, first in places.tolist()]
    return made


def read_checkpoint_or_empty(path: Path) -> Checkpoint:
    """The checkpoint in a file; an empty one where it cannot be read, as a spare one need not be."""
    try:
        return read_checkpoint(path)
    except (OSError, SafetensorError, ValueError, KeyError):
        return Checkpoint({}, {})


@dataclass(frozen=True)
class CheckpointDraft:
    """A checkpoint about to be written, and the chunks that are new."""

    checkpoint: Checkpoint
    fresh: list[Bytes]

    @classmethod
    def from_lanes(
        cls, number: int, lanes: Sequence[LaneProgress], known: Mapping[LaneKey, KnownChunks], sizes: Mapping[int, int]
    ) -> "CheckpointDraft":
        """The states of lanes at the end of a segment, given the chunks of each lane's last checkpoint and the bytes in each file.

        A file of which this checkpoint would need less than half is no longer used, and what it needs of it is written again. So the
        files that a checkpoint needs hold at most twice its own bytes, and at most twice the bytes that change are written in all.
        """
        checkpoint, contents = Checkpoint({}, {}), list[tuple[LaneKey, Bytes]]()
        for place, lane in enumerate(lanes):
            for name, state in ((str(place), lane.state), (f"{place}{PENDING}", lane.pending)):
                if state is None:
                    continue
                arrays, checkpoint.trees[name] = flatten(state)
                for path, array in arrays.items():
                    cut = ChunkLayout.from_array(array)
                    if cut is None:
                        checkpoint.small[f"{name}/{path}"] = array
                        continue
                    checkpoint.cuts[f"{name}/{path}"] = cut
                    chunks = cut.split(array)
                    checkpoint.digests += hash_chunks(chunks)
                    contents += [(lane.key, chunk) for chunk in chunks]
        return cls(checkpoint, _place_chunks(checkpoint, contents, number, known, sizes))

    def write(self, folder: Path) -> None:
        if self.fresh:
            with (folder / CHUNKS).open("wb") as file:
                for chunk in self.fresh:
                    file.write(chunk.data)
        (folder / STATES_FILE).write_bytes(self.checkpoint.as_bytes())

    @property
    def new_bytes(self) -> int:
        return sum(chunk.nbytes for chunk in self.fresh)


def _place_chunks(
    checkpoint: Checkpoint,
    contents: Sequence[tuple[LaneKey, Bytes]],
    number: int,
    known: Mapping[LaneKey, KnownChunks],
    sizes: Mapping[int, int],
) -> list[Bytes]:
    """Set the location of each chunk; those that are new, or in a file that is no longer used, are returned to be written."""
    found = [known.get(key, {}).get(digest) for (key, _), digest in zip(contents, checkpoint.digests, strict=True)]
    needed = {place: chunk.nbytes for place, (_, chunk) in zip(found, contents, strict=True) if place is not None}
    shares = dict.fromkeys((place.segment for place in needed), 0)
    for place, length in needed.items():
        shares[place.segment] += length
    unused = {segment for segment, share in shares.items() if 2 * share < sizes[segment]}
    fresh: list[Bytes] = []
    new: dict[tuple[LaneKey, bytes], ChunkLocation] = {}
    end = 0
    for (key, chunk), digest, before in zip(contents, checkpoint.digests, found, strict=True):
        if before is not None and before.segment not in unused:
            checkpoint.places.append(before)
            continue
        if (key, digest) not in new:
            new[key, digest] = ChunkLocation(number, end)
            fresh.append(chunk)
            end += chunk.nbytes
        checkpoint.places.append(new[key, digest])
    return fresh


class CheckpointRetention:
    """The checkpoints of a study's folder, by the number of the segment, and which of them are kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lanes: dict[int, list[LaneKey]] = {}
        self._needed_segments: dict[int, set[int]] = {}
        self._sizes: dict[int, int] = {}  # bytes of chunks
        self._known: dict[LaneKey, KnownChunks] = {}  # of each lane's last checkpoint
        for path in list_segments(folder):
            if (path / CHUNKS).exists():
                self._sizes[int(path.name)] = (path / CHUNKS).stat().st_size
            if (path / STATES_FILE).exists():
                keys = [parse_lane_key(entry) for entry in read_json(path / "lanes.json")]
                self._note(int(path.name), keys, read_checkpoint_or_empty(path / STATES_FILE))

    def draft(self, number: int, lanes: Sequence[LaneProgress]) -> CheckpointDraft:
        """The next checkpoint; chunks of the last checkpoints of its lanes are not written again."""
        return CheckpointDraft.from_lanes(number, lanes, self._known, self._sizes)

    def record_written(self, number: int, lanes: Sequence[LaneProgress], draft: CheckpointDraft) -> None:
        """Note a checkpoint that is in its place, and delete what is no longer needed."""
        if draft.fresh:
            self._sizes[number] = draft.new_bytes
        self._note(number, [lane.key for lane in lanes], draft.checkpoint)
        self._drop()

    def _note(self, number: int, keys: list[LaneKey], checkpoint: Checkpoint) -> None:
        self._lanes[number], self._needed_segments[number] = keys, checkpoint.needed_segments
        for place, key in enumerate(keys):
            known = checkpoint.known(place)  # what is in a quarantined file must be written again
            self._known[key] = {digest: at for digest, at in known.items() if at.segment in self._sizes}

    def _drop(self) -> None:
        """Delete the states of segments whose lanes all have enough later ones, and chunks that no checkpoint needs."""
        later: Counter[LaneKey] = Counter()
        for number in sorted(self._lanes, reverse=True):
            keys = self._lanes[number]
            if all(later[key] >= KEPT_STATES for key in keys):
                (self._segment(number) / STATES_FILE).unlink(missing_ok=True)
                del self._lanes[number], self._needed_segments[number]
            later.update(keys)
        for number in self._sizes.keys() - set[int]().union(*self._needed_segments.values()):
            (self._segment(number) / CHUNKS).unlink(missing_ok=True)
            del self._sizes[number]

    def _segment(self, number: int) -> Path:
        return self._folder / "segments" / f"{number:06d}"
