"""Simulated time: how late it is after each round, how accurate a method is by then, and when it is accurate enough."""

from collections.abc import Sequence

import numpy as np

from coterie.analysis import metrics
from coterie.analysis.draws import StudyDraws, study_draws
from coterie.analysis.records import Records
from coterie.analysis.repetitions import by_unit
from coterie.core.arrays import Doubles
from coterie.core.counted import counted
from coterie.statistics import t_bands

MOMENTS = 200  # at which a curve over time is read
Band = tuple[Doubles, Doubles, Doubles]  # mean, low, high


def clocks_of(study: StudyDraws, label: str) -> Doubles | None:
    """(runs, T + 1) simulated time after each round; None where clients have no speeds."""
    found = []
    for own in study.each:
        if own.records.clock is None:
            return None
        found.append(own.records.clock[own.records.place(label), own.scope.seeds, : own.scope.last + 1])
    return np.concatenate(found)


def time_to(curve: Doubles, clock: Doubles, target: float) -> float:
    """When a run is first at or above the target, from its accuracies (R,) and the time of each; nan: never."""
    there = np.flatnonzero(curve >= target)
    return float(clock[there[0]]) if len(there) else float("nan")


def at_moments(curve: Doubles, clock: Doubles, moments: Doubles) -> Doubles:
    """The accuracy that a run has at each of these moments: that of its last evaluated round; nan before the first and after the end."""
    known = np.isfinite(curve) & np.isfinite(clock)
    curve, clock = curve[known], clock[known]
    place = np.searchsorted(clock, moments, side="right") - 1
    outside = (place < 0) | (moments > clock[-1]) if len(clock) else np.ones(len(moments), dtype=np.bool_)
    return np.where(outside, np.nan, curve[np.maximum(place, 0)] if len(clock) else np.nan)


def curves_in_time(study: StudyDraws) -> tuple[Doubles, dict[str, Band]]:
    """Moments from the start to the last at which every run of any one method is still going on, and by method its accuracy then (nan after
    its own end), with a 95 % band over draws or seeds."""
    labels = study.each[0].records.settings.methods
    clocks = {label: clocks for label in labels if (clocks := clocks_of(study, label)) is not None}
    ends = [float(np.nanmin(clock[:, -1])) for clock in clocks.values() if np.isfinite(clock[:, -1]).any()]
    moments = np.linspace(0.0, max(ends, default=0.0), MOMENTS)
    return moments, {label: t_bands(by_unit(study.in_scope(_at(study, label, moments)))) for label in clocks}


def times_told(draws: Sequence[Records]) -> list[str]:
    """When each method is as accurate as the worst of them ends; nothing where time is not simulated."""
    study = study_draws(draws)
    first = study.each[0].records
    if first.clock is None:
        return []
    finals = [float(metrics.mean(study.scores[label]["final"].ravel())) for label in first.settings.methods]
    if not np.isfinite(finals).any():
        return []
    target = float(np.nanmin(finals))
    parts = [_told(study, label, target) for label in first.settings.methods]
    unit = "Simulated time" if study.each[0].records.settings.plan.speeds is not None else "Time"
    return [f"{unit} to {100 * target:.1f} % accuracy (the lowest mean at the end), median of runs: {'; '.join(parts)}."]


def _told(study: StudyDraws, label: str, target: float) -> str:
    times = np.array([time_to(curve, clock, target) for curve, clock in _runs(study, label)])
    there = times[np.isfinite(times)]
    reached = f"{len(there)} of {counted(len(times), 'run')}"
    return f"{label} {np.median(there):.4g} ({reached})" if len(there) else f"{label} never ({reached})"


def _runs(study: StudyDraws, label: str) -> list[tuple[Doubles, Doubles]]:
    """Of each run that counts, the accuracy of its evaluated rounds and the time of each."""
    found = []
    for own in study.each:
        records, place = own.records, own.records.place(label)
        assert records.clock is not None
        rounds = records.rounds[: own.scope.rows.stop]
        found += [(records.accuracy[place, seed, : len(rounds)], records.clock[place, seed, rounds]) for seed in own.scope.seeds]
    return found


def _at(study: StudyDraws, label: str, moments: Doubles) -> Doubles:
    """(B, S, moments) the accuracy of each run."""
    table = np.full((*study.repetitions.compared.shape, len(moments)), np.nan)
    runs = iter(_runs(study, label))
    for row, own in zip(table, study.each, strict=True):
        for seed in own.scope.seeds:
            row[seed] = at_moments(*next(runs), moments)
    return table
