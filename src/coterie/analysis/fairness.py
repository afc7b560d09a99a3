"""Clients one by one: who gains, who loses, who is served worst."""

from dataclasses import dataclass

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.estimates import Estimate, estimate
from coterie.analysis.records import Records
from coterie.analysis.roles import Roles
from coterie.analysis.score_names import Score
from coterie.analysis.scores import Scope
from coterie.core.arrays import Doubles


@dataclass(frozen=True)
class Fairness:
    """Clients one by one: accuracy over the last ten rounds with the model each is served."""

    accuracy: Doubles  # (N,) mean over seeds; nan for a client without test samples
    gain: Doubles  # (N,) over the baseline, mean over seeds
    gain_over_local: Doubles | None  # (N,) over training alone
    worse: float  # share of clients whose mean over seeds is below the baseline's
    worse_than_alone: float
    bottom_decile: Estimate  # mean accuracy of the tenth of clients served worst, after the last round
    worst: Estimate  # accuracy of the client served worst, after the last round


def fairness_of(records: Records, scope: Scope, roles: Roles, label: str, scores: dict[Score, Doubles]) -> Fairness:
    """One method's clients beside the same clients under the baseline and alone."""
    own = records.by_client(records.place(label), scope.tail)[scope.seeds]
    local = roles.first("local")
    gain, worse = _gains(records, scope, own, roles.baseline)
    alone, worse_alone = _gains(records, scope, own, local) if local is not None else (None, float("nan"))
    return Fairness(
        accuracy=metrics.mean(own, axis=0),
        gain=gain,
        gain_over_local=alone,
        worse=worse,
        worse_than_alone=worse_alone,
        bottom_decile=estimate(scores["bottom_decile"]),
        worst=estimate(scores["worst"]),
    )


def _gains(records: Records, scope: Scope, own: Doubles, other: str) -> tuple[Doubles, float]:
    """(N,) mean gain of each client over the seeds that both have, and the share of clients that lose; equal is not worse."""
    gain = metrics.mean(own - records.by_client(records.place(other), scope.tail)[scope.seeds], axis=0)
    defined = gain[np.isfinite(gain)]
    return gain, float(np.mean(defined < -1e-12)) if len(defined) else float("nan")
