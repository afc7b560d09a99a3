"""What a method costs and how soon it is good enough: stability, simulated time, bytes, passes and server seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie._util.formatting import format_count
from coterie.analysis import metrics
from coterie.analysis.draws import DrawRecords, Estimate, StudyDraws, average_by_unit, collect_draws, estimate
from coterie.analysis.records import Records
from coterie.core.arrays import Doubles
from coterie.statistics import compute_t_bands


@dataclass(frozen=True)
class Stability:
    """How much accuracy moves, and how soon it is high enough."""

    change: Estimate  # mean absolute change of accuracy from one evaluated round to the next
    rounds_to_target: Doubles  # (runs,) the first evaluated round at or above the target; nan: never
    median_rounds: float  # over the runs, one that never gets there counting as infinite


def compute_stability(study: StudyDraws, label: str, target: float) -> Stability:
    """Changes between rounds, and rounds to the target accuracy."""
    curves = study.accuracy(label)[study.repetitions.compared][:, study.each[0].scope.rows]  # (runs, R)
    first = find_rounds_to_target(curves, study.each[0].records.rounds[study.each[0].scope.rows], target)
    median = float(np.median(np.where(np.isfinite(first), first, np.inf)))
    return Stability(estimate(study.in_scope(study.scores[label]["change"])), first, median)


def find_rounds_to_target(curves: Doubles, rounds: Doubles | np.ndarray, target: float) -> Doubles:
    """(runs,) the first of the evaluated rounds in which each curve is at or above the target; nan for one that never is."""
    there = curves >= target  # nan, which is not, never is
    return np.where(there.any(axis=1), np.asarray(rounds)[there.argmax(axis=1)], np.nan)


MOMENTS = 200  # at which a curve over time is read
Band = tuple[Doubles, Doubles, Doubles]  # mean, low, high


def stack_clocks(study: StudyDraws, label: str) -> Doubles | None:
    """(runs, T + 1) simulated time after each round; None where clients have no speeds."""
    found = []
    for own in study.each:
        if own.records.clock is None:
            return None
        found.append(own.records.clock[own.records.place(label), own.scope.seeds, : own.scope.last + 1])
    return np.concatenate(found)


def find_time_to_target(curve: Doubles, clock: Doubles, target: float) -> float:
    """When a run is first at or above the target, from its accuracies (R,) and the time of each; nan: never."""
    there = np.flatnonzero(curve >= target)
    return float(clock[there[0]]) if len(there) else float("nan")


def sample_at_moments(curve: Doubles, clock: Doubles, moments: Doubles) -> Doubles:
    """The accuracy that a run has at each of these moments: that of its last evaluated round; nan before the first and after the end."""
    known = np.isfinite(curve) & np.isfinite(clock)
    curve, clock = curve[known], clock[known]
    place = np.searchsorted(clock, moments, side="right") - 1
    outside = (place < 0) | (moments > clock[-1]) if len(clock) else np.ones(len(moments), dtype=np.bool_)
    return np.where(outside, np.nan, curve[np.maximum(place, 0)] if len(clock) else np.nan)


def compute_time_curves(study: StudyDraws) -> tuple[Doubles, dict[str, Band]]:
    """Moments from the start to the last at which every run of any one method is still going on, and by method its accuracy then (nan after
    its own end), with a 95 % band over draws or seeds."""
    labels = study.each[0].records.settings.methods
    clocks = {label: clocks for label in labels if (clocks := stack_clocks(study, label)) is not None}
    ends = [float(np.nanmin(clock[:, -1])) for clock in clocks.values() if np.isfinite(clock[:, -1]).any()]
    moments = np.linspace(0.0, max(ends, default=0.0), MOMENTS)
    return moments, {
        label: compute_t_bands(average_by_unit(study.in_scope(_accuracy_at_moments(study, label, moments)))) for label in clocks
    }


def describe_times(draws: Sequence[Records]) -> list[str]:
    """When each method is as accurate as the worst of them ends; nothing where time is not simulated."""
    study = collect_draws(draws)
    first = study.each[0].records
    if first.clock is None:
        return []
    finals = [float(metrics.mean(study.scores[label]["final"].ravel())) for label in first.settings.methods]
    if not np.isfinite(finals).any():
        return []
    target = float(np.nanmin(finals))
    parts = [_describe_time_to_target(study, label, target) for label in first.settings.methods]
    unit = "Simulated time" if study.each[0].records.settings.plan.speeds is not None else "Time"
    return [f"{unit} to {100 * target:.1f} % accuracy (the lowest mean at the end), median of runs: {'; '.join(parts)}."]


def _describe_time_to_target(study: StudyDraws, label: str, target: float) -> str:
    times = np.array([find_time_to_target(curve, clock, target) for curve, clock in _list_runs(study, label)])
    there = times[np.isfinite(times)]
    reached = f"{len(there)} of {format_count(len(times), 'run')}"
    return f"{label} {np.median(there):.4g} ({reached})" if len(there) else f"{label} never ({reached})"


def _list_runs(study: StudyDraws, label: str) -> list[tuple[Doubles, Doubles]]:
    """Of each run that counts, the accuracy of its evaluated rounds and the time of each."""
    found = []
    for own in study.each:
        records, place = own.records, own.records.place(label)
        assert records.clock is not None
        rounds = records.rounds[: own.scope.rows.stop]
        found += [(records.accuracy[place, seed, : len(rounds)], records.clock[place, seed, rounds]) for seed in own.scope.seeds]
    return found


def _accuracy_at_moments(study: StudyDraws, label: str, moments: Doubles) -> Doubles:
    table = np.full((*study.repetitions.compared.shape, len(moments)), np.nan)
    runs = iter(_list_runs(study, label))
    for row, own in zip(table, study.each, strict=True):
        for seed in own.scope.seeds:
            row[seed] = sample_at_moments(*next(runs), moments)
    return table


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


def compute_spending(study: StudyDraws, label: str, first: Doubles) -> Spending:
    """What a method spent; `first` is the round in which each run reached the target."""

    def spent(*names: str) -> Doubles:
        """(runs, T + 1) running totals; a run that ended early spent nothing more."""
        return np.concatenate([_running_totals(own, label, names) for own in study.each])

    totals = {
        "bytes": spent("bytes_up", "bytes_down"),
        "passes": spent("passes"),
        "seconds": spent(SERVER),
    }
    clocks = stack_clocks(study, label)
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


def _running_totals(own: DrawRecords, label: str, names: tuple[str, ...]) -> Doubles:
    records, scope = own.records, own.scope
    tables = [records.server_seconds if name == SERVER else records.costs[name] for name in names]
    own_table = np.sum([table[records.place(label), scope.seeds, : scope.last + 1] for table in tables], axis=0)
    return np.asarray(np.nancumsum(own_table, axis=1))
