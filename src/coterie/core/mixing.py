"""Aggregation: weights are composed first, as a matrix, bounded by site, and applied once.

A site may hold any number of clients, so weights and votes by client let one site outvote all others. `most_share` of a plan bounds, for
each model, the weight of all replies that come from one site. The rule for one model:

1. A site above the bound is cut to it. What it loses goes to the other sites in proportion to their weights, until all are within it.
2. Of sites too few to fill the model within the bound (fewer than 1 / most_share), each gets the same share. A single site keeps all:
   a group of one site's clients is that site's own, and no other site is served its model.
3. Within a site, clients keep the proportions of their weights.

Votes (medians, trimmed means, neighbours) are weights too, equal before they are bounded. Where nothing is above the bound, weights are
returned unchanged.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np

from coterie.core.arrays import Bools, Doubles, Floats, Ids, Ints
from coterie.core.vectors import as_vectors


@dataclass(frozen=True)
class MixedTensor:
    """One tensor that is mixed with weights of its own: its columns and its [A | B]."""

    begin: int
    end: int
    replies: Doubles  # (k, n)
    before: Doubles  # (k, k0)


@dataclass(frozen=True)
class Mixing:
    """The matrix [A | B] over [replies | models before]: row j holds what the new model j is made of.

    It is evidence: one can read from it how much each client counted. Rows sum to one wherever the rule averages.

    Example: ``ct.Mixing.average(trained.clients, trained.sizes)``.
    """

    clients: Ids  # (n,) whose replies the columns of A are
    replies: Doubles  # (k, n) A
    before: Doubles  # (k, k0) B; all zero where nothing of the old models is kept
    averages: bool = True  # False for rules that do not average (FedAtt, Reptile steps, trimmed means, literal variants)
    composed: tuple[Doubles, "Mixing"] | None = None  # (k, k) and what it was multiplied with, where models are made of groups' means
    parts: tuple[MixedTensor, ...] = ()  # where tensors are weighted apart; the matrix is then their mean by size, for the record
    bounded: bool = False  # the bound on sites' shares is applied already: `site_shares`

    @classmethod
    def by_tensor(cls, clients: Ids, parts: tuple[MixedTensor, ...], *, averages: bool = True) -> "Mixing":
        """Every tensor with weights of its own; the parts must cover the whole vector."""
        shares = np.array([part.end - part.begin for part in parts]) / max(part.end for part in parts)
        replies = sum(share * part.replies for share, part in zip(shares, parts, strict=True))
        before = sum(share * part.before for share, part in zip(shares, parts, strict=True))
        return cls(clients, np.asarray(replies), np.asarray(before), averages, parts=parts)

    @classmethod
    def average(cls, clients: Ids, weights: Doubles | Ints) -> "Mixing":
        """One model, averaged with these weights (scaled to sum to one)."""
        row = np.asarray(weights, dtype=np.float64)
        return cls(clients, (row / row.sum())[None, :], np.zeros((1, 1)))

    @classmethod
    def within(cls, clients: Ids, groups: Ids, weights: Doubles | Ints, before: int, models: int | None = None) -> "Mixing":
        """One model a group, the average of its members' replies; a group without replies keeps the model it had.

        `before` models were there, `models` are there afterwards (default: as many): a new group needs a reply.
        """
        weights = np.asarray(weights, dtype=np.float64)
        count = before if models is None else models
        replies, kept = np.zeros((count, len(clients))), np.zeros((count, before))
        for j in range(count):
            members = np.flatnonzero(groups == j)
            if len(members):
                replies[j, members] = weights[members] / weights[members].sum()
            else:
                kept[j, j] = 1.0
        return cls(clients, replies, kept)


def mix(mixing: Mixing, vectors: Floats, before: Floats) -> Floats:
    """Apply a mixing matrix: (k, n) over (n, d) replies and (k, k0) over (k0, d) old models, in float64, rounded once.

    Each row is summed by itself, client after client in ascending order, leaving out zero weights: a row's bits depend neither on the
    other rows, nor on clients that do not count in it, nor on the order of arrival.

    Args:
        mixing: The matrix.
        vectors: (n, d) the replies.
        before: (k0, d) the models before.

    Returns:
        (k, d) the new models.

    Example: ``models = ct.mix(mixing, trained.vectors, state.models)``.
    """
    before = np.atleast_2d(before)
    parts = mixing.parts or (MixedTensor(0, before.shape[1], mixing.replies, mixing.before),)
    order = np.argsort(mixing.clients, kind="stable")
    return as_vectors(vectors).weighted_sums(parts, order, before)


def apply_mixing(mixing: Mixing, vectors: Floats, before: Floats) -> tuple[Floats, Mixing]:
    """The models, and the matrix that made them: the matrix as it stands."""
    return mix(mixing, vectors, before), mixing


ROUNDING = 1e-9  # a share above the bound by less is within it: sums of floats
DEFAULT_SHARE, DEFAULT_MIN_SITES = 1 / 3, 4  # the bound of a real federation, and from how many sites on


def get_default_share(sites: int) -> float | None:
    """The bound of a real federation of so many sites, if its operator names none."""
    return DEFAULT_SHARE if sites >= DEFAULT_MIN_SITES else None


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
            own, shares = _compute_site_shares(np.abs(row), sites)
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
    own, shares = _compute_site_shares(magnitudes, sites)
    if len(own) < 2 or shares.max() <= most + ROUNDING:
        return weights
    sums, filled = np.bincount(sites, weights=magnitudes), np.zeros(int(sites.max()) + 1)
    filled[own] = _cap_shares(shares, most)
    # a client's part of its site, then the site's share: a site's factor could be any number where its weights are tiny
    parts = np.divide(weights, sums[sites], out=np.zeros(len(weights)), where=sums[sites] > 0)
    bounded = parts * filled[sites]
    total = float(bounded.sum())
    return bounded * (float(weights.sum()) / total) if total else bounded * float(magnitudes.sum())


def _compute_site_shares(magnitudes: Doubles, sites: Ints) -> tuple[Ints, Doubles]:
    sums = np.asarray(np.bincount(sites, weights=magnitudes) if len(sites) else np.zeros(0), dtype=np.float64)
    own = np.flatnonzero(sums).astype(np.int64)
    return own, sums[own] / sums.sum() if len(own) else sums[own]


def _cap_shares(shares: Doubles, most: float) -> Doubles:
    """Shares of at most `most`: what is cut off is spread over the rest in proportion; of too few sites, equal ones."""
    if len(shares) * most <= 1 + ROUNDING:
        return np.full(len(shares), 1 / len(shares))
    filled, full = shares, np.zeros(len(shares), dtype=np.bool_)
    while (over := ~full & (filled > most + ROUNDING)).any():  # each turn fills at least one site
        full |= over
        filled = np.full(len(shares), most)
        filled[~full] = (1 - most * full.sum()) * (shares[~full] / shares[~full].sum())
    return filled


def find_within_share(sites: Ints, size: int, most: float) -> Bools:
    """(n,) which clients, in this order, are among the first ceil(most * size) of their site."""
    order = np.argsort(sites, kind="stable")
    begins = np.r_[0, np.flatnonzero(np.diff(sites[order])) + 1, len(sites)]
    rank = np.empty(len(sites), dtype=np.int64)
    rank[order] = np.concatenate([np.arange(end - begin) for begin, end in pairwise(begins)]) if len(sites) else 0
    return rank < ceil(most * size - ROUNDING)


def compute_weighted_median(values: Doubles, votes: Doubles | None) -> float:
    """The value with half of the votes on either side; between two values, their middle. Without votes all count alike."""
    if votes is None:
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(votes[order]) / votes.sum()
    low, high = (min(int(np.searchsorted(upto, half)), len(order) - 1) for half in (0.5 - 1e-12, 0.5 + 1e-12))
    return float((values[order[low]] + values[order[high]]) / 2)
