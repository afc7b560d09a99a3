"""Round records as tables: one set of columns in memory, on disk and in the digest; the roster table; and checks for implausible values.

A last round is evaluated whatever `evaluate_every` is. Once a study has grown by more rounds, that evaluation is dropped when tables
are read; the column `extra` of the rounds records which absences and notes came from it.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from coterie._util.json_io import to_json_line, to_json_value
from coterie.core.arrays import Array, Bools, Ints
from coterie.core.asks import Evaluated
from coterie.core.plan import Plan
from coterie.core.survival import compute_brier_scores, count_concordant_pairs, count_exits, find_exits
from coterie.core.tasks import CLASSIFICATION, FIXED_SUMS, Task, compute_credits
from coterie.data.federation import Federation
from coterie.evidence.records import SUMMARY_COLUMNS, Cost, LaneKey, RoundRecord, make_summary_columns

CLASSES_KEY = b"classes"


def add_class_names(roster: pa.Table, names: Sequence[str]) -> pa.Table:
    """The roster with the names of classes."""
    return roster.replace_schema_metadata({**(roster.schema.metadata or {}), CLASSES_KEY: json.dumps(list(names)).encode()})


def get_class_names(roster: pa.Table, count: int) -> tuple[str, ...]:
    """The names of so many classes; their numbers where the roster has no names."""
    try:
        found = json.loads((roster.schema.metadata or {}).get(CLASSES_KEY, b"null"))
    except ValueError:
        found = None
    return tuple(map(str, found if isinstance(found, list) and len(found) == count else range(count)))


def summarize_test_parts(federation: Federation) -> dict[str, Array]:
    """Columns of the roster, a row for each client and, last, one for the server's own test set where there is one."""
    task, classes, central = federation.task, len(federation.classes), federation.central
    if task.counts_classes:
        owners = np.repeat(np.arange(len(federation)), federation.test.sizes)
        counts = np.bincount(owners * classes + federation.y[federation.test.indices], minlength=len(federation) * classes)
        table = counts.reshape(-1, classes)
        return _make_class_columns(table if central is None else np.vstack([table, np.bincount(central[1], minlength=classes)]))
    parts = [federation.y[own] for own in federation.test] + ([] if central is None else [np.asarray(central[1])])
    samples = {"samples": np.array([len(part) for part in parts], dtype=np.int32)}
    if task.name == "multilabel":
        return samples | _make_class_columns(np.array([part.sum(axis=0, dtype=np.int64) for part in parts]))
    if task.name == "next-token":
        return samples
    if task.name == "survival":
        return samples | _summarize_times(parts, task) | _count_client_exits(federation)
    return samples | _summarize_targets(parts, task)


def _make_class_columns(counts: Array) -> dict[str, Array]:
    return {f"actual_{c}": counts[:, c].astype(np.int32) for c in range(counts.shape[1])}


def _summarize_targets(parts: list[Array], task: Task) -> dict[str, Array]:
    """Of a regression's targets, in their own units: the mean, squares about it, and distances from the mean of all training targets."""
    away = [task.deviation * part.astype(np.float64) for part in parts]
    means = [float(own.mean()) if len(own) else 0.0 for own in away]
    return {
        "target_mean": task.mean + np.array(means),
        "target_squares": np.array([((own - mean) ** 2).sum() for own, mean in zip(away, means, strict=True)]),
        "target_distance": np.array([np.abs(own).sum() for own in away]),
    }


def _summarize_times(parts: list[Array], task: Task) -> dict[str, Array]:
    """Of survival times: the Brier score of the Kaplan-Meier curve of training samples, the pairs that can be compared, and the events."""
    grid, censoring, reference = (np.array(values) for values in (task.grid, task.censoring, task.reference))
    usual = [np.broadcast_to(reference, (len(own), len(reference))) for own in parts]
    return {
        "target_brier": np.array([compute_brier_scores(*pair, grid, censoring).sum() for pair in zip(usual, parts, strict=True)]),
        "target_pairs": np.array([float(count_concordant_pairs(np.zeros(len(own)), own)[1]) for own in parts]),
        "target_events": np.array([float(find_exits(own, len(reference))[1].sum()) for own in parts]),
    }


EXITS = ("event_", "censored_")  # of the roster: samples of all parts by the intervals that they complete, for Kaplan-Meier curves


def _count_client_exits(federation: Federation) -> dict[str, Array]:
    intervals, central = len(federation.classes), federation.central
    rows = [federation.y[np.concatenate([part[client] for part in federation.parts.values()])] for client in range(len(federation))]
    exits = np.array([count_exits(own, intervals) for own in [*rows, *([] if central is None else [np.asarray(central[1])])]])
    return make_exit_columns(exits)


def make_exit_columns(exits: Array) -> dict[str, Array]:
    """Columns of a roster from counts (n, 2, K + 1)."""
    return {f"{name}{j}": exits[:, row, j].astype(np.int32) for row, name in enumerate(EXITS) for j in range(exits.shape[2])}


GRID_KEY = b"grid"


def add_grid(roster: pa.Table, grid: Sequence[float]) -> pa.Table:
    """The roster with the edges of the intervals in which times are counted, where there are any."""
    if not grid:
        return roster
    return roster.replace_schema_metadata({**(roster.schema.metadata or {}), GRID_KEY: json.dumps(list(grid)).encode()})


def get_grid(roster: pa.Table) -> tuple[float, ...]:
    """The edges that `add_grid` stored; empty where there are none."""
    return tuple(map(float, json.loads((roster.schema.metadata or {}).get(GRID_KEY, b"[]"))))


TABLES = ("rounds", "clients", "central", "mixing", "groups", "clusters", "absences", "notes", "timings")
KEYS = ("draw", "method", "seed", "round")
EXTRA = "extra"  # of the table of rounds, for `planned`: what the evaluation of a round left that is evaluated only because it is the last
UNSEEN = "unseen"  # of a roster, where some clients take no part: whether this is one
ANSWERS = "answers"  # of the table of clients: a bit, or a float32, for each test sample (see `engines.evaluation`); kept of the last round


def make_tables(
    records: Sequence[RoundRecord], classes: int, *, drifting: bool = False, sampled: bool = False, task: Task = CLASSIFICATION
) -> dict[str, pa.Table]:
    """All the tables of some rounds, rows in the order of the records; `classes` is the number of classes, or of outputs.

    `drifting` includes test samples by class, which change from round to round, and `sampled` the summary over all clients, where only
    rows of a sample are kept.
    """
    classes = task.labels(classes)
    evaluated = [(r, e) for r in records for e in (r.evaluated, r.unseen) if e is not None]
    central = [(r, r.central) for r in records if r.central is not None]
    clusters = [(r, r.notes.clusters) for r in records if r.notes.clusters is not None]
    grouped = [(r, r.groups) for r in records if r.groups is not None]
    return {
        "rounds": _make_rounds(records, task, sampled),
        "clients": pa.table(
            {
                **_make_keys([(r, len(e)) for r, e in evaluated]),
                "client": _stack([e.clients for _, e in evaluated], np.int32),
                **_make_counts([e for _, e in evaluated], classes, task, drifting=drifting),
                ANSWERS: _pack_answers([e for _, e in evaluated]),
            }
        ),
        "central": pa.table(
            {
                **_make_keys([(r, len(names)) for r, (names, _) in central]),
                "model": pa.array([name for _, (names, _) in central for name in names], pa.string()),
                **_make_counts([e for _, (_, e) in central], classes, task),
            }
        ),
        "mixing": _make_mixing(records),
        "groups": pa.table(
            {
                **_make_keys([(r, len(g)) for r, g in grouped]),
                "client": _stack([np.arange(len(g)) if r.grouped is None else r.grouped for r, g in grouped], np.int32),
                "group": _stack([g for _, g in grouped], np.int32),
            }
        ),
        "clusters": pa.table(
            {
                **_make_keys([(r, len(labels)) for r, (_, labels) in clusters]),
                "client": _stack([clients for _, (clients, _) in clusters], np.int32),
                "cluster": _stack([labels for _, (_, labels) in clusters], np.int32),
            }
        ),
        "absences": _make_absences(records),
        "notes": _make_items(records, _make_notes, "name", "value"),
        "timings": _make_items(records, lambda record: record.seconds, "phase", "seconds"),
    }


def make_roster_table(federation: Federation) -> pa.Table:
    """The clients: id, sizes, true group where known, and the fixed part of their test data; last, without an id, the server's test set.
    A column marks clients that take no part, if there are any."""
    ids: list[str | None] = list(federation.ids)
    sizes = federation.train.sizes
    groups = federation.groups if federation.groups is not None else np.full(len(federation), -1)
    if federation.central is not None:
        ids, sizes, groups = [*ids, None], np.append(sizes, 0), np.append(groups, -1)
    columns = {"id": pa.array(ids, pa.string()), "train": sizes.astype(np.int32), "group": groups.astype(np.int32)}
    if federation.unseen:
        columns[UNSEEN] = pa.array([federation.participants <= client < len(federation) for client in range(len(ids))])
    named = add_class_names(pa.table(columns | summarize_test_parts(federation)), federation.classes)
    return add_grid(named, federation.task.grid)


def _make_rounds(records: Sequence[RoundRecord], task: Task, sampled: bool) -> pa.Table:
    columns: dict[str, Any] = _make_keys([(r, 1) for r in records])
    for cost in fields(Cost):
        values = [getattr(r.cost, cost.name) for r in records]
        columns[cost.name] = np.array(values, dtype=np.float64 if cost.type is float else np.int64)
    columns["discrepancy"] = np.array([r.discrepancy for r in records], dtype=np.float64)
    columns["absent"] = np.array([len(r.absences) for r in records], dtype=np.int32)
    columns["clock"] = np.array([r.clock for r in records], dtype=np.float64)
    columns["validation"] = np.array([compute_validation_score(r.validated, task) for r in records], dtype=np.float64)
    columns |= make_summary_columns([r.population for r in records]) if sampled else {}
    columns[EXTRA] = pa.array([None if r.extra is None else to_json_line(r.extra) for r in records], pa.string())
    return pa.table(columns)


def compute_validation_score(validated: Evaluated | None, task: Task) -> float:
    """The task's score over all clients' validation samples; nan where there are none or the round was not evaluated."""
    total = 0 if validated is None else int(validated.sizes.sum())
    return float(compute_credits(validated, task).sum() / total) if validated is not None and total else float("nan")


def _make_counts(evaluated: Sequence[Evaluated], classes: int, task: Task, drifting: bool = False) -> dict[str, Array]:
    """Loss, AUROC of two-class tasks, the task's sums, and a column for each class of hits and of predictions."""
    columns = {"loss": _stack([e.loss for e in evaluated], np.float64)}
    sums = [e.sums for e in evaluated if len(e)]  # an empty reply does not know the sums
    summed = np.concatenate(sums) if sums else np.zeros((0, len(task.sums)))
    columns |= {name: np.ascontiguousarray(summed[:, i]) for i, name in enumerate(task.sums) if drifting or name not in FIXED_SUMS}
    if classes == 2 and task.counts_classes:
        columns["auroc"] = _stack([e.auroc for e in evaluated], np.float64)
    for name in ("hits", "predicted", "actual") if drifting else ("hits", "predicted"):
        blocks = [getattr(e, name) for e in evaluated if len(e)]  # an empty reply does not know the number of classes
        table = np.concatenate(blocks) if blocks else np.zeros((0, classes), dtype=np.int64)
        columns |= {f"{name}_{c}": np.ascontiguousarray(table[:, c], dtype=np.int32) for c in range(classes)}
    return columns


def _pack_answers(evaluated: Sequence[Evaluated]) -> pa.Array:
    """A row of bits for each client, null where they were not kept."""
    rows = [row for e in evaluated for row in ([None] * len(e) if e.answers is None else [bits.tobytes() for bits in e.answers])]
    return pa.array(rows, pa.binary())


def _make_mixing(records: Sequence[RoundRecord]) -> pa.Table:
    keys, model, source, kept, weight = [], [], [], [], []
    for r in records:
        mixing = r.notes.mixing
        if mixing is None:
            continue
        rows = 0
        for matrix, names, is_kept in ((mixing.replies, mixing.clients, False), (mixing.before, None, True)):
            if is_kept and not matrix.any():
                continue
            j, i = np.nonzero(matrix)
            model.append(j)
            source.append(i if names is None else names[i])
            kept.append(np.full(len(j), is_kept))
            weight.append(matrix[j, i])
            rows += len(j)
        keys.append((r, rows))
    return pa.table(
        {
            **_make_keys(keys),
            "model": _stack(model, np.int32),
            "source": _stack(source, np.int32),  # a client, or, where kept, a model of the round before
            "kept": _stack(kept, np.bool_),
            "weight": _stack(weight, np.float64),
        }
    )


def _make_absences(records: Sequence[RoundRecord]) -> pa.Table:
    flat = [absence for r in records for absence in r.absences]
    words = {name: pa.array([getattr(absence, name) for absence in flat], pa.string()) for name in ("ask", "why", "detail")}
    clients = np.array([absence.client for absence in flat], dtype=np.int32)
    return pa.table({**_make_keys([(r, len(r.absences)) for r in records]), "client": clients, **words})


def _make_notes(record: RoundRecord) -> dict[str, str]:
    """The notes that have no table of their own, as JSON."""
    notes = record.notes
    fields = {"choice": None if notes.choice is None else to_json_value(notes.choice), "silhouette": notes.silhouette}
    named = notes.named | {name: value for name, value in fields.items() if value is not None}
    return {name: to_json_line(value) for name, value in named.items()}


def _make_items(records: Sequence[RoundRecord], items: Callable[[RoundRecord], Mapping[str, Any]], key: str, value: str) -> pa.Table:
    """A row for each item of a mapping of each round, under its key."""
    rows = [(r, sorted(items(r).items())) for r in records]
    flat = [item for _, own in rows for item in own]
    values = np.array([v for _, v in flat], dtype=np.float64) if value == "seconds" else pa.array([v for _, v in flat], pa.string())
    return pa.table({**_make_keys([(r, len(own)) for r, own in rows]), key: pa.array([k for k, _ in flat], pa.string()), value: values})


def _make_keys(counts: Sequence[tuple[RoundRecord, int]]) -> dict[str, Any]:
    sizes = [n for _, n in counts]
    labels = list(dict.fromkeys(r.key.method for r, _ in counts))
    place = {label: i for i, label in enumerate(labels)}
    codes = np.repeat(np.array([place[r.key.method] for r, _ in counts], dtype=np.int32), sizes)
    return {
        "draw": np.repeat(np.array([r.key.draw for r, _ in counts], dtype=np.int64), sizes),
        "method": pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(labels, pa.string())),
        "seed": np.repeat(np.array([r.key.seed for r, _ in counts], dtype=np.int64), sizes),
        "round": np.repeat(np.array([r.round_ for r, _ in counts], dtype=np.int32), sizes),
    }


def _stack(blocks: Sequence[Array], dtype: Any) -> Array:
    return np.concatenate(blocks).astype(dtype, copy=False) if len(blocks) else np.zeros(0, dtype=dtype)


def find_implausible(table: str, batch: pa.RecordBatch, rosters: Mapping[int, pa.Table]) -> str | None:
    """An implausible value in a batch of a table, as a sentence without its end; None if there is none."""
    if not len(batch):
        return None
    if table == "mixing" and "weight" in batch.schema.names and not np.isfinite(_read_integers(batch, "weight")).all():
        return "a weight is no finite number"
    if table == "clients" and "client" in batch.schema.names:
        return _check_counts(batch, rosters)
    return None


def _check_counts(batch: pa.RecordBatch, rosters: Mapping[int, pa.Table]) -> str | None:
    """Hits must lie between 0 and the test samples of their class, from the round itself or from the roster."""
    client, draw = _read_integers(batch, "client"), _read_integers(batch, "draw")
    hits = [name for name in batch.schema.names if name.startswith("hits_") and not batch.column(name).null_count]
    for number in np.unique(draw):
        roster = rosters.get(int(number))
        if roster is None:
            continue
        own = draw == number
        numbers = client[own]
        if numbers.min() < 0 or numbers.max() >= roster["id"].length() - roster["id"].null_count:
            return f"client {numbers.max() if numbers.min() >= 0 else numbers.min()} is in no roster"
        for name in hits:
            actual = name.replace("hits_", "actual_")
            is_own = actual in batch.schema.names and not batch.column(actual).null_count
            most: Ints = _read_integers(batch, actual)[own] if is_own else roster[actual].to_numpy()[numbers]
            got = _read_integers(batch, name)[own]
            if (wrong := (got > most) | (got < 0)).any():
                row = int(wrong.argmax())
                return f"client {numbers[row]} has {got[row]} right answers ({name}) of {most[row]} test samples"
    return None


def _read_integers(batch: pa.RecordBatch, name: str) -> Ints:
    found: Ints = batch.column(name).to_numpy(zero_copy_only=False)
    return found


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
