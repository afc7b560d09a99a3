"""Studies that grow: more methods, seeds, draws or rounds, and nothing else changed.

Randomness is keyed, so existing results stay as they are and the whole equals one run of all. A last round is evaluated whatever
`evaluate_every` says; once more rounds follow, that evaluation is dropped when tables are read. The column `extra` of the rounds
records which absences and notes came from it.
"""

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie._util.files import hash_file, sync_to_disk
from coterie._util.json_io import format_json
from coterie.core.arrays import Array, Bools
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence.folder import get_roster_path, list_segments, write_roster
from coterie.evidence.manifest import HEAD, compute_origin, read_study_head
from coterie.evidence.records import SUMMARY_COLUMNS, LaneKey
from coterie.evidence.settings import Settings
from coterie.evidence.tables import ANSWERS, EXTRA

GROWTH_FOLDER = ".growing"  # what a study is about to be, complete: whoever goes on with it puts it in place first


GROWABLE = ("methods", "seeds", "draws")


def find_obstacles(stored: Settings, wanted: Settings) -> list[str]:
    """In what a study differs from another than by being a part of it, by name; nothing where it can grow into that."""
    told = [name for name in stored.differences(wanted) if name not in GROWABLE and not name.startswith("plan.")]
    told += [sentence for name in GROWABLE for sentence in list_removed(name, getattr(stored, name), getattr(wanted, name))]
    return told + find_plan_obstacles(stored.plan, wanted.plan)


def list_removed(name: str, stored: Iterable[object], wanted: Collection[object]) -> list[str]:
    """Which of what there is would not be there any more, in words; nothing if all would."""
    missing = [str(item) for item in stored if item not in wanted]
    return [f"{name}, without {', '.join(missing)}"] if missing else []


def find_plan_obstacles(stored: Plan, wanted: Plan) -> list[str]:
    """In what plans differ, by name, other than by more rounds."""
    told = [
        f"plan.{f.name}" for f in fields(Plan) if f.name not in ("rounds", "local") and getattr(stored, f.name) != getattr(wanted, f.name)
    ]
    told += [f"plan.local.{f.name}" for f in fields(Local) if getattr(stored.local, f.name) != getattr(wanted.local, f.name)]
    if wanted.rounds < stored.rounds:
        told.append(f"plan.rounds, fewer than {stored.rounds}")
    elif wanted.rounds > stored.rounds and stored.schedule == "cosine":
        told.append("plan.rounds: along a cosine every round's rate depends on their number")
    return told


def grow(folder: Path, settings: Settings, data: Mapping[str, Any], rosters: Mapping[int, pa.Table]) -> None:
    """Let the study in a folder be one of these settings. After a kill it is either the old or the new one, once somebody goes on."""
    head = read_study_head(folder)
    assert head is not None  # folders without one are refused
    draft = folder / f".draft{GROWTH_FOLDER}"
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "rosters").mkdir(parents=True)
    (draft / "settings.json").write_text(format_json(settings.as_json()), encoding="utf-8", newline="\n")
    if "data.json" in head.files:
        (draft / "data.json").write_text(format_json(data), encoding="utf-8", newline="\n")
    for draw, roster in rosters.items():
        write_roster(get_roster_path(draft, draw), roster)
    made = {path.relative_to(draft).as_posix(): hash_file(path) for path in draft.rglob("*") if path.is_file()}
    files = {**head.files, **made}
    start, there = compute_origin(files), list_segments(folder)
    follows = {**head.follows, there[0].name: start} if there else {}
    replace(head, files=files, last=head.last if there else start, follows=follows).write(draft)
    for path in (*draft.rglob("*"), draft):
        sync_to_disk(path)
    draft.rename(folder / GROWTH_FOLDER)
    sync_to_disk(folder)
    finish_growing(folder)


def finish_growing(folder: Path) -> None:
    """Put in place what a study was about to be when it was interrupted; its head comes last."""
    ready = folder / GROWTH_FOLDER
    if not ready.is_dir():
        return
    names = [path.relative_to(ready) for path in ready.rglob("*") if path.is_file()]
    for name in sorted(names, key=lambda name: (name.name == HEAD, name)):
        (folder / name).parent.mkdir(exist_ok=True)
        (ready / name).replace(folder / name)
        sync_to_disk((folder / name).parent)
    shutil.rmtree(ready)
    sync_to_disk(folder)


LaneRound = tuple[LaneKey, int]  # a lane, and a round


@dataclass(frozen=True)
class LastEvaluation:
    """What a last round's evaluation left beside its rows."""

    absent: int  # of the round, with those
    extra: int  # absences that came of it: the last of the round's
    notes: tuple[str, ...]


def find_last_evaluations(rounds: pa.RecordBatch, plan: Plan) -> dict[LaneRound, LastEvaluation]:
    """By lane and round that is no longer the last, what its evaluation left; from the table of rounds as it was written."""
    if EXTRA not in rounds.schema.names:
        return {}
    rows = rounds.filter(pa.array(_is_unplanned(rounds, plan))).to_pylist()
    trees = [(row, json.loads(row[EXTRA])) for row in rows if row[EXTRA] is not None]
    return {_get_lane_round(row): LastEvaluation(row["absent"], tree["absences"], tuple(tree["notes"])) for row, tree in trees}


def drop_unplanned(name: str, batch: pa.RecordBatch, plan: Plan, told: Mapping[LaneRound, LastEvaluation]) -> pa.RecordBatch:
    """A piece of a table without what rounds left that were the last once. Absences are for `PlannedAbsences`."""
    if name == "clients" and ANSWERS in batch.schema.names:
        batch = _drop_answers(batch, plan)
    if plan.evaluate_every == 1:
        return batch
    once = _is_unplanned(batch, plan)
    if not once.any():
        return batch
    if name in ("clients", "central"):
        return batch.filter(pa.array(~once))
    if name == "rounds":
        return _clear_rounds(batch, once, told)
    if name == "notes":
        dropped = [gone and row["name"] in _list_extra_notes(told, row) for gone, row in zip(once, batch.to_pylist(), strict=True)]
        return batch.filter(pa.array(~np.array(dropped, dtype=np.bool_)))
    return batch


class PlannedAbsences:
    """The same for absences, of which a round's last are left out: pieces come in the order in which they were written."""

    def __init__(self, plan: Plan, told: Mapping[LaneRound, LastEvaluation]) -> None:
        self.plan, self.told = plan, told
        self.seen: Counter[LaneRound] = Counter()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        once = _is_unplanned(batch, self.plan)
        kept = np.ones(len(batch), dtype=np.bool_)
        keys = batch.select(["draw", "method", "seed", "round"]).to_pylist() if once.any() else []
        for row in np.flatnonzero(once) if keys else ():
            place = _get_lane_round(keys[row])
            if (told := self.told.get(place)) is not None:
                kept[row] = self.seen[place] < told.absent - told.extra
                self.seen[place] += 1
        return batch if kept.all() else batch.filter(pa.array(kept))


def _is_unplanned(batch: pa.RecordBatch, plan: Plan) -> Bools:
    """(rows,) whether the plan does not evaluate the row's round."""
    rounds = batch.column("round").to_numpy()
    return np.asarray((rounds % plan.evaluate_every != 0) & (rounds != plan.rounds))


def _drop_answers(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    earlier = batch.column("round").to_numpy() != plan.rounds
    at = batch.schema.get_field_index(ANSWERS)
    if batch.column(at).null_count == len(batch) or not earlier.any():
        return batch
    kept = [None if gone else row for gone, row in zip(earlier, batch.column(at).to_pylist(), strict=True)]
    return batch.set_column(at, ANSWERS, pa.array(kept, batch.column(at).type))


def _clear_rounds(batch: pa.RecordBatch, once: Bools, told: Mapping[LaneRound, LastEvaluation]) -> pa.RecordBatch:
    changed: dict[str, Array] = {}
    names = batch.schema.names
    for name in ("validation", "everybody", *SUMMARY_COLUMNS):
        if name in names:
            changed[name] = np.where(once, np.nan, batch.column(name).to_numpy(zero_copy_only=False))
    if "absent" in names:
        keys = batch.select(["draw", "method", "seed", "round"]).to_pylist()
        extra = [
            told[_get_lane_round(row)].extra if gone and _get_lane_round(row) in told else 0 for gone, row in zip(once, keys, strict=True)
        ]
        changed["absent"] = batch.column("absent").to_numpy(zero_copy_only=False) - np.array(extra, dtype=np.int32)
    for name, values in changed.items():
        at = names.index(name)
        batch = batch.set_column(at, name, pa.array(values, batch.column(at).type))
    return batch


def _list_extra_notes(told: Mapping[LaneRound, LastEvaluation], row: Mapping[str, Any]) -> tuple[str, ...]:
    found = told.get(_get_lane_round(row))
    return () if found is None else found.notes


def _get_lane_round(row: Mapping[str, Any]) -> LaneRound:
    return LaneKey(row["draw"], str(row["method"]), row["seed"]), int(row["round"])
