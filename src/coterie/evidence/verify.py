"""What of a study is as it was written, and what is not: every file, every checkpoint, every row."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie._util.errors import UserError
from coterie._util.json_io import read_json
from coterie.evidence.folder import QUARANTINE, read_batches, read_roster
from coterie.evidence.manifest import COUNTED_TABLES, IntegrityReport, Manifest, check_integrity, count_rows_by_lane
from coterie.evidence.restore import load_lanes
from coterie.evidence.tables import TABLES, find_implausible


@dataclass(frozen=True)
class Verification:
    """What was found in one study's folder."""

    folder: Path
    damaged: tuple[str, ...]  # in sentences
    good: Mapping[str, int] = field(default_factory=dict)  # by intact segment, the number of rounds of its lanes
    set_aside: tuple[str, ...] = ()  # what resumed runs have quarantined

    @property
    def whole(self) -> bool:
        return not self.damaged

    def as_json(self) -> dict[str, Any]:
        return {
            "study": str(self.folder),
            "whole": self.whole,
            "damaged": list(self.damaged),
            "good": {"segments": list(self.good), "rounds": sum(self.good.values())},
            "set_aside": list(self.set_aside),
        }


def verify(folder: Path) -> Verification:
    """Check every file, checkpoint and row of a study's folder. Nothing is changed."""
    integrity = check_integrity(folder, everything=True)
    damaged, manifests = integrity.describe(folder), integrity.manifests
    rosters = {}
    for path in (folder / "rosters").glob("[!.]*.parquet"):
        with suppress(UserError):  # a damaged roster is among the damaged files
            rosters[int(path.stem)] = read_roster(path)
    wrong = {name: _check_rows(folder / "segments" / name, manifests[name], rosters) for name in integrity.intact}
    damaged += [f"{folder / 'segments' / name} {problem}" for name, problem in wrong.items() if problem]
    damaged = damaged or load_lanes(folder, ()).notices or _check_routes(folder, integrity)
    good = {name: sum(lane["rounds"] for lane in manifests[name].lanes) for name, problem in wrong.items() if not problem}
    quarantine = folder / QUARANTINE
    aside = sorted(path.name for path in quarantine.iterdir()) if quarantine.is_dir() else []
    return Verification(folder, tuple(damaged), good, tuple(aside))


def _check_rows(segment: Path, manifest: Manifest, rosters: Mapping[int, pa.Table]) -> str:
    """What is wrong in the tables of an intact segment; nothing if all is right."""
    for name in TABLES:
        pieces = []
        for batch in read_batches(segment / f"{name}.parquet", None, []):
            if told := find_implausible(name, batch, rosters):
                return f"holds what cannot be in {name}.parquet: {told}"
            pieces.append(batch)
        if sum(map(len, pieces)) != manifest.rows[name]:
            return f"holds {sum(map(len, pieces))} rows in {name}.parquet where {manifest.rows[name]} were written"
        if name in COUNTED_TABLES and pieces:
            found = count_rows_by_lane(pa.Table.from_batches(pieces))
            if any(found.get(key, 0) != lane[name] for key, lane in zip(manifest.keys, manifest.lanes, strict=True)):
                return f"holds other lanes in {name}.parquet than were written"
    return ""


def _check_routes(folder: Path, integrity: IntegrityReport) -> list[str]:
    """Whether `routes.json` is what the last segment says, or more, of a segment that was never written."""
    try:
        stored = read_json(folder / "routes.json") if integrity.routes else {}
    except UserError as error:
        return [str(error)]
    return [] if integrity.routes.items() <= stored.items() else [f"{folder / 'routes.json'} is not what the last segment says"]
