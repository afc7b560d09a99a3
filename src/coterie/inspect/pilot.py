"""A short pilot: which way serves clients best: one model, one model fine-tuned, a model for each group, or training alone?

Random groups *of the same sizes* are the yardstick of groups: whatever comes with any grouping (fewer clients a model, other weights) they
have too. Without validation parts the ways are cross-fitted: trained on either half of each client's samples and judged on the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Literal

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Doubles, Floats, Ids, Ints
from coterie.core.asks import Evaluate, Evaluated, Share, Train
from coterie.core.local import Local
from coterie.core.method import Round
from coterie.core.mixing import Mixing, mix
from coterie.core.serving import Serving
from coterie.core.tasks import CLASSIFICATION, Task, compute_credits
from coterie.statistics.cross_fitting import compute_gain


@dataclass(frozen=True)
class EvaluationFold:
    """What the pilot trains on and is judged on: the validation parts where there are any, or else one half against the other."""

    part: Literal["train", "validation"]
    trained_on: Share | None = None
    judged_on: Share | None = None

    @classmethod
    def on(cls, validation: bool) -> "tuple[EvaluationFold, ...]":
        """The directions: one with validation parts, else either half against the other."""
        if validation:
            return (cls("validation"),)
        return cls("train", Share(fold=0), Share(fold=1)), cls("train", Share(fold=1), Share(fold=0))


@dataclass(frozen=True)
class PilotPlan:
    """How long the pilot runs, and against how many random groupings."""

    rounds: int = 20  # random groups train for half of them, and are compared with the groups as they are then
    local: Local = field(default_factory=lambda: Local(epochs=3))
    randoms: int = 19
    rates: tuple[float, ...] = (0.01, 0.1, 1.0, 3.0)  # the lowest is used at which one model is within `RATE_TOLERANCE` of its best
    tuning: int = 5  # epochs of fine-tuning

    def __post_init__(self) -> None:
        for name in ("rounds", "randoms"):
            if getattr(self, name) < 1:
                raise UserError(f"The pilot cannot use {name}={getattr(self, name)}: give 1 or more, or omit the pilot with --no-pilot.")
        if not self.rates or min(self.rates) <= 0:
            raise UserError(f"The pilot cannot use rates={self.rates}: give one learning rate or more, all above 0.")

    def asks(self, *, crossed: bool) -> int:
        """How many questions the pilot asks."""
        arm, two = self.rounds + 1, 2 * 2  # an arm; fine-tuning and training alone
        return (len(self.rates) + 1) * (arm + 1) + self.randoms * (self.halfway + 1) + two + (2 * arm + two if crossed else 0)

    @property
    def halfway(self) -> int:
        """The round after which groups are compared with random ones."""
        return (self.rounds + 1) // 2


@dataclass(frozen=True)
class Pilot:
    """Samples right, or other credits, with one model, with the groups' models, and with random groups' models."""

    clients: Ids  # (n,) those judged
    judged: Ints  # (n,) samples
    one: Array  # (n,) right answers with one model for all
    grouped: Array  # (n,)
    random: Array  # (randoms, n)
    on: str  # which samples decided
    task: Task = CLASSIFICATION
    ways: "ServingScores | None" = None

    @property
    def accuracies(self) -> tuple[float, float, float]:
        """Accuracy, or the task's own score: with one model, with groups, with random groups on average."""
        samples = self.judged.sum()
        return float(self.one.sum() / samples), float(self.grouped.sum() / samples), float(self.random.sum(axis=1).mean() / samples)

    @property
    def gain(self) -> float:
        """Groups against one model, in the score over all samples judged."""
        return self.accuracies[1] - self.accuracies[0]

    @property
    def error(self) -> float:
        """The standard error of the gain, clients being what is sampled."""
        n, difference = len(self.clients), self.grouped - self.one
        left = difference - self.gain * self.judged
        return float(np.sqrt(n / max(n - 1, 1) * np.sum(left.astype(np.float64) ** 2)) / self.judged.sum())

    @property
    def as_good_count(self) -> int:
        """How many of the random groupings do at least as well as the groups."""
        return int(np.sum(self.random.sum(axis=1) >= self.grouped.sum()))

    @property
    def p_random(self) -> float:
        """The chance that random groups of the same sizes do at least as well, the groups counted as one drawing."""
        return (1 + self.as_good_count) / (len(self.random) + 1)

    @property
    def verdict(self) -> Literal["help", "hurt", "not shown"]:
        """Help needs both: better than one model by twice its error, and better than random groups."""
        # With fewer than 19 random groupings no p-value can reach .05: beating all of them is then all that can be asked.
        if self.gain > 2 * self.error and (self.p_random <= 0.05 or self.as_good_count == 0):
            return "help"
        return "hurt" if self.gain < -2 * self.error else "not shown"

    @property
    def client_gains(self) -> Doubles:
        """(n,) each client's own gain in the score; rough, since a client judges on its own few samples."""
        return np.asarray((self.grouped - self.one) / np.maximum(self.judged, 1))


ServingWay = Literal["one", "tuned", "groups", "alone"]


@dataclass(frozen=True)
class ServingScores:
    """What clients score in each way to be served; without validation parts, cross-fitted over both halves."""

    clients: Ids  # (n,) those judged in every way
    judged: Ints  # (n,) samples
    credits: dict[ServingWay, Array]  # (n,) right answers, or other credits
    common: float  # the score of always answering the most common class; nan where that is not known
    rate: float  # the learning rate

    def score(self, way: ServingWay) -> float:
        """The score over all samples judged."""
        return float(self.credits[way].sum() / self.judged.sum())

    def gain(self, way: ServingWay, over: ServingWay = "one") -> tuple[float, float]:
        """One way less another in the score, and its standard error: clients are what is sampled; of fewer than eight, samples are."""
        are_shares = all(0 <= self.score(each) <= 1 for each in (way, over))
        found = compute_gain(self.credits[way], self.credits[over], self.judged, are_shares=are_shares)
        return found.mean, found.error

    @property
    def learned(self) -> bool:
        """Whether any way beats always answering the most common class by twice its standard error."""
        if np.isnan(self.common):
            return True
        best = max(self.score(way) for way in self.credits)
        return best > self.common + 2 * float(np.sqrt(max(best * (1 - best), 1e-12) / self.judged.sum()))


RATE_TOLERANCE = 0.005  # of the score


def run_pilot(
    model: Floats,
    clients: Ids,
    labels: Sequence[Ids],
    directions: Sequence[EvaluationFold],
    plan: PilotPlan,
    rng: np.random.Generator,
    task: Task,
) -> Round[Pilot]:
    """Train in every way from the same start (d,), and judge each client with the model it gets.

    `directions` are what is trained on and judged on: one with validation parts, else both halves in turn; `labels` are for each of them
    the clients' groups, found without the samples that judge.
    """
    first, groups = directions[0], labels[0]
    arms_by_rate: dict[float, _TrainedArm] = {}
    for rate in plan.rates:
        arms_by_rate[rate] = yield from _train_arm(model, clients, np.zeros_like(groups), first, plan, rate, halfway=True)
    ends = {rate: arm.end for rate, arm in arms_by_rate.items()}
    rate = _choose_rate({rate: float(compute_credits(end, task).sum() / max(end.sizes.sum(), 1)) for rate, end in ends.items()})
    one = arms_by_rate[rate]
    grouped = yield from _train_arm(model, clients, groups, first, plan, rate, halfway=True)
    arms = [one.halfway, grouped.halfway]
    short = replace(plan, rounds=plan.halfway)
    for _ in range(plan.randoms):
        drawn = yield from _train_arm(model, clients, rng.permutation(groups), first, short, rate)
        arms.append(drawn.end)
    common = _find_complete(arms)
    hits = np.stack([compute_credits(arm.of(common), task) for arm in arms])
    on = "validation parts" if first.part == "validation" else "the other half of the training samples"
    folds: list[dict[ServingWay, Evaluated]] = []
    for fold, (judged, own) in enumerate(zip(directions, labels, strict=True)):
        if fold:
            one = yield from _train_arm(model, clients, np.zeros_like(own), judged, plan, rate)
            grouped = yield from _train_arm(model, clients, own, judged, plan, rate)
        personal = yield from _train_personal(model, one.models, clients, judged, plan, rate)
        folds.append({"one": one.end, "groups": grouped.end, **personal})
    found = _combine_folds(folds, rate, task)
    return Pilot(common, arms[0].of(common).sizes, hits[0], hits[1], hits[2:], on, task, found)


def _find_complete(arms: Sequence[Evaluated]) -> Ids:
    """The clients that replied every time and have samples."""
    common = reduce(np.intersect1d, [arm.clients for arm in arms])
    return np.asarray(common[arms[0].of(common).sizes > 0])


def _combine_folds(folds: Sequence[dict[ServingWay, Evaluated]], rate: float, task: Task) -> ServingScores:
    """The folds' credits added up, of the clients that were judged in every way of some fold."""
    known = [_find_complete(list(fold.values())) for fold in folds]
    clients = reduce(np.union1d, known)
    judged, credits = np.zeros(len(clients), np.int64), {way: np.zeros(len(clients)) for way in folds[0]}
    counts = 0
    for fold, common in zip(folds, known, strict=True):
        rows = np.searchsorted(clients, common)
        judged[rows] += fold["one"].of(common).sizes
        counts = counts + fold["one"].of(common).actual.sum(axis=0)
        for way, arm in fold.items():
            credits[way][rows] += compute_credits(arm.of(common), task)
    several = task.name == "classification" and np.count_nonzero(counts) > 1  # a site may report all samples as one class
    return ServingScores(clients, judged, credits, float(np.max(counts) / np.sum(counts)) if several else np.nan, rate)


def _train_personal(
    model: Floats, shared: Floats, clients: Ids, judged: EvaluationFold, plan: PilotPlan, rate: float
) -> Round[dict[ServingWay, Evaluated]]:
    """Clients fine-tune the shared model, and train alone from the start."""
    found: dict[ServingWay, Evaluated] = {}
    starts: tuple[tuple[ServingWay, Floats, int], ...] = (
        ("tuned", shared, plan.tuning),
        ("alone", model[None], plan.rounds * plan.local.epochs),
    )
    for way, start, epochs in starts:
        local = plan.local.replace(lr=rate, epochs=epochs)
        trained = yield from Train(clients, start, local, share=judged.trained_on, purpose=f"pilot {way}", alone=True)
        serving = Serving(trained.clients, trained.vectors, np.arange(len(trained)))
        found[way] = yield from Evaluate(serving, judged.part, judged.judged_on)
    return found


@dataclass(frozen=True)
class _TrainedArm:
    """A trained arm: its models, and what clients score with them, at the end and halfway."""

    models: Floats
    end: Evaluated
    halfway: Evaluated


def _train_arm(
    model: Floats, clients: Ids, labels: Ids, judged: EvaluationFold, plan: PilotPlan, rate: float, *, halfway: bool = False
) -> Round[_TrainedArm]:
    """Federated averaging within each group. All arms share their shuffles, so they differ by the grouping alone."""
    models, local, middle = np.repeat(model[None], int(labels.max()) + 1, axis=0), plan.local.replace(lr=rate), None
    for t in range(plan.rounds):
        trained = yield from Train(clients, models, local, start=labels, share=judged.trained_on, purpose=f"pilot {t}")
        if len(trained):
            rows = labels[np.searchsorted(clients, trained.clients)]
            models = mix(Mixing.within(trained.clients, rows, trained.sizes, len(models)), trained.vectors, models)
        if halfway and t + 1 == plan.halfway:
            middle = yield from Evaluate(Serving(clients, models, labels), judged.part, judged.judged_on)
    end = yield from Evaluate(Serving(clients, models, labels), judged.part, judged.judged_on)
    return _TrainedArm(models, end, end if middle is None else middle)


def _choose_rate(scores: Mapping[float, float]) -> float:
    """The lowest rate whose score is within `RATE_TOLERANCE` of the best: fine-tuning suffers from a rate that is higher than need be."""
    finite = {rate: score for rate, score in scores.items() if np.isfinite(score)}
    return min((rate for rate, score in finite.items() if score >= max(finite.values()) - RATE_TOLERANCE), default=min(scores))
