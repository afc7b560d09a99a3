"""Whom a guard holds out: clients whose updates stand clearly apart from all others, by direction.

Two numbers a client, both from its update (what it sent minus the model it was sent): the cosine with the coordinate-wise median of the
updates, and the cosine with its m-th nearest neighbour's. Honest clients, in groups or not, lie near the middle or near each other. One
stands apart only where the lower of these numbers are set off from the rest by a gap nearly as wide as all that is above it: where updates
merely vary, nobody does. A true group of no more than m clients cannot be told from a few who conspire.

Only updates from one and the same model are compared, and only where there are many: in few, chance makes gaps.
"""

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats, places
from coterie.core.asks import Train, Trained
from coterie.core.layout import Layout
from coterie.core.rng import key, shuffle
from coterie.grouping.many.points import MANY, by_rows, laid_out
from coterie.grouping.similarity import lengths
from coterie.methods.robust_rules import median

FEW = 20  # of fewer updates nobody stands apart
MOST = 0.4  # share of them that may
GAP = 0.75  # of the range of the numbers above it
COMPARED = 512  # of many updates: landmarks that stand for everybody


def standing_apart(ask: Train, trained: Trained, layout: Layout) -> tuple[Bools, Bools]:
    """(n,) which replies were compared with others from the same model, and which of them stand apart."""
    compared, apart = np.zeros((2, len(trained)), dtype=np.bool_)
    begun = ask.start[places(ask.clients, trained.clients)]
    for row in np.unique(begun):
        own = np.flatnonzero(begun == row)
        if len(own) >= FEW:
            compared[own] = True
            vectors = trained.vectors if len(own) == len(trained) else trained.vectors[own]
            if ask.sketch is not None:  # a sketch is of the update already
                apart[own] = set_apart(vectors)
            else:
                apart[own] = set_apart(layout.comparable(vectors), layout.comparable(ask.models[[row]]))
    return compared, apart


def set_apart(vectors: Floats, origin: Floats | None = None) -> Bools:
    """(n,) which updates, these rows or their differences from `origin`, stand apart; one of length zero has no direction, and then nobody
    does. Among many, landmarks stand for everybody: the middle is theirs, and so are the neighbours."""
    if len(vectors) > MANY:
        return _set_apart_of_many(vectors, origin)
    updates = vectors if origin is None else vectors - origin
    n, norms = len(updates), np.linalg.norm(updates.astype(np.float64), axis=1)
    if not norms.all():
        return np.zeros(n, dtype=np.bool_)
    directions = updates / norms[:, None]
    middle, _ = median(updates, np.full(n, 1 / n))
    among = directions @ directions.T
    np.fill_diagonal(among, -np.inf)
    nearest = np.sort(among, axis=1)[:, -neighbours(n)]
    length = float(np.linalg.norm(middle))
    return _set_off(nearest) | _set_off(directions @ middle / length if length else np.zeros(n))


def _set_apart_of_many(vectors: Floats, origin: Floats | None) -> Bools:
    """The same without a table of pairs."""
    norms = lengths(vectors, origin)
    if not norms.all():
        return np.zeros(len(vectors), dtype=np.bool_)
    chosen = np.sort(shuffle(key("held out"), len(vectors))[:COMPARED])
    some = laid_out(vectors[chosen], origin)
    middle, _ = median(some, np.full(len(some), 1 / len(some)))
    along, m, length = some / norms[chosen][:, None], neighbours(len(some)), float(np.linalg.norm(middle))

    def scores(block: Floats) -> Doubles:
        directions = laid_out(block, origin, unit=True)
        among = np.partition(directions @ along.T, [-m - 1, -m], axis=1)
        return np.stack([among[:, -m], among[:, -m - 1], directions @ middle / length if length else np.zeros(len(block))], axis=1)

    found = by_rows(scores, vectors, width=len(some))
    nearest = found[:, 0].copy()
    nearest[chosen] = found[chosen, 1]  # a landmark is the nearest to itself
    return _set_off(nearest) | _set_off(found[:, 2])


def neighbours(n: int) -> int:
    """Which neighbour is looked at: the third, or, of many, the one of a tenth of them."""
    return max(3, n // 10)


def _set_off(scores: Doubles) -> Bools:
    """Which scores are below the widest gap in the lower part, where it is wide enough."""
    ordered = np.sort(scores)
    gaps = np.diff(ordered)[: int(MOST * len(scores))]
    at = int(np.argmax(gaps))
    wide = gaps[at] > GAP * (ordered[-1] - ordered[at + 1])
    return np.asarray((scores <= ordered[at]) & wide)
