"""How far the scores of a sample of clients may be from those of everybody."""

import numpy as np

from coterie.analysis.records import Records
from coterie.core.arrays import Doubles, Ints

WITHIN = 1.96  # standard errors of 95 %, by the normal distribution: samples are of hundreds of clients or more


def sampled_only(records: Records) -> str | None:
    """What to say of the scores of a study that looks at a sample of its clients, or keeps rows of one; None where it does neither."""
    wanted, everybody = records.settings.plan.evaluate_clients, len(records.ids)
    if wanted is None or wanted >= everybody:
        return _kept_only(records)
    told = f"Scores are of {wanted:,} of {everybody:,} clients, drawn by their ids"
    reach = WITHIN * _largest_error(records, everybody)
    if not np.isfinite(reach):
        return f"{told}."
    return f"{told}: accuracy over everybody lies within {100 * reach:.2f} points of what is told (95 %, each method by itself)."


def _kept_only(records: Records) -> str | None:
    """The same where everybody is looked at and rows are kept of some."""
    kept, everybody = records.settings.plan.keep_clients, len(records.ids)
    if kept is None or kept >= everybody:
        return None
    told = f"Rows are kept of {kept:,} of {everybody:,} clients, drawn by their ids"
    if not records.everybody:
        return f"{told}: {records.measure.noun} is of these alone."
    return (
        f"{told}: {records.measure.noun}, its mean, quantiles and worst over clients, and the loss are of everybody; "
        "what is said of single clients, classes and groups is of these."
    )


def sample_error(right: Doubles | Ints, tested: Ints, everybody: int) -> float:
    """The standard error of sum(right) / sum(tested) as the ratio of everybody, whole clients being what was drawn without replacement."""
    n, total = len(tested), float(tested.sum())
    if n < 2 or not total:
        return float("nan")
    left = right - right.sum() / total * tested
    return float(np.sqrt(n / (n - 1) * np.sum(left**2) * max(1 - n / everybody, 0.0)) / total)


def _largest_error(records: Records, everybody: int) -> float:
    """Over all methods and seeds, after the last round that each has reached."""
    found = [np.nan]
    for lane in records.right.reshape(-1, *records.right.shape[2:]):
        reached = np.flatnonzero((lane >= 0).any(axis=1))
        if len(reached):
            known = lane[reached[-1]] >= 0
            found.append(sample_error(lane[reached[-1]][known].astype(np.float64), records.tested[reached[-1]][known], everybody))
    return float(np.nanmax(found)) if np.isfinite(found).any() else float("nan")
