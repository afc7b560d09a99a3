"""Choosing the number of groups by a short trial (004, Section 5.2): run the method itself, on few clients and for few rounds.

The other ways (silhouette, gap, stability) read the number from points and live in `grouping.choose`; this one asks clients, and what it
asks is charged to the round like anything else.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.core.asks import Evaluate, Train
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round
from coterie.core.rng import fold, key

T = TypeVar("T")
CLIENTS, ROUNDS = 100, 3  # 5.2: "randomly select 100 nodes and test K in FL with three communication rounds only"


def sampled(clients: Ids, size: int, purpose: str, ctx: Context) -> Ids:
    """A uniform sample of these clients without replacement, ascending; each draws from its own key and the lowest are taken."""
    draws = fold(np.full(len(clients), key(ctx.seed, purpose, ctx.round_), dtype=np.uint64), ctx.roster.words[clients])
    return np.sort(clients[np.argsort(draws, kind="stable")[:size]])


def trial(make: Callable[[int], Method[Any]], init: InitialModels, ctx: Context, most: int) -> Round[int]:
    """The number of groups, 1 to `most`, that a short run of the method speaks for; the two curves are recorded.

    `make(k)` is the method with k groups. It must record `intra_distance` (004, Eq. 6) if the elbow is to be used.
    """
    clients = sampled(ctx.roster.available, CLIENTS, "trial clients", ctx)
    accuracy, distance, judged = np.full(most, np.nan), np.full(most, np.nan), 0
    for k in range(1, min(most, len(clients)) + 1):
        hits, judged, distance[k - 1] = yield from _run(make(k), init, ctx, clients)
        accuracy[k - 1] = hits / judged if judged else np.nan
    k = fewest(accuracy, judged) if judged else elbow(distance)
    ctx.record("choice", k)
    ctx.record("choice_accuracy", accuracy)
    ctx.record("choice_distance", distance)
    return k


def fewest(accuracy: Doubles, samples: int) -> int:
    """The fewest groups whose validation accuracy is within one standard error of the best: more must earn their keep."""
    best = float(np.nanmax(accuracy))
    error = np.sqrt(best * (1 - best) / samples)
    return 1 + int(np.argmax(np.nan_to_num(accuracy, nan=-1.0) >= best - error))


def elbow(distance: Doubles) -> int:
    """Where no client has validation samples: the point of the falling distance farthest below the line between its ends; 1 if straight."""
    curve = distance[np.isfinite(distance)]
    if len(curve) < 3:
        return 1
    below = np.linspace(curve[0], curve[-1], len(curve)) - curve
    return 1 + int(np.argmax(below)) if below.max() > 1e-9 * curve[0] else 1


def _run(method: Method[Any], init: InitialModels, ctx: Context, clients: Ids) -> Round[tuple[int, int, float]]:
    """Three rounds of the method with these clients: right answers on their validation parts, their number, and Eq. 6 at the end."""
    roster = replace(ctx.roster, reachable=np.isin(ctx.roster.clients, clients))
    plan = replace(ctx.plan, cohort=None)
    small = [Context(roster, ctx.layout, plan, key(ctx.seed, "trial"), t) for t in range(ROUNDS + 1)]
    state = yield from _keyed_apart(method.start(init, small[0]), "trial 0")
    for t in range(1, ROUNDS + 1):
        state = yield from _keyed_apart(method.round(state, small[t]), f"trial {t}")
    serving = yield from _keyed_apart(method.serve(state, clients, small[-1]), "trial serving")
    judged = yield from Evaluate(serving, "validation")
    return int(judged.hits.sum()), int(judged.actual.sum()), float(small[-1].records.get("intra_distance", np.nan))


def _keyed_apart(script: Round[T], prefix: str) -> Round[T]:
    """The same script with the shuffles of its training keyed apart: all trial rounds are asked within one round of the study."""
    try:
        ask = next(script)
        while True:
            ask = replace(ask, purpose=f"{prefix} {ask.purpose}") if isinstance(ask, Train) else ask
            ask = script.send((yield ask))
    except StopIteration as end:
        value: T = end.value
        return value
