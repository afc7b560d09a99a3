"""Round records as tables: one set of columns, used in memory, on disk and by the digest.

| table | a row is |
| --- | --- |
| rounds | one round of one lane: costs, discrepancy, absences, simulated time, accuracy on all clients' validation parts; `everybody` |
| clients | one client's test part in one round: loss, and counts by class or what else the task sums up |
| central | one named model on the server's own test set |
| mixing | one non-zero weight of the aggregation matrix |
| groups | one client's group |
| clusters | one client's cluster, where clusters live for one round |
| absences | one client that was asked and did not answer, or whose answer was refused |
| notes | one thing a method noted, as JSON |
| timings | seconds by phase; kept apart, and no part of the digest |

Every row begins with its lane and round: draw, method, seed, round. What never changes (who the clients are, how many test samples of each
class they hold) is in the roster table of the draw, once. What tasks other than classification sum up is in `core.tasks`.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.core.arrays import Array
from coterie.core.asks import Evaluated
from coterie.core.plain import as_json, plain
from coterie.core.tasks import CLASSIFICATION, FIXED, Task, credits_of
from coterie.data.federation import Federation
from coterie.evidence.class_names import with_class_names
from coterie.evidence.everybody import everybody_columns
from coterie.evidence.held import held_by_client
from coterie.evidence.record import Cost, RoundRecord

TABLES = ("rounds", "clients", "central", "mixing", "groups", "clusters", "absences", "notes", "timings")
KEYS = ("draw", "method", "seed", "round")
EXTRA = "extra"  # of the table of rounds, for `planned`: what the evaluation of a round left that is evaluated only because it is the last
UNSEEN = "unseen"  # of a roster, where some clients take no part: whether this is one
ANSWERS = "answers"  # of the table of clients: a bit, or a float32, for each test sample (see `engines.tallies`); kept of the last round


def tables_of(
    records: Sequence[RoundRecord], classes: int, *, drifting: bool = False, sampled: bool = False, task: Task = CLASSIFICATION
) -> dict[str, pa.Table]:
    """All the tables of some rounds, rows in the order of the records; in a world that drifts, test samples by class are in them too, and
    where rows are kept of a sample of the clients, what is told of everybody."""
    classes = task.labels(classes)
    evaluated = [(r, e) for r in records for e in (r.evaluated, r.unseen) if e is not None]
    central = [(r, r.central) for r in records if r.central is not None]
    clusters = [(r, r.notes.clusters) for r in records if r.notes.clusters is not None]
    grouped = [(r, r.groups) for r in records if r.groups is not None]
    return {
        "rounds": _rounds(records, task, sampled),
        "clients": pa.table(
            {
                **_keys([(r, len(e)) for r, e in evaluated]),
                "client": _stack([e.clients for _, e in evaluated], np.int32),
                **_counts([e for _, e in evaluated], classes, task, drifting=drifting),
                ANSWERS: _answers([e for _, e in evaluated]),
            }
        ),
        "central": pa.table(
            {
                **_keys([(r, len(names)) for r, (names, _) in central]),
                "model": pa.array([name for _, (names, _) in central for name in names], pa.string()),
                **_counts([e for _, (_, e) in central], classes, task),
            }
        ),
        "mixing": _mixing(records),
        "groups": pa.table(
            {
                **_keys([(r, len(g)) for r, g in grouped]),
                "client": _stack([np.arange(len(g)) if r.grouped is None else r.grouped for r, g in grouped], np.int32),
                "group": _stack([g for _, g in grouped], np.int32),
            }
        ),
        "clusters": pa.table(
            {
                **_keys([(r, len(labels)) for r, (_, labels) in clusters]),
                "client": _stack([clients for _, (clients, _) in clusters], np.int32),
                "cluster": _stack([labels for _, (_, labels) in clusters], np.int32),
            }
        ),
        "absences": _absences(records),
        "notes": _notes(records),
        "timings": _timings(records),
    }


def roster_table(federation: Federation) -> pa.Table:
    """The clients: id, sizes, true group where known, and what is fixed of their test parts; last, without an id, the server's own test
    set. Where some take no part, a column says who."""
    held = held_by_client(federation)
    ids: list[str | None] = list(federation.ids)
    sizes = federation.train.sizes
    groups = federation.groups if federation.groups is not None else np.full(len(federation), -1)
    if federation.central is not None:
        ids, sizes, groups = [*ids, None], np.append(sizes, 0), np.append(groups, -1)
    columns = {"id": pa.array(ids, pa.string()), "train": sizes.astype(np.int32), "group": groups.astype(np.int32)}
    if federation.unseen:
        columns[UNSEEN] = pa.array([federation.seen <= client < len(federation) for client in range(len(ids))])
    return with_class_names(pa.table(columns | held), federation.classes)


def _rounds(records: Sequence[RoundRecord], task: Task, sampled: bool) -> pa.Table:
    columns: dict[str, Any] = _keys([(r, 1) for r in records])
    for cost in fields(Cost):
        told = [getattr(r.cost, cost.name) for r in records]
        columns[cost.name] = np.array(told, dtype=np.float64 if cost.type is float else np.int64)
    columns["discrepancy"] = np.array([r.discrepancy for r in records], dtype=np.float64)
    columns["absent"] = np.array([len(r.absences) for r in records], dtype=np.int32)
    columns["clock"] = np.array([r.clock for r in records], dtype=np.float64)
    columns["validation"] = np.array([validation_score(r.validated, task) for r in records], dtype=np.float64)
    columns |= everybody_columns([r.everybody for r in records]) if sampled else {}
    columns[EXTRA] = pa.array([None if r.extra is None else as_json(r.extra) for r in records], pa.string())
    return pa.table(columns)


def validation_score(validated: Evaluated | None, task: Task) -> float:
    """The task's score over all clients' validation samples; nan where there are none or the round was not evaluated."""
    total = 0 if validated is None else int(validated.sizes.sum())
    return float(credits_of(validated, task).sum() / total) if validated is not None and total else float("nan")


def _counts(evaluated: Sequence[Evaluated], classes: int, task: Task, drifting: bool = False) -> dict[str, Array]:
    """Loss, AUROC of two-class tasks, what else the task sums up, and a column for each class of hits and of predictions."""
    columns = {"loss": _stack([e.loss for e in evaluated], np.float64)}
    sums = [e.sums for e in evaluated if len(e)]  # a reply of nobody does not know what is summed up
    summed = np.concatenate(sums) if sums else np.zeros((0, len(task.sums)))
    columns |= {name: np.ascontiguousarray(summed[:, i]) for i, name in enumerate(task.sums) if drifting or name not in FIXED}
    if classes == 2 and task.counts_classes:
        columns["auroc"] = _stack([e.auroc for e in evaluated], np.float64)
    for name in ("hits", "predicted", "actual") if drifting else ("hits", "predicted"):
        blocks = [getattr(e, name) for e in evaluated if len(e)]  # a reply of nobody does not know the number of classes
        table = np.concatenate(blocks) if blocks else np.zeros((0, classes), dtype=np.int64)
        columns |= {f"{name}_{c}": np.ascontiguousarray(table[:, c], dtype=np.int32) for c in range(classes)}
    return columns


def _answers(evaluated: Sequence[Evaluated]) -> pa.Array:
    """A row of bits for each client, null where they were not kept."""
    rows = [row for e in evaluated for row in ([None] * len(e) if e.answers is None else [bits.tobytes() for bits in e.answers])]
    return pa.array(rows, pa.binary())


def _mixing(records: Sequence[RoundRecord]) -> pa.Table:
    keys, model, source, kept, weight = [], [], [], [], []
    for r in records:
        mixing = r.notes.mixing
        if mixing is None:
            continue
        rows = 0
        for matrix, names, is_kept in ((mixing.replies, mixing.clients, False), (mixing.before, None, True)):
            if is_kept and not matrix.any():  # most methods keep nothing of the models before
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
            **_keys(keys),
            "model": _stack(model, np.int32),
            "source": _stack(source, np.int32),  # a client, or, where kept, a model of the round before
            "kept": _stack(kept, np.bool_),
            "weight": _stack(weight, np.float64),
        }
    )


def _absences(records: Sequence[RoundRecord]) -> pa.Table:
    flat = [absence for r in records for absence in r.absences]
    words = {name: pa.array([getattr(absence, name) for absence in flat], pa.string()) for name in ("ask", "why", "detail")}
    clients = np.array([absence.client for absence in flat], dtype=np.int32)
    return pa.table({**_keys([(r, len(r.absences)) for r in records]), "client": clients, **words})


def _notes(records: Sequence[RoundRecord]) -> pa.Table:
    notes = [(r, sorted(_noted(r).items())) for r in records]
    flat = [item for _, items in notes for item in items]
    return pa.table(
        {
            **_keys([(r, len(items)) for r, items in notes]),
            "name": pa.array([name for name, _ in flat], pa.string()),
            "value": pa.array([as_json(value) for _, value in flat], pa.string()),
        }
    )


def _noted(record: RoundRecord) -> dict[str, Any]:
    """The notes that have no table of their own."""
    notes = record.notes
    fields = {"choice": None if notes.choice is None else plain(notes.choice), "silhouette": notes.silhouette}
    return notes.named | {name: value for name, value in fields.items() if value is not None}


def _timings(records: Sequence[RoundRecord]) -> pa.Table:
    phases = [(r, sorted(r.seconds.items())) for r in records]
    flat = [item for _, items in phases for item in items]
    return pa.table(
        {
            **_keys([(r, len(items)) for r, items in phases]),
            "phase": pa.array([phase for phase, _ in flat], pa.string()),
            "seconds": np.array([s for _, s in flat], dtype=np.float64),
        }
    )


def _keys(counts: Sequence[tuple[RoundRecord, int]]) -> dict[str, Any]:
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
