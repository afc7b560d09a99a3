"""The bound on a site's share: many clients of one site count in a model no more than a site may.

A site may hold any number of clients, so weights and votes by client let one site outvote all others. `most_share` of a plan bounds, for
each model, the weight of all replies that come from one site. The rule for one model:

1. A site above the bound is cut to it. What it loses goes to the other sites in proportion to their weights, until all are within it.
2. Of sites too few to fill the model within the bound (fewer than 1 / most_share), each gets the same share. A single site keeps all:
   a group of one site's clients is that site's own, and no other site is served its model.
3. Within a site, clients keep the proportions of their weights.

Votes (medians, trimmed means, neighbours) are weights too, alike before they are bounded. Where nothing is above the bound, weights are
returned as they came.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np

from coterie.core.arrays import Bools, Doubles, Ids, Ints
from coterie.core.mixing import Mixing

ROUNDING = 1e-9  # a share above the bound by less is within it: sums of floats
USUAL_SHARE, USUAL_SITES = 1 / 3, 4  # the bound of a real federation, and from how many sites on


def usual_share(sites: int) -> float | None:
    """The bound of a real federation of so many sites, if its operator names none."""
    return USUAL_SHARE if sites >= USUAL_SITES else None


@dataclass(frozen=True)
class SiteBound:
    """The site of each client, and the largest share of one site."""

    sites: Ints  # (roster,) the number of each client's site
    most: float

    def weights(self, clients: Ids, weights: Doubles) -> Doubles:
        """(n,) weights with the same sum, in which no site of these clients has more than its share. Unchanged where none has."""
        return bound_shares(weights, self.sites[clients], self.most)

    def votes(self, clients: Ids) -> Doubles | None:
        """(n,) how much the vote of each client counts, summing to one; None where all count alike."""
        if not len(clients):
            return None
        alike = np.full(len(clients), 1 / len(clients))
        votes = self.weights(clients, alike)
        return None if votes is alike else votes

    def mixing(self, mixing: Mixing) -> Mixing:
        """The matrix with every model within the bound; the same object where it is already.

        Where models are made of groups' means, each group's mean is bounded: a step of one group towards another moves it little, and a
        group of one site would otherwise be made of other groups' models.
        """
        if mixing.bounded:
            return mixing
        if mixing.composed is not None:
            across, within = mixing.composed
            inner = self.mixing(within)
            if inner is within:
                return mixing
            return replace(mixing, replies=across @ inner.replies, composed=(across, inner), bounded=True)
        if mixing.parts:
            parts = tuple(replace(part, replies=self._rows(mixing.clients, part.replies)) for part in mixing.parts)
            if all(new.replies is old.replies for new, old in zip(parts, mixing.parts, strict=True)):
                return mixing
            return replace(Mixing.by_tensor(mixing.clients, parts, averages=mixing.averages), bounded=True)
        replies = self._rows(mixing.clients, mixing.replies)
        return mixing if replies is mixing.replies else replace(mixing, replies=replies, bounded=True)

    def above(self, mixing: Mixing) -> Ints:
        """The numbers of the sites that some model of the matrix gives more than their share."""
        matrices = [part.replies for part in mixing.parts] or [
            mixing.composed[1].replies if mixing.composed is not None else mixing.replies
        ]
        sites, found = self.sites[mixing.clients], [np.zeros(0, dtype=np.int64)]
        for row in np.concatenate(matrices):
            own, shares = _site_shares(np.abs(row), sites)
            found.append(own[shares > self.most + ROUNDING] if len(own) > 1 else own[:0])
        return np.unique(np.concatenate(found))

    def _rows(self, clients: Ids, replies: Doubles) -> Doubles:
        rows = list(replies)
        bounded = [self.weights(clients, row) for row in rows]
        return replies if all(new is old for new, old in zip(bounded, rows, strict=True)) else np.stack(bounded)


def bound_shares(weights: Doubles, sites: Ints, most: float) -> Doubles:
    """(n,) weights with the same sum, of which no site has more than the share `most`; the same object where none has.

    A rule that does not average may have negative weights: shares are then of magnitudes.
    """
    magnitudes = np.abs(weights)
    own, shares = _site_shares(magnitudes, sites)
    if len(own) < 2 or shares.max() <= most + ROUNDING:
        return weights
    sums, filled = np.bincount(sites, weights=magnitudes), np.zeros(int(sites.max()) + 1)
    filled[own] = _fill(shares, most)
    # a client's part of its site, then the site's share: a site's factor could be any number where its weights are tiny
    parts = np.divide(weights, sums[sites], out=np.zeros(len(weights)), where=sums[sites] > 0)
    bounded = parts * filled[sites]
    total = float(bounded.sum())
    return bounded * (float(weights.sum()) / total) if total else bounded * float(magnitudes.sum())


def _site_shares(magnitudes: Doubles, sites: Ints) -> tuple[Ints, Doubles]:
    """The sites that have any weight, and the share of each."""
    sums = np.asarray(np.bincount(sites, weights=magnitudes) if len(sites) else np.zeros(0), dtype=np.float64)
    own = np.flatnonzero(sums).astype(np.int64)
    return own, sums[own] / sums.sum() if len(own) else sums[own]


def _fill(shares: Doubles, most: float) -> Doubles:
    """Shares of at most `most`: what is cut off is spread over the rest in proportion; of too few sites, equal ones."""
    if len(shares) * most <= 1 + ROUNDING:
        return np.full(len(shares), 1 / len(shares))
    filled, full = shares, np.zeros(len(shares), dtype=np.bool_)
    while (over := ~full & (filled > most + ROUNDING)).any():  # each turn fills at least one site
        full |= over
        filled = np.full(len(shares), most)
        filled[~full] = (1 - most * full.sum()) * (shares[~full] / shares[~full].sum())
    return filled


def within_share(sites: Ints, size: int, most: float) -> Bools:
    """(n,) which clients, in this order, are among the first ceil(most * size) of their site."""
    order = np.argsort(sites, kind="stable")
    begins = np.r_[0, np.flatnonzero(np.diff(sites[order])) + 1, len(sites)]
    rank = np.empty(len(sites), dtype=np.int64)
    rank[order] = np.concatenate([np.arange(end - begin) for begin, end in pairwise(begins)]) if len(sites) else 0
    return rank < ceil(most * size - ROUNDING)


def weighted_median(values: Doubles, votes: Doubles | None) -> float:
    """The value with half of the votes on either side; between two values, their middle. Without votes all count alike."""
    if votes is None:
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(votes[order]) / votes.sum()
    low, high = (min(int(np.searchsorted(upto, half)), len(order) - 1) for half in (0.5 - 1e-12, 0.5 + 1e-12))
    return float((values[order[low]] + values[order[high]]) / 2)
