"""Going on where a study ended: each lane from the last segment that can be trusted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError

from coterie.core.arrays import Array
from coterie.core.errors import UserError
from coterie.core.plain import read_json
from coterie.core.states import State, unflatten
from coterie.evidence.aside import set_aside
from coterie.evidence.checkpoint import STATES, read_checkpoint
from coterie.evidence.head import StudyHead, origin, read_study_head
from coterie.evidence.piece_files import PieceFiles, UnsoundError
from coterie.evidence.record import ALOFT, LaneEnd, LaneKey
from coterie.evidence.source import key_of, segments
from coterie.evidence.tables import TABLES
from coterie.evidence.wholeness import ALTERED, Wholeness, check_whole, wrong_states


@dataclass(frozen=True)
class Restored:
    """Where a lane stands."""

    end: LaneEnd
    state: State | None
    aloft: State | None = None  # what is on its way between rounds


@dataclass
class _Segment:
    path: Path
    entries: list[dict[str, Any]]
    states: tuple[dict[str, Array], dict[str, Any]] | None = None  # arrays and trees, once read

    @property
    def keys(self) -> list[LaneKey]:
        return [key_of(entry) for entry in self.entries]


@dataclass(frozen=True)
class Standing:
    """Where the lanes of a folder stand, and which of its segments cannot be trusted."""

    lanes: dict[LaneKey, Restored]
    told: list[str]  # what is left aside, in sentences
    dropped: list[Path]
    whole: Wholeness


def restore(folder: Path) -> tuple[dict[LaneKey, Restored], list[str]]:
    """Where each lane stands, and what had to be left aside, in sentences; the segments left aside are moved out of the way, so that no
    round is there twice once it is made again, and the chain is closed over them."""
    found = standing(folder)
    for path in found.dropped:
        set_aside(folder, path)
    if found.whole.checkable:
        told = _close_chain(folder, found)
        return found.lanes, found.told + told
    return found.lanes, found.told


def standing(folder: Path, wanted: Collection[LaneKey] | None = None) -> Standing:
    """Where each lane stands, or those wanted. Only reads: a study may be looked at, or still run, by others.

    A segment counts when it is as it was written and its rounds follow on those before it. Rounds beyond the last states that can be
    read are made again, to the same bits.
    """
    whole = check_whole(folder)
    good, told, broken = _contiguous(segments(folder), whole)
    files = PieceFiles(folder, whole.manifests if whole.checkable else None)
    while (stranded := _stranded(good, files, told)) is not None:
        dropped = _with_followers(good, stranded)
        good = [segment for segment in good if segment not in dropped]
        broken += [segment.path for segment in dropped]
    found: dict[LaneKey, Restored] = {}
    for segment in good:
        if segment.states is not None:
            chosen = [(place, key) for place, key in enumerate(segment.keys) if wanted is None or key in wanted]
            found |= {key: _restored(segment, place) for place, key in chosen}
    lost = [folder / "segments" / name for name in whole.segments]
    told += [f"{path} {whole.segments[path.name]}: its rounds are made again." for path in lost if not path.exists()]
    return Standing(found, told, broken, whole)


def _close_chain(folder: Path, found: Standing) -> list[str]:
    """Let the head say what there is now: of the segments that are left, which follows on which. Spare states that are not as they were
    written go, too."""
    head = read_study_head(folder) or StudyHead.of(folder)
    links = [origin(head.files), *(found.whole.links[path.name] for path in segments(folder))]
    follows = {link.segment: before for before, link in pairwise(links) if found.whole.manifests[link.segment].previous != before}
    now = replace(head, last=links[-1], follows=follows)
    if now != read_study_head(folder):
        now.write(folder)
    left = {link.segment: found.whole.manifests[link.segment] for link in links[1:]}
    spare = [folder / "segments" / file for file in wrong_states(folder, left)]
    for path in spare:
        set_aside(folder, path)
    return [f"The spare checkpoint {path} {ALTERED}: it is set aside." for path in spare]


def _contiguous(paths: Sequence[Path], whole: Wholeness) -> tuple[list[_Segment], list[str], list[Path]]:
    """The segments that are whole and whose lanes go on where the segments before left them; what is wrong with the others, and they."""
    reached: dict[LaneKey, int] = {}
    good: list[_Segment] = []
    told: list[str] = []
    broken: list[Path] = []
    for path in paths:
        found = whole.segments.get(path.name) or _read(path, reached)
        if isinstance(found, str):
            told.append(f"{path} {found}: its rounds are made again.")
            broken.append(path)
            continue
        reached |= {key: entry["last"] for key, entry in zip(found.keys, found.entries, strict=True)}
        good.append(found)
    return good, told, broken


def _read(path: Path, reached: Mapping[LaneKey, int]) -> _Segment | str:
    """A segment, or what is wrong with it."""
    missing = [name for name in TABLES if not _readable(path / f"{name}.parquet")]
    if missing:
        return f"lacks tables that can be read ({', '.join(missing)})"
    try:
        segment = _Segment(path, read_json(path / "lanes.json"))
        follows = all(entry["first"] == reached.get(key, -1) + 1 for key, entry in zip(segment.keys, segment.entries, strict=True))
    except (UserError, KeyError, TypeError):
        return "has a list of lanes that cannot be read"
    return segment if follows else "does not follow on what is before it"


def _readable(path: Path) -> bool:
    """Whether a table is there to its end, where its description stands."""
    try:
        pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return False
    return True


def _stranded(good: Sequence[_Segment], files: PieceFiles, told: list[str]) -> _Segment | None:
    """The first of the latest segments of lanes whose states cannot be read, so that nobody can go on from it."""
    latest = {key: segment for segment in good for key in segment.keys}
    for segment in {id(segment): segment for segment in latest.values()}.values():
        if segment.states is None:
            path = segment.path / STATES
            try:
                files.check(path)
                checkpoint = read_checkpoint(path)
                segment.states = checkpoint.arrays({number: files[number] for number in checkpoint.rests_on}), checkpoint.trees
            except UnsoundError as error:
                told.append(f"The checkpoint {error}: its rounds are made again.")
                return segment
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                told.append(f"The checkpoint {path} cannot be read ({type(error).__name__}): its rounds are made again.")
                return segment
    return None


def _with_followers(good: Sequence[_Segment], stranded: _Segment) -> list[_Segment]:
    """A segment and all later ones that rest on it."""
    dropped, lanes = [stranded], set(stranded.keys)
    for segment in good[good.index(stranded) + 1 :]:
        if lanes & set(segment.keys):
            dropped.append(segment)
            lanes |= set(segment.keys)
    return dropped


def _restored(segment: _Segment, place: int) -> Restored:
    assert segment.states is not None
    arrays, trees = segment.states
    entry = segment.entries[place]

    def made(name: str) -> State | None:
        own = {path.partition("/")[2]: value for path, value in arrays.items() if path.startswith(f"{name}/")}
        return unflatten(own, trees[name]) if name in trees else None

    return Restored(LaneEnd(entry["last"], entry["status"], entry["reason"]), made(str(place)), made(f"{place}{ALOFT}"))
