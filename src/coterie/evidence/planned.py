"""What a study that has grown says of rounds that were its last: as much as if they had never been.

A last round is evaluated whatever `evaluate_every` says. Once more rounds follow, the segment still holds that evaluation, since nothing
that was written is changed; it is left out when tables are read. The column `extra` of the rounds tells what else came of it: how many of
the round's absences, and which notes. Answers to single samples are those of the last round only.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.core.arrays import Array, Bools
from coterie.core.plan import Plan
from coterie.evidence.everybody import SUMMED
from coterie.evidence.record import LaneKey
from coterie.evidence.tables import ANSWERS, EXTRA

Place = tuple[LaneKey, int]  # a lane, and a round


@dataclass(frozen=True)
class Told:
    """What a last round's evaluation left beside its rows."""

    absent: int  # of the round, with those
    extra: int  # absences that came of it: the last of the round's
    notes: tuple[str, ...]


def told_of(rounds: pa.RecordBatch, plan: Plan) -> dict[Place, Told]:
    """By lane and round that is no longer the last, what its evaluation left; from the table of rounds as it was written."""
    if EXTRA not in rounds.schema.names:
        return {}
    rows = rounds.filter(pa.array(_unplanned(rounds, plan))).to_pylist()
    trees = [(row, json.loads(row[EXTRA])) for row in rows if row[EXTRA] is not None]
    return {_place(row): Told(row["absent"], tree["absences"], tuple(tree["notes"])) for row, tree in trees}


def as_planned(name: str, batch: pa.RecordBatch, plan: Plan, told: Mapping[Place, Told]) -> pa.RecordBatch:
    """A piece of a table without what rounds left that were the last once. Absences are for `AbsencesAsPlanned`."""
    if name == "clients" and ANSWERS in batch.schema.names:
        batch = _without_answers(batch, plan)
    if plan.evaluate_every == 1:
        return batch
    once = _unplanned(batch, plan)
    if not once.any():
        return batch
    if name in ("clients", "central"):
        return batch.filter(pa.array(~once))
    if name == "rounds":
        return _rounds(batch, once, told)
    if name == "notes":
        dropped = [gone and row["name"] in _notes(told, row) for gone, row in zip(once, batch.to_pylist(), strict=True)]
        return batch.filter(pa.array(~np.array(dropped, dtype=np.bool_)))
    return batch


class AbsencesAsPlanned:
    """The same for absences, of which a round's last are left out: pieces come in the order in which they were written."""

    def __init__(self, plan: Plan, told: Mapping[Place, Told]) -> None:
        self.plan, self.told = plan, told
        self.seen: Counter[Place] = Counter()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        once = _unplanned(batch, self.plan)
        kept = np.ones(len(batch), dtype=np.bool_)
        keys = batch.select(["draw", "method", "seed", "round"]).to_pylist() if once.any() else []
        for row in np.flatnonzero(once) if keys else ():
            place = _place(keys[row])
            if (told := self.told.get(place)) is not None:
                kept[row] = self.seen[place] < told.absent - told.extra
                self.seen[place] += 1
        return batch if kept.all() else batch.filter(pa.array(kept))


def _unplanned(batch: pa.RecordBatch, plan: Plan) -> Bools:
    """(rows,) whether the plan does not evaluate the row's round."""
    rounds = batch.column("round").to_numpy()
    return np.asarray((rounds % plan.evaluate_every != 0) & (rounds != plan.rounds))


def _without_answers(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    earlier = batch.column("round").to_numpy() != plan.rounds
    at = batch.schema.get_field_index(ANSWERS)
    if batch.column(at).null_count == len(batch) or not earlier.any():
        return batch
    kept = [None if gone else row for gone, row in zip(earlier, batch.column(at).to_pylist(), strict=True)]
    return batch.set_column(at, ANSWERS, pa.array(kept, batch.column(at).type))


def _rounds(batch: pa.RecordBatch, once: Bools, told: Mapping[Place, Told]) -> pa.RecordBatch:
    changed: dict[str, Array] = {}
    names = batch.schema.names
    for name in ("validation", "everybody", *SUMMED):
        if name in names:
            changed[name] = np.where(once, np.nan, batch.column(name).to_numpy(zero_copy_only=False))
    if "absent" in names:
        keys = batch.select(["draw", "method", "seed", "round"]).to_pylist()
        extra = [told[_place(row)].extra if gone and _place(row) in told else 0 for gone, row in zip(once, keys, strict=True)]
        changed["absent"] = batch.column("absent").to_numpy(zero_copy_only=False) - np.array(extra, dtype=np.int32)
    for name, values in changed.items():
        at = names.index(name)
        batch = batch.set_column(at, name, pa.array(values, batch.column(at).type))
    return batch


def _notes(told: Mapping[Place, Told], row: Mapping[str, Any]) -> tuple[str, ...]:
    found = told.get(_place(row))
    return () if found is None else found.notes


def _place(row: Mapping[str, Any]) -> Place:
    return LaneKey(row["draw"], str(row["method"]), row["seed"]), int(row["round"])
