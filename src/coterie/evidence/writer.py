"""Writing evidence: a folder a study, filled with segments that appear whole or not at all.

A segment holds the tables of a fixed range of rounds of one wave of lanes, and the states at its end, from which a run goes on. It is
written beside its place, flushed to the disk and then renamed, so that a kill or a full disk costs at most the rounds since the last one.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from coterie.core.arrays import Array
from coterie.core.errors import UserError
from coterie.core.states import flatten
from coterie.evidence.settings import Settings
from coterie.evidence.tables import tables_of
from coterie.run.lanes import Lane, RoundRecord

KEPT_STATES = 2  # segments of a wave that keep their states: the last, and one to go back to


class WriteError(RuntimeError):
    """The evidence could not be written (a full disk, say); what was written before is whole."""


def create(folder: Path, settings: Settings, extras: dict[str, Any], roster: pa.Table) -> None:
    """Begin a study's folder. One that holds another study, or anything else, is refused."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another --out, or continue the study in it with --resume.")
    try:
        (folder / "segments").mkdir(parents=True)
        for name, tree in extras.items():
            _write(folder / f"{name}.json", _json(tree))
        pq.write_table(roster, folder / "roster.parquet")
        _write(folder / "settings.json", _json(settings.as_json()))  # last: a folder with settings is a study
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error


def write_segment(folder: Path, wave: int, first: int, last: int, lanes: Sequence[Lane], records: Sequence[RoundRecord]) -> None:
    """Write one segment: rounds first..last of a wave."""
    final = folder / "segments" / f"{wave:04d}-{first:06d}-{last:06d}"
    draft = final.with_name(f".draft-{final.name}")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        federation = lanes[0].problem.federation
        for name, table in tables_of(records, len(federation.classes), drifting=bool(federation.later)).items():
            # without dictionaries: compression finds repeated numbers as well, in less time
            pq.write_table(table, draft / f"{name}.parquet", compression="zstd", compression_level=1, use_dictionary=False)
        _write(draft / "lanes.json", _json([_lane(lane) for lane in lanes]))
        _write(draft / "states.safetensors", _states(lanes))
        for path in draft.iterdir():
            _flush(path)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        _flush(final.parent)
        _drop_old_states(final.parent, wave)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise WriteError(
            f"Cannot write to {folder}: {error.strerror or error}. Rounds before {first} are safe; make room and go on with --resume."
        ) from error


def write_routes(folder: Path, routes: Mapping[str, str]) -> None:
    """Keep how trainings were carried out, for the reader and for a resumed run."""
    if routes:
        _write(folder / "routes.json", _json(dict(routes)))


def log(folder: Path, line: str) -> None:
    """Append a line to the study's log."""
    with (folder / "log.txt").open("a") as file:
        file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n")


def _states(lanes: Sequence[Lane]) -> bytes:
    arrays: dict[str, Array] = {}
    trees: dict[str, Any] = {}
    for lane in lanes:
        if lane.state is not None:
            parts, trees[str(lane.number)] = flatten(lane.state)
            arrays |= {f"{lane.number}/{path}": value for path, value in parts.items()}
    return bytes(save(arrays, metadata={"trees": json.dumps(trees, sort_keys=True)}))


def _lane(lane: Lane) -> dict[str, Any]:
    return {"lane": lane.number, "round": lane.round_, "status": lane.status, "reason": lane.reason}


def _drop_old_states(segments: Path, wave: int) -> None:
    for old in sorted(segments.glob(f"{wave:04d}-*"))[:-KEPT_STATES]:
        (old / "states.safetensors").unlink(missing_ok=True)


def _json(tree: Any) -> bytes:
    return (json.dumps(tree, indent=1, sort_keys=True) + "\n").encode()


def _write(path: Path, data: bytes) -> None:
    """Write a small file whole: beside its place, then renamed."""
    draft = path.with_name(f".draft-{path.name}")
    draft.write_bytes(data)
    draft.rename(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
