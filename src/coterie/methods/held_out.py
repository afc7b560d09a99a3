"""Whom a guard holds out: clients whose updates stand clearly apart from all others, by direction.

Two numbers a client, both from its update (what it sent minus the model it was sent): the cosine with the coordinate-wise median of the
updates, and the cosine with its m-th nearest neighbour's. Honest clients, in groups or not, lie near the middle or near each other. One
stands apart only where the lower of these numbers are set off from the rest by a gap nearly as wide as all that is above it: where updates
merely vary, nobody does. A true group of no more than m clients cannot be told from a few who conspire.

Only updates from one and the same model are compared, and only where there are many: in few, chance makes gaps.
"""

from collections.abc import Callable

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats, Ids, places
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
Votes = Callable[[Ids], Doubles | None]  # of clients: how much each counts, None where all count alike


def alike(clients: Ids) -> None:
    """All clients count alike."""


def standing_apart(ask: Train, trained: Trained, layout: Layout, votes: Votes = alike) -> tuple[Bools, Bools]:
    """(n,) which replies were compared with others from the same model, and which of them stand apart. `votes` are those of a context."""
    compared, apart = np.zeros((2, len(trained)), dtype=np.bool_)
    begun = ask.start[places(ask.clients, trained.clients)]
    for row in np.unique(begun):
        own = np.flatnonzero(begun == row)
        if len(own) >= FEW:
            compared[own] = True
            vectors = trained.vectors if len(own) == len(trained) else trained.vectors[own]
            counted = votes(trained.clients[own])
            if ask.sketch is not None:  # a sketch is of the update already
                apart[own] = set_apart(vectors, votes=counted)
            else:
                apart[own] = set_apart(layout.comparable(vectors), layout.comparable(ask.models[[row]]), counted)
    return compared, apart


def set_apart(vectors: Floats, origin: Floats | None = None, votes: Doubles | None = None) -> Bools:
    """(n,) which updates, these rows or their differences from `origin`, stand apart; one of length zero has no direction, and then nobody
    does. Among many, landmarks stand for everybody: the middle is theirs, and so are the neighbours.

    With votes (where a site's share is bounded), the middle, the number of neighbours and the number that may stand apart are of votes.
    """
    if len(vectors) > MANY:
        return _set_apart_of_many(vectors, origin, votes)
    updates = vectors if origin is None else vectors - origin
    n, norms = len(updates), np.linalg.norm(updates.astype(np.float64), axis=1)
    if not norms.all():
        return np.zeros(n, dtype=np.bool_)
    directions = updates / norms[:, None]
    middle, _ = median(updates, np.full(n, 1 / n) if votes is None else votes)
    among = directions @ directions.T
    np.fill_diagonal(among, -np.inf)
    nearest = np.sort(among, axis=1)[:, -neighbours(n)] if votes is None else _nearest_by_votes(among, votes, neighbours(n) / n)
    length = float(np.linalg.norm(middle))
    return _set_off(nearest, votes) | _set_off(directions @ middle / length if length else np.zeros(n), votes)


def _nearest_by_votes(among: Doubles, votes: Doubles, share: float) -> Doubles:
    """(n,) the cosine at which the nearest others of each row have this share of the votes."""
    order = np.argsort(-among, axis=1, kind="stable")
    at = np.argmax(np.cumsum(votes[order], axis=1) >= share - 1e-12, axis=1)
    return np.asarray(among[np.arange(len(among)), order[np.arange(len(among)), at]])


def _set_apart_of_many(vectors: Floats, origin: Floats | None, votes: Doubles | None) -> Bools:
    """The same without a table of pairs."""
    norms = lengths(vectors, origin)
    if not norms.all():
        return np.zeros(len(vectors), dtype=np.bool_)
    chosen = np.sort(shuffle(key("held out"), len(vectors))[:COMPARED])
    some = laid_out(vectors[chosen], origin)
    own = None if votes is None else votes[chosen] / votes[chosen].sum()
    middle, _ = median(some, np.full(len(some), 1 / len(some)) if own is None else own)
    along, m, length = some / norms[chosen][:, None], neighbours(len(some)), float(np.linalg.norm(middle))

    def scores(block: Floats) -> Doubles:
        directions = laid_out(block, origin, unit=True)
        if own is not None:  # a landmark counts as its own neighbour, with its one vote
            near = _nearest_by_votes(directions @ along.T, own, m / len(some))
            return np.stack([near, near, directions @ middle / length if length else np.zeros(len(block))], axis=1)
        among = np.partition(directions @ along.T, [-m - 1, -m], axis=1)
        return np.stack([among[:, -m], among[:, -m - 1], directions @ middle / length if length else np.zeros(len(block))], axis=1)

    found = by_rows(scores, vectors, width=len(some))
    nearest = found[:, 0].copy()
    nearest[chosen] = found[chosen, 1]  # a landmark is the nearest to itself
    return _set_off(nearest, votes) | _set_off(found[:, 2], votes)


def neighbours(n: int) -> int:
    """Which neighbour is looked at: the third, or, of many, the one of a tenth of them."""
    return max(3, n // 10)


def _set_off(scores: Doubles, votes: Doubles | None) -> Bools:
    """Which scores are below the widest gap in the lower part, where it is wide enough."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    most = int(MOST * len(scores)) if votes is None else int(np.sum(np.cumsum(votes[order]) <= MOST))
    gaps = np.diff(ordered)[:most]
    if not len(gaps):  # the lowest score is of a client with many votes
        return np.zeros(len(scores), dtype=np.bool_)
    at = int(np.argmax(gaps))
    wide = gaps[at] > GAP * (ordered[-1] - ordered[at + 1])
    return np.asarray((scores <= ordered[at]) & wide)
