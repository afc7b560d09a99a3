"""Right answers, or other credits, of two methods on the same test samples: what the interval over test clients and samples is made of."""

import numpy as np

from coterie.analysis.records import Records, evaluated
from coterie.analysis.score_names import Score
from coterie.analysis.scores import Scope
from coterie.core.arrays import Array, Bools, Doubles
from coterie.statistics import Hits
from coterie.statistics.over_clients import MANY_CLIENTS

COUNTED: tuple[Score, ...] = ("final", "last10", "mean")  # scores that are means of rounds' right answers


def rounds_of(scope: Scope, score: Score) -> slice:
    """The evaluated rounds that a score is a mean of."""
    return {"final": slice(scope.rows.stop - 1, scope.rows.stop), "last10": scope.tail}.get(score, scope.rows)


def mean_right(records: Records, rows: slice, method: int) -> Doubles:
    """(S, N) right answers of each client, averaged over some of the evaluated rounds; nan where any of them is missing."""
    right = records.right[method, :, rows].astype(np.float64)
    known = evaluated(records.right[method, :, rows])
    whole = known.all(axis=1) | (records.tested[rows] == 0).all(axis=0)
    return np.asarray(np.where(whole, np.where(known, right, 0.0).mean(axis=1), np.nan))


def hits_of(records: Records, scope: Scope, score: Score, one: int, two: int, runs: Bools) -> Hits | str:
    """The right answers of two methods in these runs (S,) of one draw; a sentence where samples cannot be spoken of."""
    if score not in COUNTED:
        return "test clients: not known of this score, which is no mean of rounds"
    if records.hostile is not None:
        return "test clients: every seed has other hostile clients, whom no score counts"
    rows = rounds_of(scope, score)
    ours, theirs = (mean_right(records, rows, method)[runs] for method in (one, two))
    whole = np.isfinite(ours).all(axis=1) & np.isfinite(theirs).all(axis=1)
    samples = records.tested[rows].mean(axis=0)
    differing = differing_of(records, one, two)
    if differing is not None:
        differing = differing[runs][whole]
        differing = differing if (differing >= 0).all() else None
    measure = records.measure
    if not measure.whole and differing is None and (samples > 0).sum() < MANY_CLIENTS:
        why = "is no mean over samples" if measure.alike else "was not kept of single samples"
        return f"test samples: {measure.noun} {why}, and over other clients there are too few of them"
    return Hits(ours[whole][..., None], theirs[whole][..., None], samples[:, None], differing, alike=measure.alike)


def differing_of(records: Records, one: int, two: int) -> Doubles | None:
    """(S, N) how far two methods are apart on single test samples after the last round: the squares of differences of what each is worth,
    summed up. Of right and wrong answers that is the number of samples that exactly one got right. -1 where answers were not kept; None
    where a sample is worth nothing by itself.
    """
    if records.answers is None or records.answered is None or records.measure.alike:
        return None
    kept = records.answered
    if records.measure.name == "accuracy":
        unlike: Array = np.bitwise_count(records.answers[one] ^ records.answers[two]).sum(axis=-1).astype(np.float64)
    else:
        unlike = ((worth_of(records, one) - worth_of(records, two)) ** 2).sum(axis=-1)
    return np.where(kept[one] & kept[two], unlike, -1.0)


def worth_of(records: Records, method: int) -> Doubles:
    """(S, N, samples) what each test sample adds to its client's credit, less what it adds whatever the answer: from its error, or from
    the number of its labels that are right."""
    assert records.answers is not None
    assert records.unit is not None
    told = np.ascontiguousarray(records.answers[method]).view(np.float32).astype(np.float64)
    unit = records.unit[:, None, None]
    match records.measure.name:
        case "r2":
            return np.asarray(-(told**2) / unit)
        case "mae":
            return np.asarray(-np.abs(told) / unit)
        case "exact":
            return np.asarray(told == unit, dtype=np.float64)
    return np.asarray(told / unit)
