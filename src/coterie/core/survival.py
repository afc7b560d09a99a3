"""Survival times on a grid of intervals: positions, exits, Kaplan-Meier curves, censoring weights, and the scores of predicted curves.

A model has an output for each interval: the logit of its hazard, less that of the Kaplan-Meier curve of all training samples. The hazard is
the probability of the event in an interval, given that there was none before: Gensheimer and Narasimhan (2019), "A scalable discrete-time
survival model for neural networks", PeerJ 7:e6257; Kvamme and Borgan (2021), "Continuous and discrete-time survival prediction with neural
networks", Lifetime Data Analysis 27, whose rounding of times is used here: an event counts in the interval in which it happens, a censored
time for the intervals that it completes and for none after.

A time is kept as its position on the grid: j + the share of interval j that has passed, so that its interval is known without the grid. A
time beyond the grid has a position above the number of intervals and counts as survived. Samples are rows (position, event).
"""

from collections.abc import Iterator

import numpy as np

from coterie.core.arrays import Array, Bools, Doubles, Floats, Ints

LEAST_KNOWN = 0.05  # a probability of not being censored counts as no less: no sample weighs more than 20
PAIRS = 1 << 22  # pairs of samples that are compared at a time
# what one sample's Brier score, and the events expected of it, count at most where a site's answers are rounded
BRIER_LIMIT, EVENTS_LIMIT = 1.0, 2.0


def place_times(times: Array, grid: Array) -> Floats:
    """(n,) positions of times on a grid (K + 1,) of edges that starts with 0; beyond it the last interval's length is the measure."""
    edges, found = np.asarray(grid, dtype=np.float64), np.asarray(times, dtype=np.float64)
    beyond = len(edges) - 1 + (found - edges[-1]) / (edges[-1] - edges[-2])
    return np.where(found > edges[-1], beyond, np.interp(found, edges, np.arange(len(edges)))).astype(np.float32)


def restore_times(positions: Array, grid: Array) -> Doubles:
    """(n,) the times at positions."""
    edges, found = np.asarray(grid, dtype=np.float64), np.asarray(positions, dtype=np.float64)
    last = len(edges) - 1
    return np.where(found > last, edges[-1] + (found - last) * (edges[-1] - edges[-2]), np.interp(found, np.arange(len(edges)), edges))


def find_exits(y: Array, intervals: int) -> tuple[Ints, Bools]:
    """(n,) twice: the intervals that each sample completes without an event, and whether the next one has its event."""
    position, event = np.asarray(y[:, 0], dtype=np.float64), np.asarray(y[:, 1]) > 0
    died = event & (position <= intervals)
    return np.where(died, np.ceil(position) - 1, np.minimum(np.floor(position), intervals)).astype(np.int64), died


def count_exits(y: Array, intervals: int) -> Ints:
    """(2, K + 1) samples by the intervals that they complete: those that have the event in the next one, and those that are censored."""
    completed, died = find_exits(y, intervals)
    return np.stack([np.bincount(completed[kept], minlength=intervals + 1) for kept in (died, ~died)])


def compute_kaplan_meier(exits: Array) -> Doubles:
    """(..., K + 1) the share without an event at each edge, from exits (..., 2, K + 1): Kaplan and Meier (1958), on the rounded times."""
    risk, events = count_at_risk(exits), np.asarray(exits, dtype=np.float64)[..., 0, :-1]
    hazards = np.divide(events, risk, out=np.zeros(risk.shape), where=risk > 0)
    return np.concatenate([np.ones((*hazards.shape[:-1], 1)), np.cumprod(1 - hazards, axis=-1)], axis=-1)


def compute_censoring(exits: Array) -> Doubles:
    """(..., K + 1) the probability that a sample is not censored before each edge: the same estimate, with the roles exchanged."""
    whole = np.asarray(exits, dtype=np.float64)
    left = np.cumsum(whole.sum(axis=-2)[..., ::-1], axis=-1)[..., ::-1][..., :-1]  # who comes into each interval
    lost = np.divide(whole[..., 1, :-1], left, out=np.zeros(left.shape), where=left > 0)
    return np.concatenate([np.ones((*lost.shape[:-1], 1)), np.cumprod(1 - lost, axis=-1)], axis=-1)


def count_at_risk(exits: Array) -> Doubles:
    """(..., K) who has the event in each interval or completes it."""
    whole = np.asarray(exits, dtype=np.float64)
    later = np.cumsum(whole[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(later[..., 0, :-1] + later[..., 1, 1:])


def compute_time_weights(grid: Array) -> Doubles:
    """(K,) what the end of each interval counts in a mean over time from 0 to the end of the grid, by the trapezoid rule."""
    edges = np.asarray(grid, dtype=np.float64)
    return np.asarray((np.append(edges[2:], edges[-1]) - edges[:-1]) / 2 / edges[-1])


def compute_brier_scores(survival: Doubles, y: Array, grid: Array, censoring: Array) -> Doubles:
    """(n,) the integrated Brier score of predicted curves (n, K), a part for each sample: Graf et al. (1999), Statistics in Medicine 18.

    At the end of an interval a sample counts by the square of its error if it is known whether it had the event, divided by the probability
    (K,) that this is known: of an event by then that at the end of its interval, else that at the edge itself.
    """
    intervals = survival.shape[1]
    completed, died = find_exits(y, intervals)
    known, edge = np.maximum(np.asarray(censoring, dtype=np.float64), LEAST_KNOWN), np.arange(intervals)
    gone = died[:, None] & (completed[:, None] <= edge)
    alive = completed[:, None] > edge
    at_event = known[np.minimum(completed, intervals - 1)][:, None]
    errors = np.where(gone, survival**2 / at_event, 0.0) + np.where(alive, (1 - survival) ** 2 / known, 0.0)
    return np.asarray(errors @ compute_time_weights(grid))


def compute_likelihoods(survival: Doubles, y: Array) -> Doubles:
    """(n,) the probability of what was seen of each sample, from predicted curves (n, K)."""
    completed, died = find_exits(y, survival.shape[1])
    curve = np.concatenate([np.ones((len(survival), 1)), survival], axis=1)
    rows = np.arange(len(curve))
    return np.asarray(
        np.where(died, curve[rows, completed] - curve[rows, np.minimum(completed + 1, survival.shape[1])], curve[rows, completed])
    )


def count_expected_events(survival: Doubles, y: Array) -> Doubles:
    """(n,) the predicted hazards of the intervals in which each sample was at risk, together: where a model is calibrated, their sum over
    samples is that of events."""
    return np.asarray(_compute_hazards_at_risk(survival, y).sum(axis=1))


def count_events_by_interval(survival: Doubles, y: Array) -> Doubles:
    """(2, K) events in each interval, and those that predicted curves (n, K) expect there of the samples at risk."""
    return np.stack([count_exits(y, survival.shape[1])[0, :-1], _compute_hazards_at_risk(survival, y).sum(axis=0)])


def _compute_hazards_at_risk(survival: Doubles, y: Array) -> Doubles:
    """(n, K) predicted hazards; 0 in intervals in which a sample was not at risk."""
    completed, died = find_exits(y, survival.shape[1])
    before = np.concatenate([np.ones((len(survival), 1)), survival[:, :-1]], axis=1)
    hazards = 1 - np.divide(survival, before, out=np.ones_like(before), where=before > 0)
    return np.asarray(hazards * (np.arange(survival.shape[1]) < (completed + died)[:, None]))


def compute_mean_times(survival: Doubles, grid: Array) -> Doubles:
    """(n,) the predicted mean time within the grid, as a share of it: samples are ranked by it."""
    return np.asarray(survival @ compute_time_weights(grid))


def count_concordant_pairs(predicted: Doubles, y: Array) -> tuple[float, int]:
    """The pairs in the right order, of two equal predictions a half, and all that can be compared: Harrell et al. (1982), JAMA 247.

    Two samples can be compared if the one with the shorter time had the event, and of equal times if one had it and the other did not.
    """
    time, event = np.asarray(y[:, 0]), np.asarray(y[:, 1]) > 0
    right, pairs = 0.0, 0
    for rows in _iterate_rows(np.flatnonzero(event), len(y)):
        later = (time > time[rows, None]) | ((time == time[rows, None]) & ~event)
        above, equal = predicted > predicted[rows, None], predicted == predicted[rows, None]
        right += float((later & above).sum() + (later & equal).sum() / 2)
        pairs += int(later.sum())
    return right, pairs


def _iterate_rows(rows: Ints, others: int) -> Iterator[Ints]:
    together = max(1, PAIRS // max(others, 1))
    yield from (rows[at : at + together] for at in range(0, len(rows), together))
