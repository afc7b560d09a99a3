"""Aggregation: weights are composed first, as a matrix, and applied once."""

from dataclasses import dataclass

import numpy as np

from coterie.arrays import Doubles, Floats, Ids, Ints
from coterie.threads import cores, in_order

BLOCK = 1 << 15  # columns summed at a time: what is being added up stays in the cache
WORTH_THREADS = 8  # blocks


@dataclass(frozen=True)
class Part:
    """One tensor that is mixed with weights of its own: its columns and its [A | B]."""

    begin: int
    end: int
    replies: Doubles  # (k, n)
    before: Doubles  # (k, k0)


@dataclass(frozen=True)
class Mixing:
    """The matrix [A | B] over [replies | models before]: row j says what the new model j is made of.

    It is evidence: one can read from it who counted how much. Rows sum to one wherever the rule averages.
    """

    clients: Ids  # (n,) whose replies the columns of A are
    replies: Doubles  # (k, n) A
    before: Doubles  # (k, k0) B; all zero where nothing of the old models is kept
    averages: bool = True  # False for rules that do not average (FedAtt, Reptile steps, literal variants)
    parts: tuple[Part, ...] = ()  # where tensors are weighted apart; the matrix is then their mean by size, for the record

    @classmethod
    def by_tensor(cls, clients: Ids, parts: tuple[Part, ...], *, averages: bool = True) -> "Mixing":
        """Every tensor with weights of its own; the parts must cover the whole vector."""
        shares = np.array([part.end - part.begin for part in parts]) / max(part.end for part in parts)
        replies = sum(share * part.replies for share, part in zip(shares, parts, strict=True))
        before = sum(share * part.before for share, part in zip(shares, parts, strict=True))
        return cls(clients, np.asarray(replies), np.asarray(before), averages, parts)

    @classmethod
    def average(cls, clients: Ids, weights: Doubles | Ints) -> "Mixing":
        """One model, averaged with these weights (scaled to sum to one)."""
        row = np.asarray(weights, dtype=np.float64)
        return cls(clients, (row / row.sum())[None, :], np.zeros((1, 1)))

    @classmethod
    def within(cls, clients: Ids, groups: Ids, weights: Doubles | Ints, before: int, models: int | None = None) -> "Mixing":
        """One model a group, the average of its members' replies; a group from which nobody answered keeps the model it had.

        `before` models were there, `models` are there afterwards (as many unless given): a new group needs a reply.
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
    """Apply the matrix: (k, n) over (n, d) replies and (k, k0) over (k0, d) old models, in float64, rounded once.

    Each row is summed by itself, client after client in ascending order, leaving out zero weights: a row's bits depend neither on the
    other rows, nor on clients that do not count in it, nor on the order of arrival.
    """
    before = np.atleast_2d(before)
    if mixing.parts:
        pieces = [(Mixing(mixing.clients, part.replies, part.before), slice(part.begin, part.end)) for part in mixing.parts]
        return np.concatenate([mix(piece, vectors[:, cut], before[:, cut]) for piece, cut in pieces], axis=1)
    order = np.argsort(mixing.clients, kind="stable")
    mixed = np.zeros((len(mixing.replies), before.shape[1]), dtype=np.float32)

    def sum_block(block: slice) -> None:
        for j in range(len(mixed)):
            counted = [(mixing.replies[j, i], vectors[i, block]) for i in order if mixing.replies[j, i] != 0.0]
            counted += [(mixing.before[j, i], before[i, block]) for i in np.flatnonzero(mixing.before[j])]
            mixed[j, block] = _weighted_sum(counted, before[0, block].shape)

    blocks = [slice(begin, begin + BLOCK) for begin in range(0, before.shape[1], BLOCK)]
    for _ in in_order(sum_block, blocks, cores() if len(blocks) >= WORTH_THREADS else 1):
        pass
    return mixed


def _weighted_sum(counted: list[tuple[float, Floats]], shape: tuple[int, ...]) -> Doubles:
    """The sum in float64, term after term."""
    total, term = np.zeros(shape), np.empty(shape)
    for weight, vector in counted:
        total += np.multiply(vector, weight, out=term, dtype=np.float64)
    return total
