"""Right answers of two methods on the same test samples: what the interval over test clients and samples is made of."""

import numpy as np

from coterie.analysis.records import Records
from coterie.analysis.score_names import Score
from coterie.analysis.scores import Scope
from coterie.core.arrays import Array, Bools, Doubles
from coterie.statistics import Hits

COUNTED: tuple[Score, ...] = ("final", "last10", "mean")  # scores that are means of rounds' right answers


def rounds_of(scope: Scope, score: Score) -> slice:
    """The evaluated rounds that a score is a mean of."""
    return {"final": slice(scope.rows.stop - 1, scope.rows.stop), "last10": scope.tail}.get(score, scope.rows)


def mean_right(records: Records, rows: slice, method: int) -> Doubles:
    """(S, N) right answers of each client, averaged over some of the evaluated rounds; nan where any of them is missing."""
    right = records.right[method, :, rows].astype(np.float64)
    return np.asarray(np.where((right >= 0).all(axis=1) | (records.tested[rows] == 0).all(axis=0), right.clip(0).mean(axis=1), np.nan))


def hits_of(records: Records, scope: Scope, score: Score, one: int, two: int, runs: Bools) -> Hits | str:
    """The right answers of two methods in these runs (S,) of one draw; a sentence where samples cannot be spoken of."""
    if score not in COUNTED:
        return "test clients: not known of this score, which is no mean of right answers"
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
    return Hits(ours[whole][..., None], theirs[whole][..., None], samples[:, None], differing)


def differing_of(records: Records, one: int, two: int) -> Doubles | None:
    """(S, N) the test samples that exactly one of two methods answered rightly after the last round; -1 where answers were not kept."""
    if records.answers is None or records.answered is None:
        return None
    bits, kept = records.answers, records.answered
    unlike: Array = np.bitwise_count(bits[one] ^ bits[two]).sum(axis=-1).astype(np.float64)
    return np.where(kept[one] & kept[two], unlike, -1.0)
