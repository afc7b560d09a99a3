"""How a client that is in no group comes into one; shared by the methods that keep groups.

By default it takes the model with the lowest loss on its own training part. The controls have rules of their own, so that similarity
does not come in by this door.
"""

import numpy as np

from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Losses
from coterie.core.method import Context, Round
from coterie.core.rng import fold, key
from coterie.core.serving import Panel, Serving
from coterie.grouping.controls import Assign


def drawn(clients: Ids, size: int, purpose: str, ctx: Context) -> Ids:
    """`size` of these clients, ascending: those who draw the lowest numbers, as in `ctx.cohort`, which picks from everybody."""
    draws = fold(np.full(len(clients), key(ctx.seed, purpose, ctx.round_), np.uint64), ctx.roster.words[clients])
    return np.sort(clients[np.argsort(draws, kind="stable")[:size]])


def grown(groups: Ids, clients: int) -> Ids:
    """The groups with a row for every client of the roster: those who came since are in none (-1)."""
    return np.concatenate([groups, np.full(clients - len(groups), -1, dtype=np.int64)]) if clients > len(groups) else groups


def largest(groups: Ids, models: int) -> int:
    """The group with most clients (the first of equals): what a client gets of whom nothing is known."""
    return int(np.bincount(groups[groups >= 0], minlength=models).argmax())


def lowest_loss(clients: Ids, models: Floats) -> Round[Ids]:
    """(n,) the model with the lowest loss on each client's training part; -1 for a client that does not answer."""
    if len(models) == 1:
        return np.zeros(len(clients), dtype=np.int64)  # nothing to choose: nobody need be asked
    rows = np.full(len(clients), -1, dtype=np.int64)
    if len(clients):
        table = yield from Losses(clients, models)
        place = dict(zip(table.clients.tolist(), table.losses.argmin(axis=1).tolist(), strict=True))
        rows[:] = [place.get(client, -1) for client in clients.tolist()]
    return rows


def under_control(rows: Ids, clients: Ids, groups: Ids, models: int, assign: Assign, ctx: Context) -> Ids:
    """The rows that newcomers get instead of the similar ones; -1 (did not answer) stays.

    `random` copies the group of a client drawn by key, so that groups grow as they are; `oracle` joins those of the same true group,
    where there are any.
    """
    known = np.flatnonzero(groups >= 0)
    result = rows.copy()
    if assign == "similar":
        return result
    for i in np.flatnonzero(rows >= 0):
        client = int(clients[i])
        if assign == "one":
            result[i] = 0
        elif assign == "round_robin":
            result[i] = client % models
        elif assign == "random" and len(known):
            result[i] = groups[known[ctx.rng(f"join {ctx.roster.ids[client]}").integers(len(known))]]
        elif assign == "oracle" and ctx.roster.true_groups is not None:
            kin = known[ctx.roster.true_groups[known] == ctx.roster.true_groups[client]]
            result[i] = largest(groups[kin], models) if len(kin) else rows[i]
    return result


def served(groups: Ids, models: Floats, clients: Ids, assign: Assign, ctx: Context) -> Round[Serving]:
    """Each client its group's model; a new one the lowest loss; one that does not answer the largest group's."""
    groups = grown(groups, len(ctx.roster))
    rows = groups[clients]
    new = rows < 0
    if new.any():
        found = yield from lowest_loss(clients[new], models)
        rows[new] = under_control(found, clients[new], groups, len(models), assign, ctx)
        rows[rows < 0] = largest(groups, len(models))
    return Serving(clients, models, rows)


def mean_model(models: Floats) -> Floats:
    """(1, d) the plain mean of the groups' models, in float64; a single model keeps its bits."""
    mean: Doubles = models.mean(axis=0, dtype=np.float64)
    return mean.astype(np.float32)[None, :]


def panel_of(models: Floats, *, mean: bool) -> Panel:
    """Each group's model for the central test set, and before them, where the method has one, the mean of all."""
    if len(models) == 1:
        return Panel(("global",), Serving.one(np.zeros(1, dtype=np.int64), models))
    names = tuple(f"group {j}" for j in range(len(models)))
    if mean:
        names, models = ("global", *names), np.concatenate([mean_model(models), models])
    rows = np.arange(len(models), dtype=np.int64)
    return Panel(names, Serving(rows, models, rows))
