"""Choosing the number of groups by a short trial (FeSEM, Section 5.2): run the method itself, on few clients and for few rounds.

What it asks is charged to the round like anything else. Judged by validation accuracy where clients have validation samples, else by the
elbow of the distance between clients' models and their group's.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core.arrays import Doubles, Ids
from coterie.core.asks import Ask, Evaluate, Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import Context, Method, Round, T, changed
from coterie.core.notes import Choice, Notes
from coterie.core.rng import key
from coterie.core.serving import Serving
from coterie.core.tasks import CLASSIFICATION, Task, credits_of

CLIENTS, ROUNDS = 100, 3  # 5.2: "randomly select 100 nodes and test K in FL with three communication rounds only"
TEXTS_APART = 0.5  # nats


def trial(make: Callable[[int], Method[Any]], init: InitialModels, ctx: Context, most: int) -> Round[Choice]:
    """The number of groups, 1 to `most`, that a short run of the method speaks for, with both curves. `make(k)` has k groups."""
    clients = ctx.sample(ctx.roster.available, CLIENTS, "trial clients")
    accuracy, distance, judged = np.full(most, np.nan), np.full(most, np.nan), 0
    for k in range(1, min(most, len(clients)) + 1):
        credit, judged, distance[k - 1] = yield from _run(make(k), init, ctx, clients)
        accuracy[k - 1] = credit / judged if judged else np.nan
    k = fewest(accuracy, judged, ctx.task) if judged else elbow(distance)
    return Choice(k, "trial", {"accuracy": tuple(accuracy), "distance": tuple(distance)})


def fewest(accuracy: Doubles, samples: int, task: Task = CLASSIFICATION) -> int:
    """The fewest groups whose validation score is within one standard error of the best: more must earn their keep.

    The error of a share of right answers, or, of a regression, that of R2 with many samples: 2 sqrt(R2) (1 - R2) / sqrt(n). Of texts,
    whose scores have no such bound, TEXTS_APART / sqrt(n), as if blocks of tokens were so many nats apart.
    """
    best = float(np.nanmax(accuracy))
    held = min(max(best, 0.0), 1.0)
    if task.name == "next-token":
        return 1 + int(np.argmax(np.nan_to_num(accuracy, nan=-np.inf) >= best - TEXTS_APART / np.sqrt(samples)))
    error = np.sqrt((4 * held * (1 - held) ** 2 if task.name == "regression" else held * (1 - held)) / samples)
    return 1 + int(np.argmax(np.nan_to_num(accuracy, nan=-np.inf) >= best - error))


def elbow(distance: Doubles) -> int:
    """Where no client has validation samples: the point of the falling distance farthest below the line between its ends; 1 if straight."""
    curve = distance[np.isfinite(distance)]
    if len(curve) < 3:
        return 1
    below = np.linspace(curve[0], curve[-1], len(curve)) - curve
    return 1 + int(np.argmax(below)) if below.max() > 1e-9 * curve[0] else 1


def keyed_apart(script: Round[T], prefix: str) -> Round[T]:
    """The same script with the shuffles of its training keyed apart from those of the round it is asked in."""

    def apart(ask: Ask[Any]) -> Ask[Any]:
        return replace(ask, purpose=f"{prefix} {ask.purpose}") if isinstance(ask, Train) else ask

    return changed(script, apart)


def _run(method: Method[Any], init: InitialModels, ctx: Context, clients: Ids) -> Round[tuple[float, int, float]]:
    """Three rounds of the method with these clients: right answers (or other credits) on their validation parts, how many samples these
    are, and Eq. 6 at the end."""
    roster = replace(ctx.roster, reachable=np.isin(ctx.roster.clients, clients))
    plan = replace(ctx.plan, cohort=None, selection="uniform")  # everybody of the sample, whatever the study selects
    small = [replace(ctx, roster=roster, plan=plan, seed=key(ctx.seed, "trial"), round_=t, notes=Notes()) for t in range(ROUNDS + 1)]
    state, last = (yield from keyed_apart(method.start(init, small[0]), "trial 0")), None
    for t in range(1, ROUNDS + 1):
        state, last = yield from _watched(keyed_apart(method.round(state, small[t]), f"trial {t}"))
    serving = yield from keyed_apart(method.serve(state, clients, small[-1]), "trial serving")
    if not ctx.validation:
        return 0, 0, _within(last, serving)
    judged = yield from Evaluate(serving, "validation")
    return float(credits_of(judged, ctx.task).sum()), int(judged.sizes.sum()), _within(last, serving)


def _watched(script: Round[T]) -> Round[tuple[T, Trained | None]]:
    """What a script returns, and the last models that clients sent it."""
    trained: Trained | None = None
    try:
        ask = next(script)
        while True:
            reply = yield ask
            trained = reply if isinstance(reply, Trained) and len(reply) else trained
            ask = script.send(reply)
    except StopIteration as end:
        return end.value, trained


def _within(trained: Trained | None, serving: Serving) -> float:
    """The mean squared distance of clients' models from the model of their group (Eq. 6)."""
    if trained is None:
        return float("nan")
    rows = serving.rows[np.searchsorted(serving.clients, trained.clients)]
    own = rows >= 0
    gaps = trained.vectors[own].astype(np.float64) - serving.models[rows[own]]
    return float(np.mean(np.sum(gaps**2, axis=1))) if own.any() else float("nan")
