"""What a method does beside its score: how steady it is, whom it serves badly, what it costs, and where its gain comes from."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.records import Records
from coterie.analysis.roles import Roles
from coterie.analysis.scores import Estimate, Scope, defined_mean, estimate
from coterie.core.arrays import Doubles
from coterie.statistics import Paired, paired


@dataclass(frozen=True)
class Stability:
    """How much accuracy moves, and how soon it is high enough."""

    change: Estimate  # mean absolute change of accuracy from one evaluated round to the next
    rounds_to_target: Doubles  # (S',) the first evaluated round at or above the target; nan: never
    median_rounds: float  # over the seeds, one that never gets there counting as infinite


@dataclass(frozen=True)
class Fairness:
    """Clients one by one: accuracy over the last ten rounds with the model each is served."""

    accuracy: Doubles  # (N,) mean over seeds; nan for a client without test samples
    gain: Doubles  # (N,) over the baseline, mean over seeds
    gain_over_local: Doubles | None  # (N,) over training alone
    worse: float  # share of clients whose mean over seeds is below the baseline's
    worse_than_alone: float
    bottom_decile: Estimate  # mean accuracy of the worst tenth of clients
    worst: Estimate  # accuracy of the worst client


@dataclass(frozen=True)
class Cost:
    """Of a whole run (mean over seeds), and up to the round in which the target accuracy is reached (median over the seeds that do)."""

    bytes_: float
    passes: float
    steps: float
    server_seconds: float
    reached: int  # seeds that reach the target
    bytes_to_target: float
    passes_to_target: float
    server_seconds_to_target: float


@dataclass(frozen=True)
class Step:
    """One part of a gain: what changes from one method to the next, and what that brings."""

    name: str
    before: str
    after: str
    gain: Paired


@dataclass(frozen=True)
class Decomposition:
    """The gain over FedAvg in steps from control to control, over the seeds that all of them have; the steps' means sum to the gain's."""

    total: Paired
    steps: tuple[Step, ...]

    def step(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)


def stability_of(records: Records, scope: Scope, method: int, target: float) -> Stability:
    """Changes between rounds, and rounds to the target accuracy."""
    curve = records.accuracy[method, scope.seeds, scope.rows]
    there = curve >= target  # nan, which is not, never is
    first = np.where(there.any(axis=1), records.rounds[scope.rows][there.argmax(axis=1)], np.nan)
    change = defined_mean(np.abs(np.diff(curve, axis=1)), axis=1)
    change[~np.isfinite(curve[:, -1])] = np.nan
    return Stability(estimate(change), first, float(np.median(np.where(np.isfinite(first), first, np.inf))))


def fairness_of(records: Records, scope: Scope, roles: Roles, label: str) -> Fairness:
    """One method's clients beside the same clients under the baseline and alone."""
    own = records.by_client(records.place(label), scope.tail)[scope.seeds]
    local = roles.first("local")
    gain, worse = _gains(records, scope, own, roles.baseline)
    alone, worse_alone = _gains(records, scope, own, local) if local is not None else (None, float("nan"))
    return Fairness(
        accuracy=defined_mean(own, axis=0),
        gain=gain,
        gain_over_local=alone,
        worse=worse,
        worse_than_alone=worse_alone,
        bottom_decile=estimate(metrics.bottom_decile(own)),
        worst=estimate(metrics.worst(own)),
    )


def _gains(records: Records, scope: Scope, own: Doubles, other: str) -> tuple[Doubles, float]:
    """(N,) mean gain of each client over the seeds that both have, and the share of clients that lose; equal is not worse."""
    gain = defined_mean(own - records.by_client(records.place(other), scope.tail)[scope.seeds], axis=0)
    defined = gain[np.isfinite(gain)]
    return gain, float(np.mean(defined < -1e-12)) if len(defined) else float("nan")


def cost_of_run(records: Records, scope: Scope, method: int, first: Doubles) -> Cost:
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
    return Cost(
        bytes_=float(totals["bytes"][:, -1].mean()),
        passes=float(totals["passes"][:, -1].mean()),
        steps=float(spent(records.costs["steps"])[:, -1].mean()),
        server_seconds=float(totals["seconds"][:, -1].mean()),
        reached=len(there),
        bytes_to_target=until["bytes"],
        passes_to_target=until["passes"],
        server_seconds_to_target=until["seconds"],
    )


def decomposition_of(scores: dict[str, Doubles], roles: Roles, label: str) -> Decomposition | None:
    """Gain over FedAvg = change of weights + having groups + similarity; None where the study lacks the controls.

    The way leads from FedAvg to uniform FedAvg (only for a method that weighs clients or clusters alike: for one that weighs by samples
    nothing changes there), on to random groups of the same sizes, and on to similar ones.
    """
    random = roles.controls.get(label, {}).get("random")
    uniform = roles.first("uniform")
    alike = label in roles.uniform_weights
    if random is None or (alike and uniform is None):
        return None
    way: list[tuple[str, str]] = [("", roles.baseline)]
    if alike and uniform is not None:
        way.append(("weights", uniform))
    way += [("groups", random), ("similarity", label)]
    shared = np.isfinite(np.stack([scores[name] for _, name in way])).all(axis=0)
    steps = [Step(name, before, after, paired((scores[after] - scores[before])[shared])) for (_, before), (name, after) in pairwise(way)]
    return Decomposition(paired((scores[label] - scores[roles.baseline])[shared]), tuple(steps))
