"""Studies that nobody ran: evidence with the accuracies that a test asks for, so that every verdict can be had in milliseconds."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from coterie.analysis.comparison import compare_evidence
from coterie.core.arrays import Array, Ids
from coterie.core.asks import Evaluated
from coterie.core.method import Notes
from coterie.core.mixing import Mixing
from coterie.core.plan import Plan
from coterie.evidence import Evidence
from coterie.evidence.folder import MemorySource
from coterie.evidence.records import Cost, LaneEnd, LaneKey, LaneProgress, RoundRecord
from coterie.evidence.settings import Settings
from coterie.evidence.tables import TABLES, make_tables
from coterie.evidence.writer import Writer
from coterie.report.federation_view import FederationView

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
    records: list[RoundRecord] = []
    for seed in range(seeds):
        for label, own in levels.items():
            level = np.full(clients, own[seed])
            level[0] -= (losses or {}).get(label, 0.0)
            kept = (groups or {}).get(label)
            records += [_record(LaneKey(0, label, seed), t, level, actual, kept) for t in range(ROUNDS + 1)]
    tables = {name: [table] for name, table in make_tables(records, 2).items()}
    return Evidence(settings, {0: roster}, MemorySource(tables, {record.key: LaneEnd(ROUNDS) for record in records}))


def view(levels: dict[str, list[float]], **options: object) -> FederationView:
    """The same, compared."""
    comparison = compare_evidence([evidence(levels, **options)])  # type: ignore[arg-type]
    return FederationView(comparison.federations[0])


def folder(path: Path, study: Evidence) -> Path:
    """The evidence on disk, in one segment."""
    extras = {"environment": {"python": "3.11", "packages": {"coterie": "0.1.0"}}}
    writer = Writer.create(path, study.settings, extras, study.rosters)
    writer.segment([LaneProgress(key, 0, end, None) for key, end in study.ends().items()], {name: study.table(name) for name in TABLES})
    return path


def _record(key: LaneKey, round_: int, level: Array, actual: Array, groups: Ids | None) -> RoundRecord:
    n = len(level)
    hits = np.stack([np.round(level * TESTS).astype(np.int64), np.zeros(n, dtype=np.int64)], axis=1)
    judged = Evaluated(np.arange(n), hits, actual, actual, np.ones(n), np.full(n, np.nan))
    everyone = np.arange(n)
    mixing = Mixing.average(everyone, np.ones(n)) if groups is None else Mixing.within(everyone, groups, np.ones(n), int(groups.max()) + 1)
    cost = Cost(2 * n, 10 * n, 10 * n, float(n), 5 * n, 50 * n)
    notes = Notes(mixing=mixing if round_ else None)
    return RoundRecord(key, round_, cost, notes, groups=groups, evaluated=judged, seconds={"server": 0.01})
