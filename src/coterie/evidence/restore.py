"""Restore the lanes of a study from its last intact segments; damaged segments are quarantined."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError

from coterie._util.errors import UserError
from coterie._util.files import hash_file
from coterie._util.json_io import read_json
from coterie.core.arrays import Array
from coterie.core.states import State, unflatten
from coterie.evidence.checkpoint import CHUNKS, STATES_FILE, Bytes, open_chunks, read_checkpoint
from coterie.evidence.folder import list_segments, parse_lane_key, quarantine_path
from coterie.evidence.manifest import (
    ALTERED,
    MISSING,
    IntegrityReport,
    Manifest,
    StudyHead,
    check_integrity,
    check_states,
    compute_origin,
    read_study_head,
)
from coterie.evidence.records import PENDING, LaneEnd, LaneKey
from coterie.evidence.tables import TABLES


class DamagedFileError(ValueError):
    """A file of a checkpoint is not as it was written; which, as the rest of a sentence."""


class ChunkFiles:
    """Those of one folder; where it has manifests, only what they name is given out."""

    def __init__(self, folder: Path, manifests: Mapping[str, Manifest] | None) -> None:
        self._folder, self._manifests = folder, manifests
        self._opened: dict[int, Bytes] = {}

    def check(self, path: Path) -> None:
        """Refuse a file of a segment that is not as its manifest says."""
        if self._manifests is None:
            return
        manifest = self._manifests.get(path.parent.name)
        if manifest is None or hash_file(path) != manifest.files.get(path.name):
            raise DamagedFileError(f"{path} {ALTERED}")

    def __getitem__(self, number: int) -> Bytes:
        """The pieces of a segment."""
        if number not in self._opened:
            path = self._folder / "segments" / f"{number:06d}" / CHUNKS
            if not path.is_file():
                raise DamagedFileError(f"{path} {MISSING}")
            self.check(path)
            self._opened[number] = open_chunks(path.parent)
        return self._opened[number]


@dataclass(frozen=True)
class RestoredLane:
    """Where a lane stands."""

    end: LaneEnd
    state: State | None
    pending: State | None = None  # what is on its way between rounds


@dataclass
class _Segment:
    path: Path
    entries: list[dict[str, Any]]
    states: tuple[dict[str, Array], dict[str, Any]] | None = None  # arrays and trees, once read

    @property
    def keys(self) -> list[LaneKey]:
        return [parse_lane_key(entry) for entry in self.entries]


@dataclass(frozen=True)
class RestoredStudy:
    """Where the lanes of a folder stand, and which of its segments cannot be trusted."""

    lanes: dict[LaneKey, RestoredLane]
    told: list[str]  # what is left aside, in sentences
    dropped: list[Path]
    whole: IntegrityReport


def restore(folder: Path) -> tuple[dict[LaneKey, RestoredLane], list[str]]:
    """Where each lane stands, and what had to be left aside, in sentences; the segments left aside are moved out of the way, so that no
    round is there twice once it is made again, and the chain is closed over them."""
    found = load_lanes(folder)
    for path in found.dropped:
        quarantine_path(folder, path)
    if found.whole.checkable:
        told = _close_chain(folder, found)
        return found.lanes, found.told + told
    return found.lanes, found.told


def load_lanes(folder: Path, wanted: Collection[LaneKey] | None = None) -> RestoredStudy:
    """Where each lane stands, or those wanted. Only reads: a study may be looked at, or still run, by others.

    A segment counts when it is as it was written and its rounds follow on those before it. Rounds beyond the last states that can be
    read are made again, to the same bits.
    """
    whole = check_integrity(folder)
    good, told, broken = _select_contiguous(list_segments(folder), whole)
    files = ChunkFiles(folder, whole.manifests if whole.checkable else None)
    while (stranded := _find_stranded(good, files, told)) is not None:
        dropped = _add_followers(good, stranded)
        good = [segment for segment in good if segment not in dropped]
        broken += [segment.path for segment in dropped]
    found: dict[LaneKey, RestoredLane] = {}
    for segment in good:
        if segment.states is not None:
            chosen = [(place, key) for place, key in enumerate(segment.keys) if wanted is None or key in wanted]
            found |= {key: _restore_lane(segment, place) for place, key in chosen}
    lost = [folder / "segments" / name for name in whole.segments]
    told += [f"{path} {whole.segments[path.name]}: its rounds are made again." for path in lost if not path.exists()]
    return RestoredStudy(found, told, broken, whole)


def _close_chain(folder: Path, found: RestoredStudy) -> list[str]:
    """Let the head say what there is now: of the segments that are left, which follows on which. Spare states that are not as they were
    written go, too."""
    head = read_study_head(folder) or StudyHead.of(folder)
    links = [compute_origin(head.files), *(found.whole.links[path.name] for path in list_segments(folder))]
    follows = {link.segment: before for before, link in pairwise(links) if found.whole.manifests[link.segment].previous != before}
    now = replace(head, last=links[-1], follows=follows)
    if now != read_study_head(folder):
        now.write(folder)
    left = {link.segment: found.whole.manifests[link.segment] for link in links[1:]}
    spare = [folder / "segments" / file for file in check_states(folder, left)]
    for path in spare:
        quarantine_path(folder, path)
    return [f"The spare checkpoint {path} {ALTERED}: it is set aside." for path in spare]


def _select_contiguous(paths: Sequence[Path], whole: IntegrityReport) -> tuple[list[_Segment], list[str], list[Path]]:
    """The segments that are whole and whose lanes go on where the segments before left them; what is wrong with the others, and they."""
    reached: dict[LaneKey, int] = {}
    good: list[_Segment] = []
    told: list[str] = []
    broken: list[Path] = []
    for path in paths:
        found = whole.segments.get(path.name) or _read_segment(path, reached)
        if isinstance(found, str):
            told.append(f"{path} {found}: its rounds are made again.")
            broken.append(path)
            continue
        reached |= {key: entry["last"] for key, entry in zip(found.keys, found.entries, strict=True)}
        good.append(found)
    return good, told, broken


def _read_segment(path: Path, reached: Mapping[LaneKey, int]) -> _Segment | str:
    """A segment, or what is wrong with it."""
    missing = [name for name in TABLES if not _is_readable(path / f"{name}.parquet")]
    if missing:
        return f"lacks tables that can be read ({', '.join(missing)})"
    try:
        segment = _Segment(path, read_json(path / "lanes.json"))
        follows = all(entry["first"] == reached.get(key, -1) + 1 for key, entry in zip(segment.keys, segment.entries, strict=True))
    except (UserError, KeyError, TypeError):
        return "has a list of lanes that cannot be read"
    return segment if follows else "does not follow on what is before it"


def _is_readable(path: Path) -> bool:
    """Whether a table is there to its end, where its description stands."""
    try:
        pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return False
    return True


def _find_stranded(good: Sequence[_Segment], files: ChunkFiles, told: list[str]) -> _Segment | None:
    """The first of the latest segments of lanes whose states cannot be read, so that nobody can go on from it."""
    latest = {key: segment for segment in good for key in segment.keys}
    for segment in {id(segment): segment for segment in latest.values()}.values():
        if segment.states is None:
            path = segment.path / STATES_FILE
            try:
                files.check(path)
                checkpoint = read_checkpoint(path)
                segment.states = checkpoint.arrays({number: files[number] for number in checkpoint.needed_segments}), checkpoint.trees
            except DamagedFileError as error:
                told.append(f"The checkpoint {error}: its rounds are made again.")
                return segment
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                told.append(f"The checkpoint {path} cannot be read ({type(error).__name__}): its rounds are made again.")
                return segment
    return None


def _add_followers(good: Sequence[_Segment], stranded: _Segment) -> list[_Segment]:
    """A segment and all later ones that rest on it."""
    dropped, lanes = [stranded], set(stranded.keys)
    for segment in good[good.index(stranded) + 1 :]:
        if lanes & set(segment.keys):
            dropped.append(segment)
            lanes |= set(segment.keys)
    return dropped


def _restore_lane(segment: _Segment, place: int) -> RestoredLane:
    assert segment.states is not None
    arrays, trees = segment.states
    entry = segment.entries[place]

    def made(name: str) -> State | None:
        own = {path.partition("/")[2]: value for path, value in arrays.items() if path.startswith(f"{name}/")}
        return unflatten(own, trees[name]) if name in trees else None

    return RestoredLane(LaneEnd(entry["last"], entry["status"], entry["reason"]), made(str(place)), made(f"{place}{PENDING}"))
