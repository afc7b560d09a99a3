"""A short pilot: would a model for each group serve clients better than one model for all, and better than groups drawn by lot?

Random groups *of the same sizes* are the yardstick: whatever comes with any grouping (fewer clients a model, other weights) they have too.
"""

from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

import numpy as np

from coterie.core.arrays import Array, Doubles, Floats, Ids, Ints
from coterie.core.asks import Evaluate, Evaluated, Share, Train
from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.method import Round
from coterie.core.mixing import Mixing, mix
from coterie.core.serving import Serving
from coterie.core.tasks import CLASSIFICATION, Task, credits_of


@dataclass(frozen=True)
class Judged:
    """What the pilot trains on and is judged on: the validation parts where there are any, or else one half against the other."""

    part: Literal["train", "validation"]
    trained_on: Share | None = None
    judged_on: Share | None = None

    @classmethod
    def on(cls, validation: bool) -> "Judged":
        return cls("validation") if validation else cls("train", Share(half=0), Share(half=1))


@dataclass(frozen=True)
class PilotPlan:
    """How long the pilot runs, and against how many random groupings."""

    rounds: int = 10
    local: Local = field(default_factory=lambda: Local(epochs=2, lr=0.05))
    randoms: int = 19

    def __post_init__(self) -> None:
        for name in ("rounds", "randoms"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"The pilot cannot use {name}={getattr(self, name)}: give 1 or more, or leave the pilot out with --no-pilot."
                )


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
    def as_good(self) -> int:
        """How many of the random groupings do at least as well as the groups."""
        return int(np.sum(self.random.sum(axis=1) >= self.grouped.sum()))

    @property
    def p_random(self) -> float:
        """The chance that random groups of the same sizes do at least as well, the groups counted as one drawing."""
        return (1 + self.as_good) / (len(self.random) + 1)

    @property
    def verdict(self) -> Literal["help", "hurt", "not shown"]:
        """Help needs both: better than one model by twice its error, and better than random groups."""
        # With fewer than 19 random groupings no p-value can reach .05: beating all of them is then all that can be asked.
        if self.gain > 2 * self.error and (self.p_random <= 0.05 or self.as_good == 0):
            return "help"
        return "hurt" if self.gain < -2 * self.error else "not shown"

    @property
    def client_gains(self) -> Doubles:
        """(n,) each client's own gain in the score; rough, since a client judges on its own few samples."""
        return np.asarray((self.grouped - self.one) / np.maximum(self.judged, 1))


def pilot(model: Floats, clients: Ids, labels: Ids, judged: Judged, plan: PilotPlan, rng: np.random.Generator, task: Task) -> Round[Pilot]:
    """Train one model, the groups' models and random groups' models from the same start, and judge each client with the one it gets."""
    one = yield from _arm(model, clients, np.zeros_like(labels), judged, plan)
    grouped = yield from _arm(model, clients, labels, judged, plan)
    arms = [one, grouped]
    for _ in range(plan.randoms):
        drawn = yield from _arm(model, clients, rng.permutation(labels), judged, plan)
        arms.append(drawn)
    common = reduce(np.intersect1d, [arm.clients for arm in arms])  # who answered every time
    common = common[one.of(common).sizes > 0]
    hits = np.stack([credits_of(arm.of(common), task) for arm in arms])
    on = "validation parts" if judged.part == "validation" else "the other half of the training samples"
    return Pilot(common, one.of(common).sizes, hits[0], hits[1], hits[2:], on, task)


def _arm(model: Floats, clients: Ids, labels: Ids, judged: Judged, plan: PilotPlan) -> Round[Evaluated]:
    """Federated averaging within each group. All arms share their shuffles, so they differ by the grouping alone."""
    models = np.repeat(model[None], int(labels.max()) + 1, axis=0)
    for t in range(plan.rounds):
        trained = yield from Train(clients, models, plan.local, start=labels, share=judged.trained_on, purpose=f"pilot {t}")
        if len(trained):
            rows = labels[np.searchsorted(clients, trained.clients)]
            models = mix(Mixing.within(trained.clients, rows, trained.sizes, len(models)), trained.vectors, models)
    return (yield from Evaluate(Serving(clients, models, labels), judged.part, judged.judged_on))
