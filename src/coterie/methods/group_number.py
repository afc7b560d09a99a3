"""The number of groups: a setting, or found by the method itself (`auto`) in the way that `choice` names; and settings of sketches.

The choice is recorded in the notes. The choice `trial` (FeSEM, Section 5.2) runs the method on few clients for few rounds with each number
of groups. Its asks are charged to the round. Numbers are compared by validation accuracy if clients have validation samples, otherwise by
the elbow of the distance between clients' models and their group's model.
"""

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles, Floats, Ids
from coterie.core.asks import Ask, Evaluate, Train, Trained
from coterie.core.layout import InitialModels
from coterie.core.method import Choice, Context, Method, Notes, Round, S, T, map_asks
from coterie.core.rng import make_key
from coterie.core.serving import Serving
from coterie.core.settings import setting
from coterie.core.tasks import CLASSIFICATION, Task, compute_credits
from coterie.core.vectors import Sketch
from coterie.grouping.number_of_groups import ChoiceRule, choose_from_points
from coterie.grouping.structure import MAX_TESTED, find_groups
from coterie.grouping.structure_views import has_enough_clients
from coterie.methods.client_probes import ask_probes

TRIAL_CLIENTS, TRIAL_ROUNDS = 100, 3  # 5.2: "randomly select 100 nodes and test K in FL with three communication rounds only"
TEXT_SCORE_SPREAD = 0.5  # nats


def run_trial(make: Callable[[int], Method[Any]], init: InitialModels, ctx: Context, most: int) -> Round[Choice]:
    """The number of groups, 1 to `most`, that a short run of the method speaks for, with both curves. `make(k)` has k groups."""
    clients = ctx.sample(ctx.roster.available, TRIAL_CLIENTS, "trial clients")
    accuracy, distance, judged = np.full(most, np.nan), np.full(most, np.nan), 0
    for k in range(1, min(most, len(clients)) + 1):
        credit, judged, distance[k - 1] = yield from _run_candidate(make(k), init, ctx, clients)
        accuracy[k - 1] = credit / judged if judged else np.nan
    k = choose_fewest_groups(accuracy, judged, ctx.task) if judged else find_elbow(distance)
    return Choice(k, "trial", {"accuracy": tuple(accuracy), "distance": tuple(distance)})


def choose_fewest_groups(accuracy: Doubles, samples: int, task: Task = CLASSIFICATION) -> int:
    """The fewest groups whose validation score is within one standard error of the best: more must earn their keep.

    The error of a share of right answers, or, of R2 and of the Brier score of survival times, which is built alike, that of R2 with many
    samples: 2 sqrt(R2) (1 - R2) / sqrt(n). Of texts,
    whose scores have no such bound, TEXT_SCORE_SPREAD / sqrt(n), as if blocks of tokens were so many nats apart.
    """
    best = float(np.nanmax(accuracy))
    held = min(max(best, 0.0), 1.0)
    if task.name == "next-token":
        return 1 + int(np.argmax(np.nan_to_num(accuracy, nan=-np.inf) >= best - TEXT_SCORE_SPREAD / np.sqrt(samples)))
    error = np.sqrt((4 * held * (1 - held) ** 2 if task.has_units else held * (1 - held)) / samples)
    return 1 + int(np.argmax(np.nan_to_num(accuracy, nan=-np.inf) >= best - error))


def find_elbow(distance: Doubles) -> int:
    """Where no client has validation samples: the point of the falling distance farthest below the line between its ends; 1 if straight."""
    curve = distance[np.isfinite(distance)]
    if len(curve) < 3:
        return 1
    below = np.linspace(curve[0], curve[-1], len(curve)) - curve
    return 1 + int(np.argmax(below)) if below.max() > 1e-9 * curve[0] else 1


def rekey_training(script: Round[T], prefix: str) -> Round[T]:
    """The same script with the shuffles of its training keyed apart from those of the round it is asked in."""

    def apart(ask: Ask[Any]) -> Ask[Any]:
        return replace(ask, purpose=f"{prefix} {ask.purpose}") if isinstance(ask, Train) else ask

    return map_asks(script, apart)


def _run_candidate(method: Method[Any], init: InitialModels, ctx: Context, clients: Ids) -> Round[tuple[float, int, float]]:
    """Three rounds of the method with these clients: right answers (or other credits) on their validation parts, how many samples these
    are, and Eq. 6 at the end."""
    roster = replace(ctx.roster, reachable=np.isin(ctx.roster.clients, clients))
    plan = replace(ctx.plan, cohort=None, selection="uniform")  # all clients of the sample, whatever the study selects
    small = [
        replace(ctx, roster=roster, plan=plan, seed=make_key(ctx.seed, "trial"), round_=t, notes=Notes()) for t in range(TRIAL_ROUNDS + 1)
    ]
    state, last = (yield from rekey_training(method.start(init, small[0]), "trial 0")), None
    for t in range(1, TRIAL_ROUNDS + 1):
        state, last = yield from _watch_training(rekey_training(method.round(state, small[t]), f"trial {t}"))
    serving = yield from rekey_training(method.serve(state, clients, small[-1]), "trial serving")
    if not ctx.validation:
        return 0, 0, _compute_within_distance(last, serving)
    judged = yield from Evaluate(serving, "validation")
    return float(compute_credits(judged, ctx.task).sum()), int(judged.sizes.sum()), _compute_within_distance(last, serving)


def _watch_training(script: Round[T]) -> Round[tuple[T, Trained | None]]:
    """What a script returns, and the last models that clients sent it."""
    trained: list[Trained] = []

    def keep_trained(ask: Ask[Any], reply: Any) -> Any:
        trained[:] = [reply] if isinstance(reply, Trained) and len(reply) else trained
        return reply

    value = yield from map_asks(script, receive=keep_trained)
    return value, trained[0] if trained else None


def _compute_within_distance(trained: Trained | None, serving: Serving) -> float:
    if trained is None:
        return float("nan")
    rows = serving.rows[np.searchsorted(serving.clients, trained.clients)]
    own = rows >= 0
    gaps = trained.vectors[own].astype(np.float64) - serving.models[rows[own]]
    return float(np.mean(np.sum(gaps**2, axis=1))) if own.any() else float("nan")


GroupNumber = int | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class GroupNumberMixin:
    """The settings of methods that can find their number of groups themselves, and the two places where they do.

    `structure` and `run_trial` ask clients before anything is grouped (`ask_number`); the others read the number from the points that are
    about to be grouped (`read_number`). `structure` and `gap` can answer one; `silhouette` cannot.
    """

    choice: ChoiceRule = setting("structure", "How auto finds the number of groups.")
    most: int = setting(10, "The most groups that auto may find.", minimum=1)

    def count_trial_clients(self, number: GroupNumber, probe: int = 0) -> int:
        """Clients that train at once to find the number: those of one candidate, or of a probe whose points give the number."""
        if number != "auto" or self.choice == "structure":
            return 0
        return TRIAL_CLIENTS if self.choice == "trial" else probe

    def ask_number(
        self, number: GroupNumber, model: Floats, init: InitialModels, ctx: Context, name: str = "groups", sketch: Sketch | None = None
    ) -> Round[int | None]:
        """The number of groups where it is given or asked for; None where it has to be read from points."""
        if number != "auto":
            return number
        if self.choice == "structure":
            ctx.notes.choice = yield from choose_from_structure(model, ctx, self.most, sketch)
        elif self.choice == "trial":
            same: Any = self  # with a number of groups, and similarity deciding
            ctx.notes.choice = yield from run_trial(lambda k: replace(same, **{name: k, "assign": "similar"}), init, ctx, self.most)
        else:
            return None
        return ctx.notes.choice.k

    def read_number(self, known: int | None, points: Doubles, ctx: Context) -> int:
        """The number of groups, read from points where it is not known."""
        if known is not None:
            return known
        assert self.choice != "structure" and self.choice != "trial"  # noqa: PT018  so that the type is narrowed
        ctx.notes.choice = choose_from_points(points, ctx.rng("number of groups"), self.most, self.choice)
        return ctx.notes.choice.k


@dataclass(frozen=True, kw_only=True)
class SketchingMixin(Method[S], ABC):
    """What leaves a client for grouping: everything, or a few random projections of it, clipped and noised where that is wanted."""

    sketch: int | None = setting(None, "Random projections that leave a client for grouping; none: all its numbers.", minimum=1)
    sketch_clip: float | None = setting(None, "The longest sketch that leaves (L2 norm); needs sketch.", above=0)
    sketch_noise: float = setting(0.0, "Deviation of the noise on each number of a sketch, in clips.", minimum=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sketch_clip is not None and self.sketch is None:
            raise UserError(f"{type(self).__name__} cannot use sketch_clip without sketch: add sketch=64.")
        if self.sketch_noise and self.sketch_clip is None:
            raise UserError(f"{type(self).__name__} cannot use sketch_noise without sketch_clip, its unit: add sketch_clip=1.")

    def sketching(self, ctx: Context) -> Sketch | None:
        """What clients are asked for; None where all their numbers are no more than a sketch would have."""
        return ctx.sketch(self.sketch, self.sketch_clip, self.sketch_noise)


def choose_from_structure(model: Floats, ctx: Context, most: int, sketch: Sketch | None = None) -> Round[Choice]:
    """How many groups, from 1 to `most`: one where no distinct groups are claimed. Label counts leave the clients asked, where samples
    have one class each; otherwise halves are asked as a whole."""
    clients = ctx.sample(ctx.roster.available, MAX_TESTED, "structure clients")
    probes = yield from ask_probes(model, clients, ctx.outputs, ctx, labels=ctx.task.counts_classes, sketch=sketch)
    if not has_enough_clients(probes):
        return Choice(1, "structure", p=float("nan"))
    found = find_groups(probes, ctx.rng("structure"), most=most)
    curves = {name: (float("nan"), *map(float, values)) for name, values in (("share", found.share), ("expected", found.expected))}
    return Choice(found.number, "structure", curves, found.p)
