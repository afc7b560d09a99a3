"""What of a study is as it was written, and what is not: every file, every checkpoint, every row."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie._util.errors import UserError
from coterie._util.json_io import read_json
from coterie.evidence import format1
from coterie.evidence.folder import QUARANTINE, read_batches, read_roster
from coterie.evidence.manifest import COUNTED_TABLES, IntegrityReport, Manifest, check_integrity, count_rows_by_lane, is_study
from coterie.evidence.restore import load_lanes
from coterie.evidence.tables import TABLES, find_implausible


@dataclass(frozen=True)
class Verification:
    """What was found in one study's folder."""

    folder: Path
    checkable: bool  # False: written before there were manifests
    damaged: tuple[str, ...]  # in sentences
    good: Mapping[str, int] = field(default_factory=dict)  # by segment that is whole, the rounds of lanes that it holds
    set_aside: tuple[str, ...] = ()  # what resumed runs have moved out of the way

    @property
    def whole(self) -> bool:
        return not self.damaged

    def as_json(self) -> dict[str, Any]:
        return {
            "study": str(self.folder),
            "whole": self.whole,
            "checkable": self.checkable,
            "damaged": list(self.damaged),
            "good": {"segments": list(self.good), "rounds": sum(self.good.values())},
            "set_aside": list(self.set_aside),
        }


def find_studies(folder: Path) -> list[Path]:
    """The study that a folder is, or those below it: of a comparison, a grid or a reproduction."""
    if is_study(folder):
        return [folder]
    there = (path.relative_to(folder) for name in ("settings.json", "head.json") for path in folder.rglob(name))
    found = {folder / path.parent for path in there if not any(part.startswith(".") for part in path.parts)}  # drafts begin with a dot
    if not found:
        raise UserError(f"{folder} holds no study: name the folder that --out made.")
    return sorted(found)


def verify(folder: Path) -> Verification:
    """Look at everything in a study's folder. Nothing is changed."""
    whole = check_integrity(folder, everything=True)
    wrong, aside = whole.sentences(folder), folder / QUARANTINE
    if not whole.checkable:
        return Verification(folder, False, tuple(_check_without_manifests(folder)), dict.fromkeys(whole.good, 0), _list_names(aside))
    rosters = {
        int(path.stem): roster for path in (folder / "rosters").glob("[!.]*.parquet") if (roster := _read_roster_or_none(path)) is not None
    }
    bad = {name: told for name in whole.good if (told := _check_rows(folder / "segments" / name, whole.manifests[name], rosters))}
    wrong += [f"{folder / 'segments' / name} {told}" for name, told in bad.items()]
    if not wrong:  # each is whole; is what they hold, too?
        wrong = load_lanes(folder, ()).told
    if not wrong:
        wrong = _check_routes(folder, whole)
    good = {name: sum(lane["rounds"] for lane in whole.manifests[name].lanes) for name in whole.good if name not in bad}
    return Verification(folder, True, tuple(wrong), good, _list_names(aside))


def _check_rows(segment: Path, manifest: Manifest, rosters: Mapping[int, pa.Table]) -> str:
    """What is wrong in the tables of a segment whose files are as they were written; nothing if all is right."""
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


def _check_routes(folder: Path, whole: IntegrityReport) -> list[str]:
    """Whether `routes.json` is what the last segment says, or more, of a segment that was never written."""
    routes = whole.manifests[whole.good[-1]].routes if whole.good else {}
    try:
        told = read_json(folder / "routes.json") if routes else {}
    except UserError as error:
        return [str(error)]
    return [] if routes.items() <= told.items() else [f"{folder / 'routes.json'} is not what the last segment says"]


def _check_without_manifests(folder: Path) -> Iterator[str]:
    """What can be told of a study that has no manifests: which of its files cannot be read."""
    try:
        tree = read_json(folder / "settings.json")
    except UserError as error:
        yield str(error)
        return
    if not format1.wrote(tree):
        yield from load_lanes(folder, ()).told
    for path in sorted((folder / "rosters").glob("[!.]*.parquet")):
        if _read_roster_or_none(path) is None:
            yield f"{path} cannot be read"


def _read_roster_or_none(path: Path) -> pa.Table | None:
    try:
        return read_roster(path)
    except UserError:
        return None


def _list_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()
