"""What a method costs: in all, and until it is good enough."""

from dataclasses import dataclass

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.draws import DrawRecords, StudyDraws
from coterie.analysis.times import clocks_of
from coterie.core.arrays import Doubles

SERVER = "server"  # seconds: not among the costs, since they are the machine's


@dataclass(frozen=True)
class Spending:
    """Of a whole run (mean over runs), and up to the round in which the target accuracy is reached (median over the runs that do)."""

    bytes_: float
    passes: float
    steps: float
    server_seconds: float
    reached: int  # runs that reach the target
    bytes_to_target: float
    passes_to_target: float
    server_seconds_to_target: float
    time: float = float("nan")  # simulated, where clients have speeds
    time_to_target: float = float("nan")


def spending_of(study: StudyDraws, label: str, first: Doubles) -> Spending:
    """What a method spent; `first` is the round in which each run reached the target."""

    def spent(*names: str) -> Doubles:
        """(runs, T + 1) running totals; a run that ended early spent nothing more."""
        return np.concatenate([_totals(own, label, names) for own in study.each])

    totals = {
        "bytes": spent("bytes_up", "bytes_down"),
        "passes": spent("passes"),
        "seconds": spent(SERVER),
    }
    clocks = clocks_of(study, label)
    if clocks is not None:
        totals["time"] = clocks
    there = np.flatnonzero(np.isfinite(first))
    at = first[there].astype(np.int64)
    until = {name: float(np.median(table[there, at])) if len(there) else float("nan") for name, table in totals.items()}
    return Spending(
        bytes_=float(totals["bytes"][:, -1].mean()),
        passes=float(totals["passes"][:, -1].mean()),
        steps=float(spent("steps")[:, -1].mean()),
        server_seconds=float(totals["seconds"][:, -1].mean()),
        reached=len(there),
        bytes_to_target=until["bytes"],
        passes_to_target=until["passes"],
        server_seconds_to_target=until["seconds"],
        time=float("nan") if clocks is None else float(metrics.mean(clocks[:, -1])),
        time_to_target=until.get("time", float("nan")),
    )


def _totals(own: DrawRecords, label: str, names: tuple[str, ...]) -> Doubles:
    records, scope = own.records, own.scope
    tables = [records.server_seconds if name == SERVER else records.costs[name] for name in names]
    own_table = np.sum([table[records.place(label), scope.seeds, : scope.last + 1] for table in tables], axis=0)
    return np.asarray(np.nancumsum(own_table, axis=1))
