"""What a segment must hold: the hash of every file, the rows of every table and lane, and which segment is before it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.disk import file_hash
from coterie.core.errors import UserError
from coterie.core.plain import json_text, read_json
from coterie.evidence.head import Link, StudyHead, origin
from coterie.evidence.record import LaneKey

MANIFEST = "manifest.json"
COUNTED = ("rounds", "clients")  # tables whose rows are counted lane by lane


@dataclass(frozen=True)
class Manifest:
    """Written last into a segment, before the segment has its name."""

    segment: str
    previous: Link
    files: Mapping[str, str]
    rows: Mapping[str, int]  # by table
    lanes: Sequence[Mapping[str, Any]]  # draw, method, seed, first and last round, rows of the counted tables
    routes: Mapping[str, str]  # how trainings were carried out up to here
    study: str = ""  # the hash of what the study was then: it may have grown since it began; none before studies could

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json_text(asdict(self)), encoding="utf-8")

    @property
    def keys(self) -> list[LaneKey]:
        """The lanes it holds rounds of."""
        return [LaneKey(lane["draw"], lane["method"], lane["seed"]) for lane in self.lanes]


def manifest_of(
    draft: Path,
    segment: str,
    head: StudyHead,
    lanes: Sequence[Mapping[str, Any]],
    tables: Mapping[str, pa.Table],
    routes: Mapping[str, str],
) -> Manifest:
    """The manifest of what lies in a draft."""
    counts = {name: rows_by_lane(tables[name]) for name in COUNTED}
    held = []
    for lane in lanes:
        key = LaneKey(lane["draw"], lane["method"], lane["seed"])
        held.append({**key._asdict(), "first": lane["first"], "last": lane["last"], **{name: counts[name].get(key, 0) for name in COUNTED}})
    files = {path.name: file_hash(path) for path in sorted(draft.iterdir())}
    rows = {name: len(table) for name, table in tables.items()}
    return Manifest(segment, head.last, files, rows, held, dict(routes), origin(head.files).sha256)


def read_manifest(segment: Path) -> Manifest | str:
    """A segment's manifest, or what is wrong with it, as the end of a sentence about the segment."""
    if not (segment / MANIFEST).is_file():
        return "has no manifest"
    try:
        tree = read_json(segment / MANIFEST)
        return Manifest(**{**tree, "previous": Link(**tree["previous"])})
    except (UserError, TypeError, KeyError):
        return "has a manifest that cannot be read"


def rows_by_lane(table: pa.Table) -> dict[LaneKey, int]:
    """How many rows each lane has."""
    own = table.select(list(LaneKey._fields))
    own = own.set_column(1, "method", pc.cast(own["method"], pa.string()))
    found = own.group_by(list(LaneKey._fields)).aggregate([([], "count_all")]).to_pylist()
    return {LaneKey(row["draw"], row["method"], row["seed"]): row["count_all"] for row in found}
