"""Aggregation: weights are composed first, as a matrix, and applied once."""

from dataclasses import dataclass

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids, Ints
from coterie.core.held import Held
from coterie.core.row_sums import row_adder
from coterie.core.threads import cores, in_order

BLOCK = 1 << 15  # columns that a thread sums at a time
WORTH_THREADS = 1 << 18  # columns


@dataclass(frozen=True)
class MixedTensor:
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
    parts = mixing.parts or (MixedTensor(0, before.shape[1], mixing.replies, mixing.before),)
    order = np.argsort(mixing.clients, kind="stable")
    if isinstance(vectors, Held):
        if vectors.at_hand is None:
            return vectors.mixed(parts, order, before)
        vectors = vectors.at_hand
    mixed = np.empty((len(mixing.replies), before.shape[1]), dtype=np.float32)

    def sum_block(block: tuple[MixedTensor, int, int]) -> None:
        part, begin, end = block
        for j in range(len(mixed)):
            total = np.zeros(end - begin)
            add_rows(total, part.replies[j], order, vectors, begin)
            if part.before[j].any():  # most methods keep nothing of the models before
                add_rows(total, part.before[j], np.arange(part.before.shape[1]), before, begin)
            mixed[j, begin:end] = total

    blocks = [(part, begin, min(begin + BLOCK, part.end)) for part in parts for begin in range(part.begin, part.end, BLOCK)]
    for _ in in_order(sum_block, blocks, cores() if before.shape[1] >= WORTH_THREADS else 1):
        pass
    return mixed


def mixed_plainly(mixing: Mixing, vectors: Floats, before: Floats) -> tuple[Floats, Mixing]:
    """The models, and the matrix that made them: the matrix as it stands."""
    return mix(mixing, vectors, before), mixing


def add_rows(total: Doubles, weights: Doubles, order: Ints, vectors: Floats, begin: int) -> None:
    """Add the rows of `vectors`, from column `begin`, to `total`: each times its weight, in this order, without those of no weight."""
    counted = order[weights[order] != 0.0]
    if not len(counted):
        return
    if counted.max() >= len(vectors) or begin + len(total) > vectors.shape[1]:  # machine code would not notice
        raise ValueError(f"weights of {len(weights)} vectors of length {begin + len(total)} do not fit vectors of shape {vectors.shape}")
    row_adder()(total, weights[counted], counted, vectors, begin)
