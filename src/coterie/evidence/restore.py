"""Restore the lanes of a study from its last intact segments; damaged segments are quarantined."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError

from coterie._util.errors import UserError
from coterie._util.files import hash_file
from coterie._util.json_io import read_json
from coterie.core.arrays import Array
from coterie.core.states import State, unflatten
from coterie.evidence.checkpoint import CHUNKS, STATES_FILE, Bytes, read_checkpoint
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
    """The chunks of a study's segments, opened when needed and checked against the manifests."""

    def __init__(self, folder: Path, manifests: Mapping[str, Manifest]) -> None:
        self._folder, self._manifests = folder, manifests
        self._opened: dict[int, Bytes] = {}

    def check(self, path: Path) -> None:
        """Refuse a file of a segment that is not as in its manifest."""
        manifest = self._manifests.get(path.parent.name)
        if manifest is None or hash_file(path) != manifest.files.get(path.name):
            raise DamagedFileError(f"{path} {ALTERED}")

    def __getitem__(self, number: int) -> Bytes:
        """The chunks of a segment, read from disk when they are used."""
        if number not in self._opened:
            path = self._folder / "segments" / f"{number:06d}" / CHUNKS
            if not path.is_file():
                raise DamagedFileError(f"{path} {MISSING}")
            self.check(path)
            self._opened[number] = np.memmap(path, dtype=np.uint8, mode="r")
        return self._opened[number]


@dataclass(frozen=True)
class RestoredLane:
    """The progress of a lane, and its state."""

    end: LaneEnd
    state: State | None
    pending: State | None = None  # replies between rounds


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
    """The lanes of a folder, and its segments that cannot be trusted."""

    lanes: dict[LaneKey, RestoredLane]
    notices: list[str]  # about what is not used
    dropped: list[Path]
    integrity: IntegrityReport


def restore(folder: Path) -> tuple[dict[LaneKey, RestoredLane], list[str]]:
    """The state of each lane, and notices about what cannot be used.

    Segments that cannot be used are quarantined, so that no round exists twice once it is run again, and the chain is closed over them.
    """
    study = load_lanes(folder)
    for path in study.dropped:
        quarantine_path(folder, path)
    return study.lanes, study.notices + _close_chain(folder, study)


def load_lanes(folder: Path, wanted: Collection[LaneKey] | None = None) -> RestoredStudy:
    """The state of each lane, or of those wanted. It only reads: others may read the study, or still run it.

    A segment counts when it is as it was written and its rounds follow those before it. Rounds after the last readable states are run
    again, with bitwise identical results.
    """
    integrity = check_integrity(folder)
    good, notices, broken = _select_contiguous(list_segments(folder), integrity)
    files = ChunkFiles(folder, integrity.manifests)
    while (stranded := _find_stranded(good, files, notices)) is not None:
        dropped = _add_followers(good, stranded)
        good = [segment for segment in good if segment not in dropped]
        broken += [segment.path for segment in dropped]
    lanes: dict[LaneKey, RestoredLane] = {}
    for segment in good:
        if segment.states is not None:
            chosen = [(place, key) for place, key in enumerate(segment.keys) if wanted is None or key in wanted]
            lanes |= {key: _restore_lane(segment, place) for place, key in chosen}
    lost = [folder / "segments" / name for name in integrity.segments]
    notices += [f"{path} {integrity.segments[path.name]}: its rounds are run again." for path in lost if not path.exists()]
    return RestoredStudy(lanes, notices, broken, integrity)


def _close_chain(folder: Path, study: RestoredStudy) -> list[str]:
    """Update the head to the order of the remaining segments, and quarantine damaged spare states."""
    before = read_study_head(folder)
    head, links = before or StudyHead.from_folder(folder), study.integrity.links
    manifests = study.integrity.manifests
    order = [compute_origin(head.files), *(links[path.name] for path in list_segments(folder))]
    follows = {link.segment: previous for previous, link in pairwise(order) if manifests[link.segment].previous != previous}
    now = replace(head, last=order[-1], follows=follows)
    if now != before:
        now.write(folder)
    left = {link.segment: manifests[link.segment] for link in order[1:]}
    spare = [folder / "segments" / file for file in check_states(folder, left)]
    for path in spare:
        quarantine_path(folder, path)
    return [f"The spare checkpoint {path} {ALTERED}: it is moved to set-aside." for path in spare]


def _select_contiguous(paths: Sequence[Path], integrity: IntegrityReport) -> tuple[list[_Segment], list[str], list[Path]]:
    """The intact segments whose lanes follow the segments before; notices about the others, and their paths."""
    reached: dict[LaneKey, int] = {}
    good: list[_Segment] = []
    notices: list[str] = []
    broken: list[Path] = []
    for path in paths:
        found = integrity.segments.get(path.name) or _read_segment(path, reached)
        if isinstance(found, str):
            notices.append(f"{path} {found}: its rounds are run again.")
            broken.append(path)
            continue
        reached |= {key: entry["last"] for key, entry in zip(found.keys, found.entries, strict=True)}
        good.append(found)
    return good, notices, broken


def _read_segment(path: Path, reached: Mapping[LaneKey, int]) -> _Segment | str:
    """A segment, or what is wrong with it."""
    missing = []
    for name in TABLES:
        try:
            pq.read_metadata(path / f"{name}.parquet")  # it stands at the end of a file
        except (OSError, pa.ArrowException):
            missing.append(name)
    if missing:
        return f"lacks tables that can be read ({', '.join(missing)})"
    try:
        segment = _Segment(path, read_json(path / "lanes.json"))
        follows = all(entry["first"] == reached.get(key, -1) + 1 for key, entry in zip(segment.keys, segment.entries, strict=True))
    except (UserError, KeyError, TypeError):
        return "has a list of lanes that cannot be read"
    return segment if follows else "does not follow on what is before it"


def _find_stranded(good: Sequence[_Segment], files: ChunkFiles, notices: list[str]) -> _Segment | None:
    """The first of the lanes' latest segments whose states cannot be read."""
    latest = {key: segment for segment in good for key in segment.keys}
    for segment in {id(segment): segment for segment in latest.values()}.values():
        if segment.states is None:
            path = segment.path / STATES_FILE
            try:
                files.check(path)
                checkpoint = read_checkpoint(path)
                segment.states = checkpoint.arrays({number: files[number] for number in checkpoint.needed_segments}), checkpoint.trees
            except DamagedFileError as error:
                notices.append(f"The checkpoint {error}: its rounds are run again.")
                return segment
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                notices.append(f"The checkpoint {path} cannot be read ({type(error).__name__}): its rounds are run again.")
                return segment
    return None


def _add_followers(good: Sequence[_Segment], stranded: _Segment) -> list[_Segment]:
    """A segment and all later ones that depend on it."""
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

    def restore_state(name: str) -> State | None:
        own = {path.partition("/")[2]: value for path, value in arrays.items() if path.startswith(f"{name}/")}
        return unflatten(own, trees[name]) if name in trees else None

    end = LaneEnd(entry["last"], entry["status"], entry["reason"])
    return RestoredLane(end, restore_state(str(place)), restore_state(f"{place}{PENDING}"))
