"""What a method costs: in all, and until it is good enough."""

from dataclasses import dataclass

import numpy as np

from coterie.analysis.records import Records
from coterie.analysis.scores import Scope
from coterie.core.arrays import Doubles


@dataclass(frozen=True)
class Spending:
    """Of a whole run (mean over seeds), and up to the round in which the target accuracy is reached (median over the seeds that do)."""

    bytes_: float
    passes: float
    steps: float
    server_seconds: float
    reached: int  # seeds that reach the target
    bytes_to_target: float
    passes_to_target: float
    server_seconds_to_target: float


def spending_of(records: Records, scope: Scope, method: int, first: Doubles) -> Spending:
    """What a method spent; `first` is the round in which each seed reached the target."""

    def spent(table: Doubles) -> Doubles:
        """(S', T + 1) running totals; a run that ended early spent nothing more."""
        return np.nancumsum(table[method, scope.seeds, : scope.last + 1], axis=1)

    totals = {
        "bytes": spent(records.costs["bytes_up"] + records.costs["bytes_down"]),
        "passes": spent(records.costs["passes"]),
        "seconds": spent(records.server_seconds),
    }
    there = np.flatnonzero(np.isfinite(first))
    at = first[there].astype(np.int64)
    until = {name: float(np.median(table[there, at])) if len(there) else float("nan") for name, table in totals.items()}
    return Spending(
        bytes_=float(totals["bytes"][:, -1].mean()),
        passes=float(totals["passes"][:, -1].mean()),
        steps=float(spent(records.costs["steps"])[:, -1].mean()),
        server_seconds=float(totals["seconds"][:, -1].mean()),
        reached=len(there),
        bytes_to_target=until["bytes"],
        passes_to_target=until["passes"],
        server_seconds_to_target=until["seconds"],
    )
