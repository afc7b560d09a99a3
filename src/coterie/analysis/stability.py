"""How steady a method is, and how soon it is good enough."""

from dataclasses import dataclass

import numpy as np

from coterie.analysis.draws import StudyDraws
from coterie.analysis.estimates import Estimate, estimate
from coterie.core.arrays import Doubles


@dataclass(frozen=True)
class Stability:
    """How much accuracy moves, and how soon it is high enough."""

    change: Estimate  # mean absolute change of accuracy from one evaluated round to the next
    rounds_to_target: Doubles  # (runs,) the first evaluated round at or above the target; nan: never
    median_rounds: float  # over the runs, one that never gets there counting as infinite


def stability_of(study: StudyDraws, label: str, target: float) -> Stability:
    """Changes between rounds, and rounds to the target accuracy."""
    curves = study.accuracy(label)[study.repetitions.compared][:, study.each[0].scope.rows]  # (runs, R)
    first = rounds_to(curves, study.each[0].records.rounds[study.each[0].scope.rows], target)
    median = float(np.median(np.where(np.isfinite(first), first, np.inf)))
    return Stability(estimate(study.in_scope(study.scores[label]["change"])), first, median)


def rounds_to(curves: Doubles, rounds: Doubles | np.ndarray, target: float) -> Doubles:
    """(runs,) the first of the evaluated rounds in which each curve is at or above the target; nan for one that never is."""
    there = curves >= target  # nan, which is not, never is
    return np.where(there.any(axis=1), np.asarray(rounds)[there.argmax(axis=1)], np.nan)
