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

GROWTH_FOLDER = ".growing"  # the files of the grown study, complete: a resumed run moves them into place first
GROWABLE = ("methods", "seeds", "draws")


def find_obstacles(stored: Settings, wanted: Settings) -> list[str]:
    """The settings that keep a study from growing into another, by name."""
    found = [name for name in stored.differences(wanted) if name not in GROWABLE and not name.startswith("plan.")]
    found += [sentence for name in GROWABLE for sentence in list_removed(name, getattr(stored, name), getattr(wanted, name))]
    return found + find_plan_obstacles(stored.plan, wanted.plan)


def list_removed(name: str, stored: Iterable[object], wanted: Collection[object]) -> list[str]:
    """The items that would be removed, in words; nothing if none would."""
    missing = [str(item) for item in stored if item not in wanted]
    return [f"{name}, without {', '.join(missing)}"] if missing else []


def find_plan_obstacles(stored: Plan, wanted: Plan) -> list[str]:
    """The differences of two plans other than more rounds, by name."""
    found = [
        f"plan.{f.name}" for f in fields(Plan) if f.name not in ("rounds", "local") and getattr(stored, f.name) != getattr(wanted, f.name)
    ]
    found += [f"plan.local.{f.name}" for f in fields(Local) if getattr(stored.local, f.name) != getattr(wanted.local, f.name)]
    if wanted.rounds < stored.rounds:
        found.append(f"plan.rounds, fewer than {stored.rounds}")
    elif wanted.rounds > stored.rounds and stored.schedule == "cosine":
        found.append("plan.rounds: along a cosine every round's rate depends on their number")
    return found


def grow(folder: Path, settings: Settings, data: Mapping[str, Any], rosters: Mapping[int, pa.Table]) -> None:
    """Replace the settings of the study in a folder. After a kill, a resumed run finds either the old or the new study."""
    head = read_study_head(folder)
    assert head is not None  # it has been repaired
    draft = folder / f".draft{GROWTH_FOLDER}"
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "rosters").mkdir(parents=True)
    (draft / "settings.json").write_text(format_json(settings.as_json()), encoding="utf-8")
    if "data.json" in head.files:
        (draft / "data.json").write_text(format_json(data), encoding="utf-8")
    for draw, roster in rosters.items():
        write_roster(get_roster_path(draft, draw), roster)
    files = {**head.files, **{path.relative_to(draft).as_posix(): hash_file(path) for path in draft.rglob("*") if path.is_file()}}
    start, segments = compute_origin(files), list_segments(folder)
    follows = {**head.follows, segments[0].name: start} if segments else {}
    replace(head, files=files, last=head.last if segments else start, follows=follows).write(draft)
    for path in (*draft.rglob("*"), draft):
        sync_to_disk(path)
    draft.rename(folder / GROWTH_FOLDER)
    sync_to_disk(folder)
    finish_growing(folder)


def finish_growing(folder: Path) -> None:
    """Move the files of an interrupted growth into place; the head comes last."""
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


LaneRound = tuple[LaneKey, int]


@dataclass(frozen=True)
class LastEvaluation:
    """The absences and notes of a last round's evaluation."""

    absent: int  # all absences of the round
    extra: int  # those of the evaluation: the last ones of the round
    notes: tuple[str, ...]


def find_last_evaluations(rounds: pa.RecordBatch, plan: Plan) -> dict[LaneRound, LastEvaluation]:
    """By lane and round that is no longer the last, the absences and notes of its evaluation; from the table of rounds as written."""
    if EXTRA not in rounds.schema.names:
        return {}
    rows = rounds.filter(pa.array(_is_unplanned(rounds, plan))).to_pylist()
    trees = [(row, json.loads(row[EXTRA])) for row in rows if row[EXTRA] is not None]
    return {_get_lane_round(row): LastEvaluation(row["absent"], tree["absences"], tuple(tree["notes"])) for row, tree in trees}


def drop_unplanned(name: str, batch: pa.RecordBatch, plan: Plan, last: Mapping[LaneRound, LastEvaluation]) -> pa.RecordBatch:
    """A batch of a table without the evaluations of rounds that were once the last. For absences, see `PlannedAbsences`."""
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
        return _clear_rounds(batch, once, last)
    if name == "notes":
        nothing = LastEvaluation(0, 0, ())
        rows = zip(once, batch.to_pylist(), strict=True)
        dropped = [gone and row["name"] in last.get(_get_lane_round(row), nothing).notes for gone, row in rows]
        return batch.filter(pa.array(~np.array(dropped, dtype=np.bool_)))
    return batch


class PlannedAbsences:
    """The same for absences, of which the last ones of a round are dropped: batches come in the order in which they were written."""

    def __init__(self, plan: Plan, last: Mapping[LaneRound, LastEvaluation]) -> None:
        self.plan, self.last = plan, last
        self.seen: Counter[LaneRound] = Counter()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        once = _is_unplanned(batch, self.plan)
        kept = np.ones(len(batch), dtype=np.bool_)
        keys = batch.select(["draw", "method", "seed", "round"]).to_pylist() if once.any() else []
        for row in np.flatnonzero(once) if keys else ():
            place = _get_lane_round(keys[row])
            if (evaluation := self.last.get(place)) is not None:
                kept[row] = self.seen[place] < evaluation.absent - evaluation.extra
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


def _clear_rounds(batch: pa.RecordBatch, once: Bools, last: Mapping[LaneRound, LastEvaluation]) -> pa.RecordBatch:
    changed: dict[str, Array] = {}
    names = batch.schema.names
    for name in ("validation", "everybody", *SUMMARY_COLUMNS):
        if name in names:
            changed[name] = np.where(once, np.nan, batch.column(name).to_numpy(zero_copy_only=False))
    if "absent" in names:
        keys = map(_get_lane_round, batch.select(["draw", "method", "seed", "round"]).to_pylist())
        extra = [last[key].extra if gone and key in last else 0 for gone, key in zip(once, keys, strict=True)]
        changed["absent"] = batch.column("absent").to_numpy(zero_copy_only=False) - np.array(extra, dtype=np.int32)
    for name, values in changed.items():
        at = names.index(name)
        batch = batch.set_column(at, name, pa.array(values, batch.column(at).type))
    return batch


def _get_lane_round(row: Mapping[str, Any]) -> LaneRound:
    return LaneKey(row["draw"], str(row["method"]), row["seed"]), int(row["round"])
