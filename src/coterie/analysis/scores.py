"""Scores of runs, and which runs count: seeds that all methods have run to the same round."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.analysis.records import Records
from coterie.core.arrays import Array, Bools, Doubles, Ints
from coterie.core.errors import UserError
from coterie.statistics import interval

Score = Literal["final", "last10", "mean", "validated", "max"]
SCORES: tuple[Score, ...] = ("final", "last10", "mean", "validated")  # max over rounds is chosen on test data: only when asked for
LAST = 10  # rounds in the "last 10" score


@dataclass(frozen=True)
class Scope:
    """The part of the records that is compared: complete seeds, and rounds up to the last that they share."""

    seeds: Ints  # (S',) places of the seeds that count
    rows: slice  # the evaluated rounds from 1 to the last
    tail: slice  # the last ten of them
    last: int  # the last round


@dataclass(frozen=True)
class Estimate:
    """A number for each seed, their mean and its 95 % interval."""

    values: Doubles  # (S',) nan for a run that did not reach the end
    mean: float
    sd: float
    low: float
    high: float


def scope_of(records: Records) -> Scope:
    """The seeds that reached the last round that any reached: a wave advances together, so what is missing then has stopped early."""
    measured: Bools = np.asarray(np.isfinite(records.accuracy).any(axis=0))  # (S, R)
    if not measured[:, records.rounds >= 1].any():
        raise UserError(f"The study of {records.settings.data!r} holds no evaluated round yet: let it run to its first checkpoint.")
    reached = np.where(measured.any(axis=1), measured.shape[1] - 1 - measured[:, ::-1].argmax(axis=1), -1)
    end = int(reached.max())
    first = int(np.argmax(records.rounds >= 1))
    return Scope(
        np.flatnonzero(reached == end), slice(first, end + 1), slice(max(first, end + 1 - LAST), end + 1), int(records.rounds[end])
    )


def scores_of(records: Records, scope: Scope, method: int) -> dict[Score, Doubles]:
    """Each score of one method, (S',) over the seeds; nan where the run did not reach the last round."""
    accuracy = records.accuracy[method, scope.seeds]
    curve, validation = accuracy[:, scope.rows], records.validation[method, scope.seeds][:, scope.rows]
    ended = np.isfinite(curve[:, -1])
    chosen = np.argmax(np.where(np.isfinite(validation), validation, -np.inf), axis=1)
    validated = np.where(np.isfinite(validation).any(axis=1), curve[np.arange(len(curve)), chosen], np.nan)
    found: dict[Score, Doubles] = {
        "final": curve[:, -1],
        "last10": defined_mean(accuracy[:, scope.tail], axis=1),
        "mean": defined_mean(curve, axis=1),
        "validated": validated,
        "max": np.where(np.isfinite(curve), curve, -np.inf).max(axis=1),
    }
    return {name: np.where(ended, values, np.nan) for name, values in found.items()}


def estimate(values: Array) -> Estimate:
    """The mean over seeds of what is defined, with its interval."""
    values = np.asarray(values, dtype=np.float64)
    defined = values[np.isfinite(values)]
    mean = float(defined.mean()) if len(defined) else float("nan")
    sd = float(defined.std(ddof=1)) if len(defined) >= 2 else float("nan")
    return Estimate(values, mean, sd, *interval(defined))


def defined_mean(values: Array, axis: int) -> Doubles:
    """The mean of what is not nan; nan where nothing is. (NumPy's own warns about the latter.)"""
    known = np.isfinite(values)
    count = known.sum(axis)
    total = np.where(known, values, 0.0).sum(axis)
    return np.asarray(np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0))
