"""Samplers of one's own, for tests and for specs."""

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.method import Context


def largest(ctx: Context, size: int | None, purpose: str, share: float = 0.5) -> Ids:
    """Half of the cohort are the clients with most samples, the others are drawn."""
    count = size or len(ctx.roster)
    first = np.argsort(-ctx.roster.sizes, kind="stable")[: round(share * count)]
    rest = np.setdiff1d(ctx.roster.clients, first)
    return np.concatenate([first, ctx.sample(rest, count - len(first), purpose)])


def twice(ctx: Context, size: int | None, purpose: str) -> Ids:
    return np.array([0, 0])


def beyond(ctx: Context, size: int | None, purpose: str) -> Ids:
    return np.array([len(ctx.roster)])


def failing(ctx: Context, size: int | None, purpose: str) -> Ids:
    raise ValueError("no idea whom to ask")


def other(clients: Ids) -> Ids:
    return clients
