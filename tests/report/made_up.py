"""Studies that nobody ran: evidence with the accuracies that a test asks for, so that every verdict can be had in milliseconds."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.analysis import compare_evidence
from coterie.core.arrays import Array, Ids
from coterie.core.asks import Evaluated
from coterie.core.mixing import Mixing
from coterie.core.plan import Plan
from coterie.evidence import Evidence, writer
from coterie.evidence.settings import Settings
from coterie.evidence.tables import tables_of
from coterie.report.subject import Subject
from coterie.run.costs import Cost
from coterie.run.lanes import RoundRecord

TESTS = 10_000  # test samples a client, all of one class: an accuracy of 0.1234 is 1,234 right answers
ROUNDS = 2


def evidence(
    levels: dict[str, list[float]],
    *,
    clients: int = 6,
    ids: list[str] | None = None,
    groups: dict[str, Ids] | None = None,
    losses: dict[str, float] | None = None,
) -> Evidence:
    """A study in which a method has an accuracy for each seed. `groups` are those it keeps; `losses` are taken from its client 0."""
    seeds = len(next(iter(levels.values())))
    settings = Settings(methods=tuple(levels), data="made-up", seeds=tuple(range(seeds)), plan=Plan(rounds=ROUNDS))
    actual = np.stack([np.full(clients, TESTS), np.zeros(clients, dtype=int)], axis=1)
    truth = np.arange(clients) % 2
    names = ids or [f"client {i}" for i in range(clients)]
    roster = pa.table(
        {"id": names, "train": np.arange(10, 10 + clients, dtype=np.int32), "group": truth.astype(np.int32)}
        | {f"actual_{c}": actual[:, c].astype(np.int32) for c in range(2)}
    )
    records = []
    for seed in range(seeds):
        for i, (label, own) in enumerate(levels.items()):
            level = np.full(clients, own[seed])
            level[0] -= (losses or {}).get(label, 0.0)
            kept = (groups or {}).get(label)
            records += [_record(seed * len(levels) + i, t, level, actual, kept) for t in range(ROUNDS + 1)]
    tables = {name: [table] for name, table in tables_of(records, 2).items()}
    return Evidence(settings, roster, memory=tables)


def subject(levels: dict[str, list[float]], **options: object) -> Subject:
    """The same, compared."""
    comparison = compare_evidence([evidence(levels, **options)])  # type: ignore[arg-type]
    return Subject(comparison.federations[0])


def folder(path: Path, study: Evidence) -> Path:
    """The evidence on disk, in one segment."""
    writer.create(path, study.settings, {"environment": {"python": "3.11", "packages": {"coterie": "0.1.0"}}}, study.roster)
    segment = path / "segments" / f"0000-000000-{ROUNDS:06d}"
    segment.mkdir()
    for name, tables in study.memory.items():
        pq.write_table(tables[0], segment / f"{name}.parquet")
    lanes = range(len(study.settings.methods) * len(study.settings.seeds))
    (segment / "lanes.json").write_text(json.dumps([{"lane": i, "round": ROUNDS, "status": "running", "reason": ""} for i in lanes]))
    return path


def _record(lane: int, round_: int, level: Array, actual: Array, groups: Ids | None) -> RoundRecord:
    n = len(level)
    hits = np.stack([np.round(level * TESTS).astype(np.int64), np.zeros(n, dtype=np.int64)], axis=1)
    judged = Evaluated(np.arange(n), hits, actual, actual, np.ones(n), np.full(n, np.nan))
    everyone = np.arange(n)
    mixing = Mixing.average(everyone, np.ones(n)) if groups is None else Mixing.within(everyone, groups, np.ones(n), int(groups.max()) + 1)
    cost = Cost(2 * n, 10 * n, 10 * n, float(n), 5 * n, 50 * n)
    return RoundRecord(lane, round_, cost, {}, {}, mixing if round_ else None, groups, evaluated=judged, seconds={"server": 0.01})
