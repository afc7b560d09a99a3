"""Controls for anything that groups clients: what happens when similarity does not decide?

Only random groups *of the same sizes* separate similarity from the change of weights that comes with any grouping.
"""

from typing import Literal

import numpy as np

from coterie.core.arrays import Ids
from coterie.core.errors import UserError
from coterie.core.method import Context
from coterie.core.rng import fold, key

Assign = Literal["similar", "random", "round_robin", "oracle", "one"]


def controlled(labels: Ids, clients: Ids, assign: Assign, ctx: Context, *, groups: int | None = None, each_round: bool = False) -> Ids:
    """The labels that a control gives these clients instead of the similar ones.

    `random` permutes the similar labels among the clients, by an order that is drawn once a seed (so groups that last stay what they
    are) or, with `each_round`, once a round. `round_robin` deals the clients out over `groups` (as many as the labels use unless
    given). `oracle` gives the scenario's true groups, which may be more than the method was told. A label of -1 stays: not in a group.
    """
    if assign == "similar":
        return labels
    result = labels.copy()
    known = np.flatnonzero(labels >= 0)
    known = known[np.argsort(clients[known], kind="stable")]
    if assign == "random":
        result[known] = labels[known][_order(clients[known], ctx, each_round)]
    elif assign == "round_robin":
        count = groups if groups is not None else len(np.unique(labels[known]))
        result[known] = np.arange(len(known)) % max(count, 1)
    elif assign == "oracle":
        if ctx.roster.true_groups is None:
            raise UserError("The oracle control needs a federation whose true groups are known: choose a scenario with groups.")
        result[known] = ctx.roster.true_groups[clients[known]]
    else:
        result[known] = 0
    return result


def _order(clients: Ids, ctx: Context, each_round: bool) -> Ids:
    """A permutation of positions, from a draw of each client's own: newcomers take a place and leave the others' order alone."""
    drawn = key(ctx.seed, "random groups", ctx.round_) if each_round else key(ctx.seed, "random groups")
    draws = fold(np.full(len(clients), drawn, dtype=np.uint64), ctx.roster.words[clients])
    return np.argsort(draws, kind="stable").astype(np.int64)
