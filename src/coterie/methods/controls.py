"""Controls for anything that groups clients: what happens when similarity does not decide?

Only random groups *of the same sizes*, that last as long as the method's own, separate similarity from the change of weights that comes
with any grouping. They still mix large clients with small ones in another way than similar groups do, and so put other weights on the large
ones: `matched` changes places among clients of similar size only. Only the context of the oracle control has the true groups of a scenario.
"""

from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Ids, Ints
from coterie.core.method import Context

Assign = Literal["similar", "random", "matched", "round_robin", "oracle", "one"]
BIN_SIZE = 4  # clients of similar size that change places: a client keeps its label by chance in a quarter of the draws


def apply_control(labels: Ids, clients: Ids, assign: Assign, ctx: Context, *, groups: int | None = None, each_round: bool = False) -> Ids:
    """The labels that a control gives these clients instead of the similar ones.

    `random` permutes the similar labels among the clients, by an order that is drawn once a seed (so groups that last stay what they are)
    or, with `each_round`, once a round. `matched` does so within each bin of clients of similar size, so that every group keeps its number
    of members in every bin. `round_robin` assigns the clients in turn to `groups` (default: as many as the labels use). `oracle` gives the
    scenario's true groups, which may be more than the method was given. A label of -1 stays: not in a group.
    """
    if assign == "similar":
        return labels
    result = labels.copy()
    known = np.flatnonzero(labels >= 0)
    known = known[np.argsort(clients[known], kind="stable")]
    if assign == "random":
        order = np.argsort(ctx.draws("random groups", clients[known], lasting=not each_round), kind="stable")
        result[known] = labels[known][order]
    elif assign == "matched":
        bins = bin_by_size(ctx.roster.sizes[clients[known]])
        drawn = ctx.draws("matched groups", clients[known], lasting=not each_round)
        result[known[np.argsort(bins, kind="stable")]] = labels[known][np.lexsort((drawn, bins))]
    elif assign == "round_robin":
        count = groups if groups is not None else len(np.unique(labels[known]))
        result[known] = np.arange(len(known)) % max(count, 1)
    elif assign == "oracle":
        result[known] = get_true_groups(ctx)[clients[known]]
    else:
        result[known] = 0
    return result


def assign_newcomers(rows: Ids, clients: Ids, groups: Ids, models: int, assign: Assign, ctx: Context) -> Ids:
    """The groups that newcomers get instead of the similar ones; -1 (did not answer) stays. `groups` are those of all clients so far.

    `random` copies the group of a client drawn by key, so that groups grow as they are, `matched` that of one of the clients nearest in
    size; `oracle` joins those of the same true group,
    where there are any. Where no client is in a group yet, the newcomers are assigned as a whole.
    """
    known = np.flatnonzero(groups >= 0)
    if assign == "similar":
        return rows
    if not len(known):
        return apply_control(rows, clients, assign, ctx, groups=models)
    result = rows.copy()
    for i in np.flatnonzero(rows >= 0):
        client = int(clients[i])
        if assign == "one":
            result[i] = 0
        elif assign == "round_robin":
            result[i] = client % models
        elif assign in ("random", "matched"):
            among = known if assign == "random" else _find_nearest_in_size(known, client, ctx)
            result[i] = groups[among[ctx.rng(f"join {ctx.roster.ids[client]}").integers(len(among))]]
        else:
            kin = known[get_true_groups(ctx)[known] == get_true_groups(ctx)[client]]
            result[i] = find_largest_group(groups[kin], models) if len(kin) else rows[i]
    return result


def bin_by_size(sizes: Ints) -> Ints:
    """(n,) a bin for each client: from the largest down, bins of four; clients of equal size are never parted, and a rest of fewer than
    four belongs to the bin before it. Clients that are all of one size are one bin."""
    order = np.argsort(-sizes, kind="stable")
    ranked, starts = sizes[order], [0]
    for i in range(1, len(ranked)):
        if i - starts[-1] >= BIN_SIZE and ranked[i] != ranked[i - 1]:
            starts.append(i)
    if len(starts) > 1 and len(ranked) - starts[-1] < BIN_SIZE:
        starts.pop()
    bins = np.zeros(len(sizes), dtype=np.int64)
    bins[order] = np.searchsorted(starts, np.arange(len(ranked)), side="right") - 1
    return bins


def _find_nearest_in_size(known: Ids, client: int, ctx: Context) -> Ids:
    """The clients of those known whose sizes are nearest in proportion, the first of equals."""
    sizes = np.log(np.maximum(ctx.roster.sizes, 1))
    return known[np.argsort(np.abs(sizes[known] - sizes[client]), kind="stable")[:BIN_SIZE]]


def find_largest_group(groups: Ids, models: int) -> int:
    """The group with most clients (the first of equals): what a client gets that nothing is known of."""
    return int(np.bincount(groups[groups >= 0], minlength=models).argmax())


def get_true_groups(ctx: Context) -> Ids:
    """The true groups, which only an oracle control may ask for."""
    if ctx.truth is None:
        raise UserError("The oracle control needs a federation whose true groups are known: choose a scenario with groups.")
    return ctx.truth
