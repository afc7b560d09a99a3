"""Records: what one round of one lane leaves behind, and the summary over all clients when rows of only a sample are kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

import numpy as np

from coterie.core.arrays import Array, Doubles, Ids
from coterie.core.asks import Evaluated
from coterie.core.method import Notes
from coterie.core.states import State
from coterie.core.tasks import Task, compute_credits

DECILES = tuple(f"tenth_{i}" for i in range(11))  # quantiles of the clients' own scores: the lowest, 10 %, ..., the highest
SUMMARY_COLUMNS = ("score", "macro", "bottom_decile", "all_loss", *DECILES)  # the columns that this makes of a round


@dataclass(frozen=True)
class PopulationSummary:
    """The scores of all clients that were evaluated and have samples."""

    clients: int
    score: float  # the task's own, over all their samples
    macro: float  # the mean of the clients' own
    bottom_decile: float  # the mean over the tenth of them that is served worst
    loss: float  # over all samples
    deciles: tuple[float, ...]  # (11,)

    def numbers(self) -> tuple[float, ...]:
        """By column."""
        return (self.clients, self.score, self.macro, self.bottom_decile, self.loss, *self.deciles)


def summarize_population(evaluated: Evaluated, task: Task, left_out: Ids) -> PopulationSummary | None:
    """The summary over all evaluated clients but some (the malicious ones); None where none has samples."""
    counted = evaluated.take(~np.isin(evaluated.clients, left_out) & (evaluated.sizes > 0))
    if not len(counted):
        return None
    sizes, credit = counted.sizes, compute_credits(counted, task)
    own: Doubles = np.sort(credit / sizes)
    known = np.where(np.isfinite(counted.loss), sizes, 0)
    loss = float((np.where(known > 0, counted.loss, 0.0) * known).sum() / known.sum()) if known.any() else float("nan")
    return PopulationSummary(
        clients=len(counted),
        score=float(credit.sum() / sizes.sum()),
        macro=float(own.mean()),
        bottom_decile=float(own[: int(np.ceil(len(own) / 10))].mean()),
        loss=loss,
        deciles=tuple(float(value) for value in np.quantile(own, np.linspace(0, 1, len(DECILES)))),
    )


def make_summary_columns(summaries: Sequence[PopulationSummary | None]) -> dict[str, Array]:
    """Columns of rounds: the number of clients and their scores; nan without a summary."""
    names = ("everybody", *SUMMARY_COLUMNS)
    rows = [[np.nan] * len(names) if summary is None else summary.numbers() for summary in summaries]
    table = np.array(rows, dtype=np.float64).reshape(len(summaries), len(names))
    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}


RUNNING, DIVERGED, FAILED = "running", "diverged", "failed"
PENDING = "-aloft"  # in the names of a checkpoint: pending replies beside a lane's state
STOPPED = "stopped"  # early, by its validation score: it keeps the models of its last round
MALICIOUS = "hostile_clients"  # the note of round 0 with the malicious clients of a simulated attack


class LaneKey(NamedTuple):
    """The identity of a lane: a draw of the data, a method and a seed."""

    draw: int
    method: str
    seed: int


@dataclass(frozen=True)
class LaneEnd:
    """The progress of a lane, and why it ended."""

    round_: int
    status: str = RUNNING
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether it ended before it should: it neither runs nor stopped early by its plan."""
        return self.status not in (RUNNING, STOPPED)

    def complete(self, rounds: int) -> bool:
        """Whether it has reached its end."""
        return self.status == STOPPED or (self.status == RUNNING and self.round_ >= rounds)

    def __str__(self) -> str:
        return f"{self.status} {self.reason}".strip()


@dataclass(frozen=True)
class LaneProgress:
    """The progress of a lane since its last segment, and its state."""

    key: LaneKey
    first: int  # the first of its new rounds
    end: LaneEnd
    state: State | None
    pending: State | None = None  # replies between rounds, where time is simulated


@dataclass(frozen=True)
class Cost:
    """The cost of a round. Costs can be added."""

    messages: int = 0  # questions sent and answers received
    bytes_down: int = 0
    bytes_up: int = 0
    passes: float = 0.0  # times a client goes through its data
    steps: int = 0  # optimiser steps on clients
    samples: int = 0  # samples processed on clients

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class Absence:
    """A client that was asked and does not count: it did not answer, or its reply was refused."""

    client: int
    ask: str  # what it was asked
    why: str  # "ABSENT", or the name of a `Refusal`
    detail: str = ""


@dataclass(frozen=True)
class ExtraEvaluation:
    """The absences and notes of an evaluation that takes place only because the round is the last."""

    absences: int  # the last so many of the round's
    notes: tuple[str, ...]  # by name


@dataclass(frozen=True)
class RoundRecord:
    """The evidence of one round of one lane; round 0 is the start."""

    key: LaneKey
    round_: int
    cost: Cost = Cost()
    notes: Notes = field(default_factory=Notes)
    absences: tuple[Absence, ...] = ()
    groups: Ids | None = None
    grouped: Ids | None = None  # the clients whose groups these are; None: all
    discrepancy: float = 0.0  # FedGroup, Eq. 4: how far the cohort moved from the models it received
    clock: float = float("nan")  # simulated time at the end of the round, where clients have speeds
    evaluated: Evaluated | None = None  # every client's test part with the model it is served; or a sample's, where rows of that are kept
    population: PopulationSummary | None = None  # all that were evaluated in a few numbers, where `evaluated` is of a sample of them
    unseen: Evaluated | None = None  # the same of clients that take no part
    validated: Evaluated | None = None  # the same on validation parts, where the federation has them
    central: tuple[tuple[str, ...], Evaluated] | None = None  # named models on the server's own test set
    extra: ExtraEvaluation | None = None  # of a round that is evaluated only because it is the last
    seconds: dict[str, float] = field(default_factory=dict)

    def score(self, task: Task) -> float | None:
        """The task's own score over all clients' test samples; None where the round was not evaluated, or there are none."""
        if self.population is not None:
            return self.population.score
        total = 0 if self.evaluated is None else int(self.evaluated.sizes.sum())
        return float(compute_credits(self.evaluated, task).sum() / total) if self.evaluated is not None and total else None
